"""h-DQN in NumPy, from arXiv 1604.06057: two deep Q-learners with losses of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from reference.numpy_mlp import Adam, Array, Mlp, clip_by_norm, global_norm, polyak


@dataclass
class LevelReport:
    target: Array
    error: Array
    loss: float
    norm: float
    gradients: list[Array]  # after clipping


@dataclass
class Level:
    """One of the two: a Q network over choices, its target, its Adam."""

    online: Mlp
    frozen: Mlp
    lr: float
    max_grad_norm: float | None

    def __post_init__(self) -> None:
        self.adam = Adam(self.lr)

    def update(
        self, seen: Array, choice: Array, reward: Array, discount: Array, next_seen: Array,
        weight: Array,
    ) -> LevelReport:  # fmt: skip
        rows = np.arange(len(choice))
        y = np.array(
            [
                r + d * max(q)
                for r, d, q in zip(reward, discount, self.frozen(next_seen), strict=True)
            ]
        )
        trace = self.online.forward(seen)
        error = trace[-1][rows, choice] - y
        huber = np.where(np.abs(error) <= 1, error**2 / 2, np.abs(error) - 0.5)
        d_q = np.zeros_like(trace[-1])
        d_q[rows, choice] = weight * np.clip(error, -1, 1) / len(rows)
        gradients, _ = self.online.backward(trace, d_q)
        norm = global_norm(gradients)
        gradients = clip_by_norm(gradients, self.max_grad_norm)
        self.adam.step(self.online.parameters, gradients)
        return LevelReport(y, error, float(np.mean(weight * huber)), norm, gradients)

    def move_target(self, tau: float) -> None:
        polyak(self.frozen.parameters, self.online.parameters, tau)


def beside_goal(observation: Array, goal: Array, goals: int) -> Array:
    """The controller's input: the observation and the goal (from 1) as a unit vector."""
    return np.hstack([observation, np.eye(goals)[np.maximum(goal - 1, 0)]])
