"""Everybody with the same probability: what the others are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from repertory.settings import PartSettings
from services.strategies.windowed import Windowed, pick


class Uniform(Windowed):
    class Config(PartSettings):
        name: str = "uniform"
        window: int = Field(default=100, ge=1)  # scores behind the estimates that people see

    def __init__(self, config: Config, members: Sequence[str]) -> None:
        super().__init__(members, config.window)

    def choose(self, candidates: Sequence[str], rng: np.random.Generator) -> str:
        return pick(candidates, rng)

    def probabilities(self, candidates: Sequence[str]) -> dict[str, float]:
        return dict.fromkeys(candidates, 1 / len(candidates))
