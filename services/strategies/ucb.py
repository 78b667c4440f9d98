"""Optimism over a window: SW-UCB, Garivier and Moulines 2011, arXiv 0805.3415.

    index_i = mean_i + 2 s sqrt(xi log(min(t, tau)) / n_i)

over the newest tau scores, n_i of them the member's; whoever has the highest index acts. A member
without a score in the window is tried first.

Where we leave the paper: its rewards lie in [0, B] and B stands where we have 2 s, s being the
deviation of all scores in the window. Nobody knows B of an environment's returns. For scores in an
interval 2 s is at most its length, with equality for a fair coin; and scaling or shifting all
scores changes no choice. Choices under way count in n_i and t, since many are handed out at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from repertory.settings import PartSettings
from services.strategies.windowed import Windowed


class UCB(Windowed):
    class Config(PartSettings):
        name: str = "ucb"
        window: int = Field(default=100, ge=1)  # tau: scores of all members together
        exploration: float = Field(default=0.6, ge=0)  # xi; the paper's bound wants more than 0.5

    def __init__(self, config: Config, members: Sequence[str]) -> None:
        super().__init__(members, config.window)
        self._window = config.window
        self._exploration = config.exploration

    def choose(self, candidates: Sequence[str], rng: np.random.Generator) -> str:
        return self.most_promising(candidates, rng)

    def half_width(self, member: str) -> float:
        summary = self.summary()
        rounds = min(summary.total + sum(self._under_way.values()), self._window)
        tried = summary.counts[member] + self._under_way[member]
        return 2 * summary.deviation * math.sqrt(self._exploration * math.log(rounds) / tried)
