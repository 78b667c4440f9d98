"""A fresh bandit in every epoch: ESBAS, Laroche and Féraud 2018, arXiv 1701.08810.

    index_i = mean_i + 2 s sqrt(xi log(t) / n_i)        over the scores of this epoch

Policies change while they learn, so at the end of an epoch all is forgotten; the next epoch is
twice as long, since learning slows down. Lengths are counted in scores.

Where we leave the paper: it freezes all policies during an epoch, we do not; its epochs double
for ever, ours up to `longest_epoch`, so that who becomes good late is found in good time; and s,
the deviation of the epoch's scores, makes it indifferent to scale, as in `ucb`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from repertory.settings import PartSettings
from services.strategies.strategy import Outcome
from services.strategies.windowed import Windowed


class Epochal(Windowed):
    class Config(PartSettings):
        name: str = "epochal"
        first_epoch: int = Field(default=8, ge=1)  # scores of all members together
        longest_epoch: int = Field(default=512, ge=1, le=100_000)
        exploration: float = Field(default=0.25, ge=0)  # xi; 2 is UCB1's

        @model_validator(mode="after")
        def _first_fits(self) -> Epochal.Config:
            if self.first_epoch > self.longest_epoch:
                raise ValueError(
                    f"first_epoch = {self.first_epoch} is longer than longest_epoch = "
                    f"{self.longest_epoch}: raise longest_epoch or lower first_epoch"
                )
            return self

    def __init__(self, config: Config, members: Sequence[str]) -> None:
        super().__init__(members, config.longest_epoch)
        self._config = config
        self._length = config.first_epoch

    def choose(self, candidates: Sequence[str], rng: np.random.Generator) -> str:
        return self.most_promising(candidates, rng)

    def half_width(self, member: str) -> float:
        summary = self.summary()
        rounds = summary.total + sum(self._under_way.values())
        tried = summary.counts[member] + self._under_way[member]
        bonus = math.sqrt(self._config.exploration * math.log(rounds) / tried)
        return 2 * summary.deviation * bonus

    def observe(self, outcome: Outcome) -> None:
        super().observe(outcome)
        if len(self._scores) >= self._length:
            self._scores.clear()
            self._summary = None
            self._length = min(2 * self._length, self._config.longest_epoch)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "length": self._length}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self._length = int(state["length"])
