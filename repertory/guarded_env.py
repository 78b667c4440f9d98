"""An environment that is replaced when it breaks: one bad episode does not end a worker.

Where `step` or `reset` raises, or an observation or reward is not finite, the environment is thrown
away and made anew. The step says so in `info["fault"]`: whoever collects drops that episode whole.
A copy that breaks too often in a row, without finishing an episode in between, is quarantined: it
only repeats a last observation and says `fault` for ever.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from repertory.errors import EnvironmentFailure

logger = logging.getLogger(__name__)

FAULT = "fault"


class GuardedEnv(gym.Env[Any, Any]):
    """One copy. `max_faults` in a row are repaired; the next one is its last."""

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], max_faults: int) -> None:
        self._make = make
        self._max_faults = max_faults
        self._env = make()
        self._faults = 0  # in a row
        self.observation_space = self._env.observation_space
        self.action_space = self._env.action_space
        self.metadata = self._env.metadata
        self._observation: Any = np.zeros(
            self.observation_space.shape or (), self.observation_space.dtype
        )
        self.quarantined: str | None = None  # why

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        while self.quarantined is None:
            try:
                self._observation, info = self._env.reset(seed=seed, options=options)
                _check(self._observation, 0.0)
                return self._observation, info
            except Exception as error:
                self._replace(error)
        return self._observation, {FAULT: self.quarantined}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        if self.quarantined is not None:
            return self._observation, 0.0, False, True, {FAULT: self.quarantined}
        try:
            observation, reward, terminated, truncated, info = self._env.step(action)
            _check(observation, float(reward))
        except Exception as error:
            reason = self._replace(error)
            return self._observation, 0.0, False, True, {FAULT: reason}
        self._observation = observation
        if terminated or truncated:
            self._faults = 0
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def __getattr__(self, name: str) -> Any:
        """What the environment offers besides, as wrappers do: records of episodes."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._env, name)

    def _replace(self, error: Exception) -> str:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        self._faults += 1
        with contextlib.suppress(Exception):  # it is broken already
            self._env.close()
        if self._faults > self._max_faults:
            self.quarantined = f"{self._faults} faults in a row, the last {reason}"
            logger.error("a copy of the environment is quarantined after %s", self.quarantined)
            return reason
        logger.warning("a copy of the environment broke and is made anew: %s", reason)
        try:
            self._env = self._make()
        except Exception as second:
            return self._replace(second)
        return reason


def _check(observation: Any, reward: float) -> None:
    if not math.isfinite(reward):
        raise EnvironmentFailure(f"the reward is {reward}")
    array = np.asarray(observation)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise EnvironmentFailure("an observation is not finite")
