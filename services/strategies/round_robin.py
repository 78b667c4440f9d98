"""Everybody in turn, in the order of the portfolio; who is benched is passed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from repertory.settings import PartSettings
from services.strategies.windowed import Windowed


class RoundRobin(Windowed):
    class Config(PartSettings):
        name: str = "round_robin"
        window: int = Field(default=100, ge=1)  # scores behind the estimates that people see

    exact: ClassVar[bool] = True

    def __init__(self, config: Config, members: Sequence[str]) -> None:
        super().__init__(members, config.window)
        self._next = 0  # a place in the portfolio

    def choose(self, candidates: Sequence[str], rng: np.random.Generator) -> str:
        places = len(self.members)
        while self.members[self._next] not in candidates:
            self._next = (self._next + 1) % places
        chosen = self.members[self._next]
        self._next = (self._next + 1) % places
        return chosen

    def state(self) -> dict[str, Any]:
        return {**super().state(), "next": self._next}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self._next = int(state["next"])
