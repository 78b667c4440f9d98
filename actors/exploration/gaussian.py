"""Independent Gaussian noise on continuous actions, as DDPG and TD3 use it.

The deviation is in units of half the action range: 0.1 moves an action in [-2, 2] by about 0.2.
"""

from __future__ import annotations

import numpy as np

from actors.exploration.memoryless import Memoryless
from repertory.errors import UsageError
from repertory.schedule import Schedule
from repertory.settings import PartSettings
from repertory.specs import EnvSpec
from repertory.types import Array


class Gaussian(Memoryless):
    class Config(PartSettings):
        name: str = "gaussian"
        std: Schedule = Schedule(start=0.1)

    def __init__(self, config: Config, spec: EnvSpec, copies: int) -> None:
        require_continuous(spec, "gaussian")
        self._std = config.std

    def explore(
        self, action: Array, copies: Array, env_steps: int, rng: np.random.Generator
    ) -> Array:
        noise = self._std.at(env_steps) * rng.standard_normal(action.shape, dtype=np.float32)
        return np.clip(action + noise, -1, 1, dtype=np.float32)


def require_continuous(spec: EnvSpec, name: str) -> None:
    if spec.action_kind != "continuous":
        raise UsageError(
            f"exploration {name} needs continuous actions, {spec.env_id} has {spec.action_kind} "
            "ones: use epsilon_greedy"
        )
