"""One policy of the portfolio, as a rollout plays it: its weights, how it explores, when it begins.

A rollout has one player for each learner of the run. Which of them acts in which copy of the
environment is said by a `Casting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repertory.policy_memory import PolicyMemory
from repertory.protocols import Exploration, Policy
from repertory.specs import EnvSpec
from repertory.types import Acted, Array


@dataclass(slots=True)
class Player:
    name: str
    policy_id: int  # its place in the portfolio
    policy: Policy
    exploration: Exploration
    spec: EnvSpec
    random_steps: int = 0  # of the whole run: until then its actions are uniformly random
    version: int = 0  # of the weights
    memory: PolicyMemory = field(init=False)

    def __post_init__(self) -> None:
        self.memory = PolicyMemory(self.policy)

    def begin(self, starting: Array) -> None:
        """`starting` [B] marks the copies where it begins to act, in a new episode or in one where
        another acted before: nothing is carried over.
        """
        self.exploration.begin_episode(starting)
        self.memory.begin(starting)

    def act(
        self, observation: Array, copies: Array, env_steps: int, rng: np.random.Generator
    ) -> Acted:
        """What it does in the copies with these indices [K], where it sees `observation` [K, ...].

        There are no extras while its actions are random.
        """
        if env_steps < self.random_steps:
            return Acted(self.spec.random_actions(len(copies), rng))
        acted = self.memory.act(observation, rng, copies=copies, env_steps=env_steps)
        return Acted(
            self.exploration.explore(acted.action, copies, env_steps, rng), dict(acted.extras)
        )

    def state(self) -> dict[str, Any]:
        """All but the weights, which are the learner's."""
        return {
            "version": self.version,
            "exploration": self.exploration.state(),
            "memory": self.memory.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.version = state["version"]
        self.exploration.load_state(state["exploration"])
        self.memory.load_state(state["memory"])


@dataclass(frozen=True, slots=True)
class Turn:
    """What one player did in one step, in those of the copies where it acts."""

    player: int  # its index among the players of the rollout
    copies: Array  # [K] indices, ascending
    acted: Acted
