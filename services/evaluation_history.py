"""All evaluations of a run, by learner; and those of whoever was leading.

A portfolio is judged by the policy one would have taken at each moment: that of the learner whose
evaluation was the best the time *before*. Taking the best of the same moment would count luck as
skill, and more so the more learners there are. With one learner the two are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repertory.types import Array


class EvaluationHistory:
    def __init__(self, learners: Sequence[str]) -> None:
        self._returns: dict[str, dict[int, list[float]]] = {name: {} for name in learners}

    def add(self, learner: str, env_steps: int, returns: Sequence[float]) -> None:
        self._returns[learner][env_steps] = list(returns)

    def count(self, learner: str) -> int:
        return len(self._returns[learner])

    def has(self, learner: str, env_steps: int) -> bool:
        return env_steps in self._returns[learner]

    def best_mean(self, learner: str | None = None) -> float | None:
        """Of one learner, or of all."""
        names = self._returns if learner is None else [learner]
        means = [float(np.mean(r)) for name in names for r in self._returns[name].values()]
        return max(means, default=None)

    def last_mean(self) -> float | None:
        leading = self.leading()
        return float(np.mean(leading[max(leading)])) if leading else None

    def leader(self) -> str:
        """Whose newest evaluation is the best; the first learner where there is none."""
        newest = {
            name: float(np.mean(history[max(history)]))
            for name, history in self._returns.items()
            if history
        }
        return max(newest, key=lambda name: newest[name]) if newest else next(iter(self._returns))

    def leading(self) -> dict[int, list[float]]:
        """At each moment the returns of the learner that was the best before it."""
        moments = sorted({step for history in self._returns.values() for step in history})
        means: dict[str, float] = {}  # the newest before the moment
        chosen: dict[int, list[float]] = {}
        for step in moments:
            there = [name for name, history in self._returns.items() if step in history]
            known = [name for name in there if name in means]
            leader = max(known, key=lambda name: means[name]) if known else there[0]
            chosen[step] = self._returns[leader][step]
            means |= {name: float(np.mean(self._returns[name][step])) for name in there}
        return chosen

    def arrays(self) -> dict[str, Array]:
        """`timesteps` [N] and `results` [N, episodes] of who led, and the same of each learner."""
        return {
            **_arrays("", self.leading()),
            **{
                key: array
                for name, history in self._returns.items()
                for key, array in _arrays(f"/{name}", history).items()
            },
        }

    def state(self) -> dict[str, Any]:
        return {
            name: {str(step): returns for step, returns in history.items()}
            for name, history in self._returns.items()
        }

    def load_state(self, state: Mapping[str, Mapping[str, list[float]]]) -> None:
        self._returns = {
            name: {int(step): list(returns) for step, returns in state.get(name, {}).items()}
            for name in self._returns
        }


def _arrays(suffix: str, history: Mapping[int, list[float]]) -> dict[str, Array]:
    return {
        f"timesteps{suffix}": np.array(list(history), np.int64),
        f"results{suffix}": np.array(list(history.values()), np.float64),
    }
