"""Discounted Thompson sampling with Gaussian beliefs: Qi, Guo and Zhu 2023, arXiv 2305.10718.

    theta_i ~ N(mean_i, s^2 / n_i),   whoever has the highest theta acts

mean_i and n_i are over the member's scores, each weighted by discount^age, where the age is counted
in scores of anybody: who is not seen for a while is believed less and less, and tried again.

Where we leave the paper: its rewards have deviation 1, ours the s of all weighted scores, so that
scaling or shifting them changes no choice. Scores that weigh less than a thousandth are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from repertory.settings import PartSettings
from services.strategies.windowed import Windowed, best

LIGHTEST = 1e-3


class Thompson(Windowed):
    class Config(PartSettings):
        name: str = "thompson"
        # As if the newest 1 / (1 - discount) scores counted.
        discount: float = Field(default=0.98, gt=0, le=0.9999)

    def __init__(self, config: Config, members: Sequence[str]) -> None:
        longest = math.ceil(math.log(LIGHTEST) / math.log(config.discount))
        super().__init__(members, longest, config.discount)

    def choose(self, candidates: Sequence[str], rng: np.random.Generator) -> str:
        untried = self.to_try(candidates, rng)
        if untried is not None:
            return untried
        summary = self.summary()
        known = self.known(candidates)
        noise = rng.standard_normal(len(known))
        return best(
            {
                member: summary.means[member]
                + summary.deviation / math.sqrt(summary.counts[member]) * float(draw)
                for member, draw in zip(known, noise, strict=True)
            },
            rng,
        )
