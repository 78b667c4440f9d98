"""The figures of the study of portfolios: regret over time, and the final scores side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.portfolio_summary import NEAR, TaskSummary
from benchmarks.portfolio_tasks import SINGLE, STRATEGIES, VARIANTS
from services.plotting import COLORS

GREY = "#999999"


def draw_regret(tasks: Mapping[str, TaskSummary], path: Path) -> None:
    """A panel for each task: singles in grey, strategies in colour, what is separate dashed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.artist import Artist

    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(4.6 * columns, 3.6 * rows), layout="constrained", squeeze=False
    )
    handles: dict[str, Artist] = {}
    for panel, (name, task) in zip(panels.flat, tasks.items(), strict=False):
        for arm, summary in task.arms.items():
            single = arm.startswith(SINGLE)
            color, style = _look(arm)
            (line,) = panel.plot(
                task.grid,
                summary.regret,
                color=color,
                linestyle=style,
                linewidth=1.2 if single else 1.6,
            )
            handles.setdefault("a member alone" if single else arm, line)
        panel.axhline(0, color="black", linewidth=0.6)
        panel.set_title(name)
        panel.set_xlabel("environment steps")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    for row in panels:
        row[0].set_ylabel("regret (steps of the best single)")
    spare = list(panels.flat)[len(tasks) :]
    for panel in spare:
        panel.axis("off")
    if spare:
        spare[0].legend(handles.values(), handles.keys(), frameon=False, loc="center", ncols=2)
    else:
        figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    _save(figure, path)


def draw_scores(tasks: Mapping[str, TaskSummary], path: Path) -> None:
    """Each arm's place between random (0) and the best single (1), with its interval."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(
        1, len(tasks), figsize=(3.0 * len(tasks), 4.2), layout="constrained", squeeze=False
    )
    for panel, (name, task) in zip(panels.flat, tasks.items(), strict=True):
        arms = list(task.arms)[::-1]
        span = task.arms[task.best_single].score - task.random
        for place, arm in enumerate(arms):
            summary = task.arms[arm]
            low, high = ((edge - task.random) / span for edge in summary.interval)
            panel.plot([low, high], [place, place], color=_look(arm)[0], linewidth=1.5)
            panel.plot([summary.scaled], [place], "o", color=_look(arm)[0], markersize=5)
        panel.axvline(task.mean_single_scaled, color=GREY, linestyle="--", linewidth=1)
        panel.axvline(NEAR, color="black", linestyle=":", linewidth=1)
        panel.set_yticks(range(len(arms)), arms, fontsize=7)
        panel.set_title(name, fontsize=9)
        panel.set_xlabel("0 random, 1 best single", fontsize=8)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _look(arm: str) -> tuple[str, str]:
    if arm.startswith(SINGLE):
        return GREY, "-"
    if arm in VARIANTS:
        return "#000000", ("--", ":", "-.")[list(VARIANTS).index(arm) % 3]
    place = STRATEGIES.index(arm)
    return COLORS[place % (len(COLORS) - 1)], "-" if place < len(COLORS) - 1 else "--"


def _save(figure: object, path: Path) -> None:
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    assert isinstance(figure, Figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
