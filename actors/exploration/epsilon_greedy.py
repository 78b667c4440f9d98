"""With probability epsilon a uniformly random action, else the policy's: for discrete actions."""

from __future__ import annotations

import numpy as np

from actors.exploration.memoryless import Memoryless
from repertory.errors import UsageError
from repertory.schedule import Schedule
from repertory.settings import PartSettings
from repertory.specs import EnvSpec
from repertory.types import Array


class EpsilonGreedy(Memoryless):
    class Config(PartSettings):
        name: str = "epsilon_greedy"
        epsilon: Schedule = Schedule(start=1.0, final=0.05, steps=10_000)

    def __init__(self, config: Config, spec: EnvSpec, copies: int) -> None:
        if spec.action_kind == "continuous":
            raise UsageError(
                f"exploration epsilon_greedy needs discrete actions, {spec.env_id} has continuous "
                "ones: use gaussian or ornstein_uhlenbeck"
            )
        self._epsilon = config.epsilon
        self._spec = spec

    def explore(
        self, action: Array, copies: Array, env_steps: int, rng: np.random.Generator
    ) -> Array:
        random = rng.random(len(action)) < self._epsilon.at(env_steps)
        random_action = self._spec.random_actions(len(action), rng)
        return np.where(random.reshape(-1, *[1] * (action.ndim - 1)), random_action, action)
