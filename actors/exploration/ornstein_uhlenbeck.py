"""Noise with momentum on continuous actions: the Ornstein-Uhlenbeck process of DDPG.

    x <- x - theta x dt + std sqrt(dt) N(0, 1),   action <- clip(action + x)

Each copy has a process of its own, which starts at zero wherever its policy begins to act.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from pydantic import Field

from actors.exploration.gaussian import require_continuous
from repertory.schedule import Schedule
from repertory.settings import PartSettings
from repertory.specs import EnvSpec
from repertory.types import Array


class OrnsteinUhlenbeck:
    class Config(PartSettings):
        name: str = "ornstein_uhlenbeck"
        std: Schedule = Schedule(start=0.2)
        theta: float = Field(default=0.15, ge=0)
        dt: float = Field(default=1.0, gt=0)

    def __init__(self, config: Config, spec: EnvSpec, copies: int) -> None:
        require_continuous(spec, "ornstein_uhlenbeck")
        self._config = config
        self._noise = np.zeros((copies, spec.action_size), np.float32)

    def explore(
        self, action: Array, copies: Array, env_steps: int, rng: np.random.Generator
    ) -> Array:
        config, noise = self._config, self._noise[copies]
        kick = rng.standard_normal(noise.shape, dtype=np.float32)
        drift = -config.theta * config.dt * noise
        noise = noise + drift + config.std.at(env_steps) * math.sqrt(config.dt) * kick
        self._noise[copies] = noise
        return np.clip(action + noise, -1, 1)

    def begin_episode(self, starting: Array) -> None:
        self._noise[starting] = 0

    def state(self) -> dict[str, Array]:
        return {"noise": self._noise.copy()}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        self._noise = arrays["noise"].copy()
