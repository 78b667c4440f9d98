"""A wheel whose sectors follow UCB scores: the resource manager of CERL, Khadka et al. 2019.

    u_i = v_i + c sqrt(log(t) / n_i),     p_i ~ exp(u_i / temperature)

v_i is the member's mean, brought to [0, 1] by the lowest and the highest score in the window.

Where we leave the paper: counts and means are over a window, where CERL's are of all time although
returns drift; and its sectors are the scores themselves, with which (c = 0.9, a window of 100) a
member that always fails keeps a quarter of all choices beside one that never does. A member without
a score gets the best one's u.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from repertory.settings import PartSettings
from services.strategies.windowed import Windowed, draw


class Roulette(Windowed):
    class Config(PartSettings):
        name: str = "roulette"
        window: int = Field(default=100, ge=1)  # scores of all members together
        exploration: float = Field(default=0.3, ge=0)  # c
        temperature: float = Field(default=0.1, gt=0)  # low: nearly always the highest score

    def __init__(self, config: Config, members: Sequence[str]) -> None:
        super().__init__(members, config.window)
        self._exploration = config.exploration
        self._temperature = config.temperature

    def choose(self, candidates: Sequence[str], rng: np.random.Generator) -> str:
        return draw(self.probabilities(candidates), rng)

    def probabilities(self, candidates: Sequence[str]) -> dict[str, float]:
        scores = {member: self._ucb_score(member) for member in self.known(candidates)}
        highest = max(scores.values(), default=0.0)
        sectors = {
            member: math.exp((scores.get(member, highest) - highest) / self._temperature)
            for member in candidates
        }
        total = sum(sectors.values())
        return {member: sector / total for member, sector in sectors.items()}

    def _ucb_score(self, member: str) -> float:
        summary = self.summary()
        spread = summary.high - summary.low
        value = (summary.means[member] - summary.low) / spread if spread > 0 else 0.0
        bonus = math.sqrt(math.log(summary.total) / summary.counts[member])
        return value + self._exploration * bonus
