"""Copies of an environment in one process, stepped one after the other.

Gymnasium's `SyncVectorEnv` serves any space, and with one cheap copy its bookkeeping is what a step
costs. Ours are encoded: an observation is one array, and a finished copy is reset in the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from repertory.types import Array


class SideBySide(SyncVectorEnv):
    def __init__(self, makers: Sequence[Callable[[], gym.Env[Any, Any]]]) -> None:
        super().__init__(makers, autoreset_mode=AutoresetMode.SAME_STEP)

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        observation = np.empty_like(self._observations)
        reward = np.empty(self.num_envs, np.float64)
        terminated, truncated = np.empty(self.num_envs, bool), np.empty(self.num_envs, bool)
        infos: dict[str, Any] = {}
        for copy, env in enumerate(self.envs):
            seen, reward[copy], terminated[copy], truncated[copy], info = env.step(actions[copy])
            if terminated[copy] or truncated[copy]:
                infos = self._add_info(infos, {"final_obs": seen, "final_info": info}, copy)
                seen, info = env.reset()
            observation[copy] = seen
            if info:
                infos = self._add_info(infos, info, copy)
        return observation, reward, terminated, truncated, infos
