"""An environment that costs next to nothing: what is measured with it is everything else."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Trivial(gym.Env[Any, Any]):
    """Pays 1 for action 1; an episode has `length` steps."""

    def __init__(self, length: int = 20) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._length = length
        self._steps = 0
        self._observation = np.ones(4, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._observation, float(action), self._steps >= self._length, False, {}
