"""What a person sees while a run goes on: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Status:
    """Where a run stands."""

    env_steps: int
    total_steps: int
    updates: int
    steps_per_second: float
    updates_per_second: float
    episodes: int
    mean_return: float | None  # of the last episodes, with exploration
    evaluation: float | None  # mean of the last evaluation, without
    best_evaluation: float | None
    elapsed_seconds: float
    shares: Mapping[str, float] = field(default_factory=dict)  # of acting, by policy of a portfolio

    @property
    def remaining_seconds(self) -> float | None:
        if self.steps_per_second <= 0:
            return None
        return max(0, self.total_steps - self.env_steps) / self.steps_per_second


class Reporter(Protocol):
    def start(self, title: str, status: Status) -> None: ...

    def update(self, status: Status) -> None: ...

    def message(self, text: str) -> None: ...

    def stop(self) -> None: ...


class Silent:
    def start(self, title: str, status: Status) -> None: ...

    def update(self, status: Status) -> None: ...

    def message(self, text: str) -> None: ...

    def stop(self) -> None: ...


class PlainLines:
    """One line every few seconds, for log files and pipes."""

    def __init__(self, console: Console, every_seconds: float = 5.0) -> None:
        self._console = console
        self._every = every_seconds
        self._last = 0.0

    def start(self, title: str, status: Status) -> None:
        self._say(title)
        self._last = status.elapsed_seconds

    def update(self, status: Status) -> None:
        finished = status.env_steps >= status.total_steps
        if status.elapsed_seconds - self._last < self._every and not finished:
            return
        self._last = status.elapsed_seconds
        remaining = status.remaining_seconds
        parts = [
            f"step {status.env_steps}/{status.total_steps}",
            f"{status.steps_per_second:.0f} steps/s",
            f"{status.updates_per_second:.0f} updates/s",
            f"return {_number(status.mean_return)}",
            f"evaluation {_number(status.evaluation)}",
            _acting(status),
            f"ETA {_clock(remaining)}" if remaining is not None else "",
        ]
        self._say("  ".join(part for part in parts if part))

    def message(self, text: str) -> None:
        self._say(text)

    def stop(self) -> None:
        pass

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class LiveDisplay:
    """A bar with a table below it that stays in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def start(self, title: str, status: Status) -> None:
        self._task = self._bar.add_task(title, total=status.total_steps, completed=status.env_steps)
        self._live.start()
        self.update(status)

    def update(self, status: Status) -> None:
        self._bar.update(self._task, completed=min(status.env_steps, status.total_steps))
        self._live.update(Group(self._bar, _table(status), _acting(status)))

    def message(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def stop(self) -> None:
        self._live.stop()


def _table(status: Status) -> Table:
    table = Table.grid(padding=(0, 3))
    for _ in range(6):
        table.add_column(justify="right", min_width=11)
    names = ("steps/s", "updates/s", "episodes", "return", "evaluation", "best")
    table.add_row(*(f"[dim]{name}" for name in names))
    table.add_row(
        f"{status.steps_per_second:,.0f}",
        f"{status.updates_per_second:,.0f}",
        f"{status.episodes:,}",
        _number(status.mean_return),
        _number(status.evaluation),
        _number(status.best_evaluation),
    )
    return table


def _acting(status: Status) -> str:
    """Who acts how often of late."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in status.shares.items())
    return f"acting {shares}" if shares else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def reporter_for(console: Console) -> Reporter:
    return LiveDisplay(console) if console.is_terminal else PlainLines(console)
