"""Learning curves of one or many runs: mean over seeds with a 95 % band, as PNG and HTML."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from repertory.errors import RepertoryError, UsageError
from services.run_directory import RunDirectory
from services.run_policy import bootstrap_interval, interquartile_mean

# Okabe and Ito's palette, told apart with every kind of colour vision.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


@dataclass(frozen=True, slots=True)
class Curve:
    """Evaluated returns of a group of runs that differ in their seed alone."""

    label: str
    runs: int
    steps: np.ndarray  # [N]
    mean: np.ndarray  # [N]
    low: np.ndarray  # [N] the band: bootstrap over runs, or over episodes of a single run
    high: np.ndarray
    final_iqm: float  # over all runs' episodes at the last step

    @property
    def final_interval(self) -> tuple[float, float]:
        return float(self.low[-1]), float(self.high[-1])


def curves(run_dirs: Sequence[Path]) -> list[Curve]:
    groups: dict[str, list[dict[int, list[float]]]] = defaultdict(list)
    for path in run_dirs:
        run = RunDirectory.open(path)
        history = run.read_evaluations()
        if not history:
            raise UsageError(f"{path} has no evaluation yet: nothing to plot")
        groups[f"{'+'.join(run.config.learners)} on {run.config.env.id}"].append(history)
    return [_curve(label, histories) for label, histories in sorted(groups.items())]


def _curve(label: str, histories: list[dict[int, list[float]]]) -> Curve:
    """Runs are brought to common steps: those of the shortest, by linear interpolation."""
    end = min(max(history) for history in histories)
    steps = np.array(sorted({step for history in histories for step in history if step <= end}))
    if len(histories) == 1:
        values = np.array([histories[0][int(step)] for step in steps]).T  # [episodes, N]
    else:
        values = np.stack(
            [
                np.interp(steps, list(history), [np.mean(r) for r in history.values()])
                for history in histories
            ]
        )  # [runs, N]
    bands = np.array([bootstrap_interval(values[:, i]) for i in range(len(steps))])
    last = [value for history in histories for value in history[max(history)]]
    return Curve(
        label=label,
        runs=len(histories),
        steps=steps,
        mean=values.mean(axis=0),
        low=bands[:, 0],
        high=bands[:, 1],
        final_iqm=interquartile_mean(last),
    )


def write_plot(drawn: Sequence[Curve], path: Path) -> None:
    """By the file's ending: .png, .svg or .pdf by matplotlib, .html by plotly, all in one file."""
    writers = {".html": _write_html, ".png": _write_picture, ".svg": _write_picture}
    writer = writers.get(path.suffix)
    if writer is None:
        raise UsageError(f"cannot write {path}: its name should end in .png, .svg or .html")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer(drawn, path)
    except OSError as error:
        raise RepertoryError(f"cannot write {path}: {error.strerror or error}") from error


def _label(curve: Curve) -> str:
    return f"{curve.label} ({curve.runs} run{'s' if curve.runs > 1 else ''})"


def _write_picture(drawn: Sequence[Curve], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for index, curve in enumerate(drawn):
        color = COLORS[index % len(COLORS)]
        axes.plot(curve.steps, curve.mean, color=color, label=_label(curve))
        axes.fill_between(curve.steps, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("evaluated return (mean, 95 % interval)")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _write_html(drawn: Sequence[Curve], path: Path) -> None:
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, curve in enumerate(drawn):
        color = COLORS[index % len(COLORS)]
        outline = np.concatenate([curve.steps, curve.steps[::-1]])
        band = np.concatenate([curve.high, curve.low[::-1]])
        figure.add_scatter(
            x=outline, y=band, fill="toself", fillcolor=color, opacity=0.2, line_width=0,
            hoverinfo="skip", showlegend=False, legendgroup=curve.label,
        )  # fmt: skip
        figure.add_scatter(
            x=curve.steps, y=curve.mean, mode="lines", line_color=color, name=_label(curve),
            legendgroup=curve.label,
        )  # fmt: skip
    figure.update_layout(
        template="plotly_white",
        xaxis_title="environment steps",
        yaxis_title="evaluated return (mean, 95 % interval)",
    )
    figure.write_html(path, include_plotlyjs=True)
