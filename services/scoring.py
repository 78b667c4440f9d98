"""What an ended episode counts for the strategy: `director.score`. Used by the director.

return      what the episode brought
evaluation  the newest evaluated mean of the policy that acted: less noise, no
            exploration, but older
progress    absolute learning progress: how fast the policy's returns change, up or down, per
            environment step, as the slope of the least-squares line through its newest returns
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

Score = Literal["return", "evaluation", "progress"]

PROGRESS_EPISODES = 20  # of one member, through which the line is drawn
FEWEST_EPISODES = 5  # a line through fewer says nothing


class Scoring:
    def __init__(self, score: Score, members: Sequence[str]) -> None:
        self._score = score
        self._evaluations: dict[str, tuple[int, float]] = {}  # environment steps, mean
        self._returns: dict[str, deque[tuple[int, float]]] = {
            member: deque(maxlen=PROGRESS_EPISODES) for member in members
        }

    def evaluated(self, member: str, env_steps: int, mean: float) -> None:
        """An evaluation that comes in late does not replace a newer one."""
        newest = self._evaluations.get(member)
        if math.isfinite(mean) and (newest is None or env_steps >= newest[0]):
            self._evaluations[member] = (env_steps, mean)

    def of(self, member: str, episode_return: float, env_steps: int) -> float | None:
        """The score of an episode that ended; None while there is nothing to tell."""
        if math.isfinite(episode_return):
            self._returns[member].append((env_steps, episode_return))
        if self._score == "return":
            return episode_return if math.isfinite(episode_return) else None
        if self._score == "evaluation":
            newest = self._evaluations.get(member)
            return None if newest is None else newest[1]
        return self._progress(member)

    def _progress(self, member: str) -> float | None:
        points = self._returns[member]
        if len(points) < FEWEST_EPISODES:
            return None
        steps, returns = np.array(points, dtype=np.float64).T
        steps = steps - steps.mean()
        spread = float(steps @ steps)
        if spread == 0:
            return None
        return abs(float(steps @ (returns - returns.mean())) / spread)

    def state(self) -> dict[str, Any]:
        return {
            "evaluations": {name: list(entry) for name, entry in self._evaluations.items()},
            "returns": {
                name: [list(point) for point in points] for name, points in self._returns.items()
            },
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._evaluations = {
            name: (int(step), float(mean)) for name, (step, mean) in state["evaluations"].items()
        }
        for name, points in self._returns.items():
            points.clear()
            points.extend((int(step), float(value)) for step, value in state["returns"][name])
