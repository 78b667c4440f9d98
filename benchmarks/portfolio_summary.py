"""The arithmetic of the study of portfolios: scores to tables, curves to regret. Pure.

Scores are put on a scale where 0 is a random policy and 1 the best single member, which is the one
with the highest mean over seeds. Intervals are 95 %, by bootstrap over seeds: with two or three
seeds that is little more than their range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.portfolio_tasks import SINGLE
from services.run_policy import bootstrap_interval

NEAR = 0.9  # of the way from random to the best single


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run is reduced to."""

    arm: str
    seed: int
    score: float
    gradient_steps: int
    env_steps: int
    curve: Mapping[int, float]  # evaluated mean by environment steps


@dataclass(frozen=True, slots=True)
class ArmSummary:
    arm: str
    seeds: int
    score: float
    interval: tuple[float, float]
    scaled: float  # 0: random, 1: the best single
    gradient_steps: float  # mean over seeds
    env_steps: float
    regret: tuple[float, ...]  # at each point of the task's grid


@dataclass(frozen=True, slots=True)
class TaskSummary:
    random: float
    best_single: str
    worst_single: str
    mean_single: float  # score
    mean_single_scaled: float
    grid: tuple[int, ...]  # environment steps
    arms: Mapping[str, ArmSummary]

    def near_best(self, arm: str) -> bool:
        return self.arms[arm].scaled >= NEAR

    def beats_mean(self, arm: str) -> bool:
        return self.arms[arm].score >= self.mean_single


def summarise(outcomes: Sequence[Outcome], random: float, steps: int, points: int) -> TaskSummary:
    """All runs of one task; arms without a run are left out."""
    by_arm: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_arm.setdefault(outcome.arm, []).append(outcome)
    means = {arm: float(np.mean([one.score for one in runs])) for arm, runs in by_arm.items()}
    singles = [arm for arm in means if arm.startswith(SINGLE)]
    if not singles:
        raise ValueError("a task without a finished single run has no scale")
    best = max(singles, key=lambda arm: means[arm])
    worst = min(singles, key=lambda arm: means[arm])
    mean_single = float(np.mean([means[arm] for arm in singles]))
    grid = np.linspace(0, steps, points + 1)
    curves = {
        arm: np.mean([on_grid(one.curve, grid) for one in runs], axis=0)
        for arm, runs in by_arm.items()
    }
    return TaskSummary(
        random=random,
        best_single=best,
        worst_single=worst,
        mean_single=mean_single,
        mean_single_scaled=scaled(mean_single, random, means[best]),
        grid=tuple(int(step) for step in grid),
        arms={
            arm: ArmSummary(
                arm=arm,
                seeds=len(runs),
                score=means[arm],
                interval=bootstrap_interval(np.array([one.score for one in runs])),
                scaled=scaled(means[arm], random, means[best]),
                gradient_steps=float(np.mean([one.gradient_steps for one in runs])),
                env_steps=float(np.mean([one.env_steps for one in runs])),
                regret=tuple(
                    float(value)
                    for value in regret(curves[arm], curves[best], grid, means[best] - random)
                ),
            )
            for arm, runs in by_arm.items()
        },
    )


def scaled(score: float, random: float, best: float) -> float:
    """0 for a random policy, 1 for the best; where nobody beats random there is no scale."""
    if best <= random:
        return float("nan")
    return (score - random) / (best - random)


def on_grid(curve: Mapping[int, float], grid: np.ndarray) -> np.ndarray:
    """Evaluations at the grid's steps, linear between them and held at the ends."""
    steps = sorted(curve)
    return np.asarray(np.interp(grid, steps, [curve[step] for step in steps]))


def regret(curve: np.ndarray, best: np.ndarray, grid: np.ndarray, span: float) -> np.ndarray:
    """What the best single had over this arm up to each moment, in environment steps of it.

        regret(t) = integral from 0 to t of (best(s) - curve(s)) ds / (best score - random score)

    A thousand of it: as if the arm had been a random policy for a thousand steps in which the best
    single was as good as in the end. Negative: the arm was ahead.
    """
    gap = (best - curve) / span
    pieces = np.diff(grid) * (gap[1:] + gap[:-1]) / 2
    return np.concatenate([[0.0], np.cumsum(pieces)])
