"""Several runs in one chart: those that differ in their seed alone become a mean and a band."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from services.dashboard.run_view import RunView
from services.dashboard.schemas import Band, Comparison

POINTS = 400
EVALUATED = "evaluation"


def compare(views: Sequence[RunView], metric: str | None) -> Comparison:
    """Of evaluated returns, or of one metric. Runs without it are left out."""
    groups: dict[str, list[tuple[str, np.ndarray, np.ndarray]]] = defaultdict(list)
    for view in views:
        x, y = _curve(view, metric)
        if len(x):
            groups[view.settings.group].append((view.id, x, y))
    return Comparison(
        metric=metric or EVALUATED,
        bands=[_band(label, curves) for label, curves in sorted(groups.items())],
    )


def _curve(view: RunView, metric: str | None) -> tuple[np.ndarray, np.ndarray]:
    if metric is not None:
        points = view.series([metric], POINTS * 4, "steps").series.get(metric)
    else:
        points = view.evaluations("steps").curves.get("")
    if points is None:
        return np.empty(0), np.empty(0)
    x, y = np.array(points.x), np.array(points.y, dtype=float)
    known = np.isfinite(y)
    return x[known], y[known]


def _band(label: str, curves: list[tuple[str, np.ndarray, np.ndarray]]) -> Band:
    """At common steps, to the end of the shortest; the band is from the lowest to the highest."""
    begin = max(x[0] for _, x, _ in curves)
    end = max(begin, min(x[-1] for _, x, _ in curves))
    steps = np.unique(np.concatenate([x[(x >= begin) & (x <= end)] for _, x, _ in curves]))
    if len(steps) > POINTS:
        steps = np.linspace(begin, end, POINTS)
    values = np.stack([np.interp(steps, x, y) for _, x, y in curves])  # [runs, N]
    return Band(
        label=label,
        runs=[id_ for id_, _, _ in curves],
        x=steps.tolist(),
        mean=values.mean(axis=0).tolist(),
        low=values.min(axis=0).tolist(),
        high=values.max(axis=0).tolist(),
    )
