"""The policy's own actions: for policies that are stochastic themselves, as SAC's and PPO's."""

from __future__ import annotations

import numpy as np

from actors.exploration.memoryless import Memoryless
from repertory.settings import PartSettings
from repertory.specs import EnvSpec
from repertory.types import Array


class NoExploration(Memoryless):
    class Config(PartSettings):
        name: str = "none"

    def __init__(self, config: Config, spec: EnvSpec, copies: int) -> None:
        pass

    def explore(
        self, action: Array, copies: Array, env_steps: int, rng: np.random.Generator
    ) -> Array:
        return action
