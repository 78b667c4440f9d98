"""Uniform sampling with replacement, as in the replay of DQN (Mnih et al., 2015).

Keys are consecutive, so drawing integers is all there is: no work per stored item.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from buffer_server.samplers.protocol import Selection
from repertory.settings import PartSettings
from repertory.types import Array


class Uniform:
    """Every live item with the same probability."""

    class Config(PartSettings):
        name: str = "uniform"

    consumes: ClassVar[bool] = False

    def __init__(self, config: Config, capacity: int) -> None:
        self.config = config
        self.capacity = capacity

    def on_insert(self, keys: Array, priorities: Array | None) -> None:
        """Nothing to note: priorities mean nothing here."""

    def available(self, live: range) -> int:
        return len(live)

    def select(self, size: int, live: range, rng: np.random.Generator) -> Selection:
        keys = rng.integers(live.start, live.stop, size=size, dtype=np.int64)
        return Selection(keys, np.ones(size, dtype=np.float32))

    def update(self, keys: Array, priorities: Array) -> None:
        """Nothing to note: a learner need not know which sampler it feeds."""

    def arrays(self, live: range) -> dict[str, Array]:
        return {}

    def load_arrays(self, arrays: Mapping[str, Array], live: range) -> None:
        """There is no state."""
