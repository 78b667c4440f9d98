"""The policy's own actions: for policies that are stochastic themselves, as SAC's and PPO's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from repertory.settings import PartSettings
from repertory.specs import EnvSpec
from repertory.types import Array


class NoExploration:
    class Config(PartSettings):
        name: str = "none"

    def __init__(self, config: Config, spec: EnvSpec, copies: int) -> None:
        pass

    def explore(self, action: Array, env_steps: int, rng: np.random.Generator) -> Array:
        return action

    def begin_episode(self, starting: Array) -> None:
        pass

    def state(self) -> dict[str, Array]:
        return {}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        pass
