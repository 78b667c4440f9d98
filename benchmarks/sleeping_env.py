"""An environment that costs time and no core: a step sleeps, as one that waits for a simulator."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

OBSERVATIONS = 17
ACTIONS = 6


class Sleeping(gym.Env[Any, Any]):
    """Of HalfCheetah's shape; an episode is cut after `length` steps."""

    def __init__(self, seconds: float = 0.02, length: int = 200) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (OBSERVATIONS,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
        self._seconds = seconds
        self._length = length
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._seconds:
            time.sleep(self._seconds)
        self._steps += 1
        return self._observation(), 0.0, False, self._steps >= self._length, {}

    def _observation(self) -> Any:
        return self.np_random.standard_normal(OBSERVATIONS).clip(-1, 1).astype(np.float32)
