"""Uniform sampling with replacement, as in the replay of DQN (Mnih et al., 2015).

Keys are consecutive, so drawing integers is all there is: no work per stored item.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from buffer_server.draws import DrawRequest, Population, Selection
from buffer_server.frames import Column
from repertory.settings import PartSettings
from repertory.types import Array


class Uniform:
    """Every live item with the same probability."""

    class Config(PartSettings):
        name: str = "uniform"

    consumes: ClassVar[bool] = False
    knows_provenance: ClassVar[bool] = False
    per_item: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: Config, capacity: int) -> None:
        self.config = config
        self.capacity = capacity

    def on_insert(
        self, keys: Array, columns: Mapping[str, Column], priorities: Array | None
    ) -> None:
        """Nothing to note: priorities mean nothing here."""

    def on_evict(self, keys: Array) -> None:
        """Nothing to note: only live keys are drawn."""

    def available(self, live: range) -> int:
        return len(live)

    def population(self, request: DrawRequest, live: range) -> Population:
        return Population(len(live), float(len(live)))

    def select(self, request: DrawRequest, live: range, rng: np.random.Generator) -> Selection:
        return Selection(rng.integers(live.start, live.stop, size=request.size, dtype=np.int64))

    def update(self, keys: Array, priorities: Array) -> None:
        """Nothing to note: a learner need not know which sampler it feeds."""

    def shares(self, live: range) -> dict[int, tuple[int, int]]:
        return {}

    def arrays(self, live: range) -> dict[str, Array]:
        return {}

    def load_arrays(self, arrays: Mapping[str, Array], live: range) -> None:
        """There is no state."""
