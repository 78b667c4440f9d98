"""Copies of an environment in one process, stepped one after the other.

Gymnasium's `SyncVectorEnv` serves any space, and with one cheap copy its bookkeeping is what a step
costs. Ours are encoded: an observation is one array, and a finished copy is reset in the same step.
Of what the copies say in `info` only that is passed on which a rollout reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from repertory.atari import LIFE_LOST
from repertory.guarded_env import FAULT
from repertory.types import Array

TOLD = frozenset({FAULT, LIFE_LOST})


class SideBySide(SyncVectorEnv):
    def __init__(self, makers: Sequence[Callable[[], gym.Env[Any, Any]]]) -> None:
        super().__init__(makers, autoreset_mode=AutoresetMode.SAME_STEP)

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        observation = np.empty_like(self._observations)
        reward = np.empty(self.num_envs, np.float64)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        infos: dict[str, Any] = {}
        for copy, env in enumerate(self.envs):
            seen, reward[copy], ended, cut, info = env.step(actions[copy])
            if ended or cut:
                terminated[copy], truncated[copy] = ended, cut
                final = {"final_obs": seen, "final_info": _told(info)}
                infos = self._add_info(infos, final, copy)
                seen, info = env.reset()
            observation[copy] = seen
            if info and not TOLD.isdisjoint(info):
                infos = self._add_info(infos, _told(info), copy)
        return observation, reward, terminated, truncated, infos


def _told(info: Mapping[str, Any]) -> dict[str, Any]:
    return {key: info[key] for key in TOLD if key in info}
