"""Two systems in turns, what comes of it, and what it was measured on.

Absolute figures on a shared machine move by half within the hour. So each round measures both, one
right after the other, first this one and then that one first; what counts is the ratio of the
medians. The interval is that of the rounds: the lowest and the highest ratio in any of them.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

Measured = TypeVar("Measured")

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One piece of work, in items per second, by round."""

    work: str
    ours: Sequence[float]
    peer: Sequence[float]
    target: float | None = None  # what the ratio should be at least

    @property
    def ratio(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.peer)

    @property
    def interval(self) -> tuple[float, float]:
        ratios = [mine / theirs for mine, theirs in zip(self.ours, self.peer, strict=True)]
        return min(ratios), max(ratios)

    @property
    def ok(self) -> bool:
        return self.target is None or self.ratio >= self.target


def in_turns(
    ours: Callable[[], Measured], peer: Callable[[], Measured], rounds: int
) -> tuple[list[Measured], list[Measured]]:
    """One measurement of each in every round; who is first changes from round to round."""
    mine, theirs = [], []
    for number in range(rounds):
        if number % 2 == 0:
            mine.append(ours())
            theirs.append(peer())
        else:
            theirs.append(peer())
            mine.append(ours())
    return mine, theirs


def machine_facts() -> dict[str, object]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),  # of the last minute: what others do here
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str:
    """With a plus where files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
