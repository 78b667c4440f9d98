"""The stochastic chain of Kulkarni et al. 2016 (arXiv 1604.06057): a reward that needs a detour.

Six states in a row; an episode begins in the second and ends in the first. `left` (0) always goes
left; `right` (1) goes right in half of the cases and left in the others. The end pays 1 if the last
state was visited on the way, and 0.01 if not. The observation does not tell which.

    always right    P(last before first) = 1/5:      .2 * 1 + .8 * .01 = .208, the optimum
    uniform play    P = (3 - 1) / (3^5 - 1) = 1/121:                     .018
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from repertory.types import Array

STATES = 6
START = 1
LONG_WAY, SHORT_WAY = 1.0, 0.01


class Chain(gym.Env[Any, Any]):
    """Shows its state as one of six unit vectors; each of them can be a goal."""

    goals = np.eye(STATES, dtype=np.float32)

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (STATES,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._state = START
        self._visited_last = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._state, self._visited_last = START, False
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        right = int(action) == 1 and self.np_random.random() < 0.5
        self._state = min(self._state + 1, STATES - 1) if right else self._state - 1
        self._visited_last |= self._state == STATES - 1
        terminated = self._state == 0
        reward = 0.0
        if terminated:
            reward = LONG_WAY if self._visited_last else SHORT_WAY
        return self._shown(), reward, terminated, False, {}

    def _shown(self) -> Array:
        shown: Array = self.goals[self._state].copy()
        return shown
