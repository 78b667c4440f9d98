"""For scores that follow no law: Exp3.S, Auer, Cesa-Bianchi, Freund and Schapire 2002, section 8.

    p_i = (1 - gamma) w_i / sum w + gamma / K
    w_i <- w_i exp(gamma x_i / (p_i K)) + e alpha / K sum w,   x_i = 0 for those that did not act

x is the score, brought to [0, 1] by the lowest and the highest in the window. alpha lets everybody
keep a little weight, so that a member that becomes good is found again; 0 is plain Exp3.

p_i is the probability with which the director chose the member, so the minimum share is allowed for
(see `Outcome.probability`); what a person pinned teaches nothing about the others and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from repertory.settings import PartSettings
from services.strategies.strategy import Outcome
from services.strategies.windowed import Windowed, draw


class Exp3(Windowed):
    class Config(PartSettings):
        name: str = "exp3"
        gamma: float = Field(default=0.1, gt=0, le=1)  # exploration, and the pace of learning
        alpha: float = Field(default=1e-4, ge=0, lt=1)  # the paper's choice is 1 / choices in all
        window: int = Field(default=100, ge=1)  # scores whose range is [0, 1]

    def __init__(self, config: Config, members: Sequence[str]) -> None:
        super().__init__(members, config.window)
        self._gamma, self._alpha = config.gamma, config.alpha
        self._weights = dict.fromkeys(self.members, 1 / len(self.members))  # they sum to 1

    def choose(self, candidates: Sequence[str], rng: np.random.Generator) -> str:
        return draw(self.probabilities(candidates), rng)

    def probabilities(self, candidates: Sequence[str]) -> dict[str, float]:
        total = sum(self._weights[member] for member in candidates)
        evenly = self._gamma / len(candidates)
        if total == 0:  # without alpha a weight may fade away altogether
            return dict.fromkeys(candidates, 1 / len(candidates))
        return {
            member: (1 - self._gamma) * self._weights[member] / total + evenly
            for member in candidates
        }

    def observe(self, outcome: Outcome) -> None:
        super().observe(outcome)
        if outcome.score is None or outcome.probability is None:
            return
        members = len(self.members)
        summary = self.summary()
        spread = summary.high - summary.low
        gain = (outcome.score - summary.low) / spread if spread > 0 else 0.5
        self._weights[outcome.member] *= math.exp(
            self._gamma * gain / (outcome.probability * members)
        )
        shared = {
            member: weight + math.e * self._alpha / members
            for member, weight in self._weights.items()
        }
        total = sum(shared.values())
        self._weights = {member: weight / total for member, weight in shared.items()}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "weights": dict(self._weights)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self._weights = {member: float(state["weights"][member]) for member in self.members}
