"""With probability epsilon anybody, else whoever has the best mean of late.

The oldest answer to the question (Sutton and Barto, 2018, section 2.2), over a window. Its price is
known beforehand: a share epsilon (K - 1) / K of all choices goes to the others for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from repertory.settings import PartSettings
from services.strategies.windowed import Windowed, best, pick


class EpsilonGreedy(Windowed):
    class Config(PartSettings):
        name: str = "epsilon_greedy"
        epsilon: float = Field(default=0.1, ge=0, le=1)
        window: int = Field(default=100, ge=1)  # scores of all members together

    def __init__(self, config: Config, members: Sequence[str]) -> None:
        super().__init__(members, config.window)
        self._epsilon = config.epsilon

    def choose(self, candidates: Sequence[str], rng: np.random.Generator) -> str:
        untried = self.to_try(candidates, rng)
        if untried is not None:
            return untried
        if rng.random() < self._epsilon:
            return pick(candidates, rng)
        means = self.summary().means
        return best({member: means[member] for member in self.known(candidates)}, rng)
