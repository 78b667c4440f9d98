"""The tables of the study of portfolios as Markdown, and their place in its page. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.portfolio_run import Record
from benchmarks.portfolio_summary import TaskSummary
from benchmarks.portfolio_tasks import SINGLE
from benchmarks.study import Place

PLACE = Place("benchmarks.portfolio")


def results(
    summaries: Mapping[str, TaskSummary], records: Mapping[str, Sequence[Record]], made: str
) -> str:
    parts = [made, verdict(summaries)]
    parts += [f"### {name}\n\n{of_task(summaries[name], records[name])}" for name in summaries]
    return "\n\n".join(parts)


def verdict(summaries: Mapping[str, TaskSummary]) -> str:
    """Every portfolio arm against the best and the mean single, over all tasks."""
    arms = dict.fromkeys(
        arm for task in summaries.values() for arm in task.arms if not arm.startswith(SINGLE)
    )
    lines = [
        _row("of the best single", *summaries, "mean", "within 10 %", "not below mean single"),
        _row(*["---"] * (len(summaries) + 4)),
    ]
    for arm in arms:
        there = {name: task for name, task in summaries.items() if arm in task.arms}
        cells = [
            f"{_percent(there[name].arms[arm].scaled)} ({there[name].arms[arm].seeds})"
            if name in there
            else "-"
            for name in summaries
        ]
        mean = float(np.mean([task.arms[arm].scaled for task in there.values()]))
        near = sum(task.near_best(arm) for task in there.values())
        above = sum(task.beats_mean(arm) for task in there.values())
        lines.append(
            _row(
                f"`{arm}`",
                *cells,
                _percent(mean),
                f"{near} of {len(there)}",
                f"{above} of {len(there)}",
            )
        )
    tasks = list(summaries.values())
    for title, values in (
        ("mean single", [task.mean_single_scaled for task in tasks]),
        ("worst single", [task.arms[task.worst_single].scaled for task in tasks]),
    ):
        mean = float(np.mean(values))
        lines.append(_row(title, *(_percent(value) for value in values), _percent(mean), "", ""))
    return "\n".join(lines)


def of_task(task: TaskSummary, records: Sequence[Record]) -> str:
    lines = [
        _row("arm", "seeds", "score", "95 %", "of best", "gradient steps", "regret", "acted"),
        _row(*["---"] * 8),
    ]
    for arm, one in task.arms.items():
        name = f"**`{arm}`**" if arm == task.best_single else f"`{arm}`"
        low, high = one.interval
        lines.append(
            _row(
                name,
                str(one.seeds),
                f"{one.score:.1f}",
                f"{low:.1f} to {high:.1f}" if one.seeds > 1 else "",
                _percent(one.scaled),
                f"{one.gradient_steps:.0f}",
                f"{one.regret[-1]:.0f}",
                acted(arm, records),
            )
        )
    lines.append(
        _row("mean single", "", f"{task.mean_single:.1f}", "", _percent(task.mean_single_scaled),
             "", "", "")
    )  # fmt: skip
    lines.append(_row("random", "", f"{task.random:.1f}", "", "0 %", "", "", ""))
    return "\n".join(lines)


def acted(arm: str, records: Sequence[Record]) -> str:
    """Whose were the environment steps, over all seeds; nothing for a member alone."""
    shares = [record.step_share for record in records if record.arm == arm]
    if len(shares[0]) == 1:
        return ""
    return ", ".join(
        f"{member} {100 * np.mean([share[member] for share in shares]):.0f} %"
        for member in shares[0]
    )


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
