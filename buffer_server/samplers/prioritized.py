"""Proportional prioritised replay (Schaul et al., 2016, https://arxiv.org/abs/1511.05952).

    P(i) = m_i / sum_k m_k,   m_i = (p_i + epsilon)^alpha          (equation 1)
    w_i  = (N P(i))^-beta / max_j w_j, see `draws`                 (section 3.4)

New items get the largest priority seen so far. As in the paper, a batch is drawn in strata: one
item from each of B equal parts of the total mass. The largest weight is that of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from buffer_server.draws import DrawRequest, Population, Selection
from buffer_server.frames import Column
from buffer_server.samplers.sum_tree import SumTree
from repertory.errors import UsageError
from repertory.settings import PartSettings
from repertory.types import Array

# Sums of billions of such priorities are still far from the end of float64.
LARGEST_PRIORITY = float(np.finfo(np.float32).max)


class Prioritized:
    """Items in proportion to their priorities."""

    class Config(PartSettings):
        name: str = "prioritized"
        alpha: float = Field(default=0.6, ge=0.0, le=1.0)
        beta: float = Field(default=0.4, ge=0.0, le=1.0)
        beta_final: float = Field(default=1.0, ge=0.0, le=1.0)
        beta_steps: int = Field(default=0, ge=0)  # selections until beta_final; 0: beta stays
        # The lower limit keeps the ratio of any two masses, and so every weight, finite.
        epsilon: float = Field(default=1e-6, ge=1e-12, le=1.0)

    consumes: ClassVar[bool] = False
    knows_provenance: ClassVar[bool] = False
    per_item: ClassVar[frozenset[str]] = frozenset({"masses"})

    def __init__(self, config: Config, capacity: int) -> None:
        self.config = config
        self.capacity = capacity
        self._tree = SumTree(capacity)  # of the masses m, by slot
        self._max_priority = 1.0
        self._selections = 0

    @property
    def beta(self) -> float:
        """The exponent that the next selection uses."""
        config = self.config
        if config.beta_steps == 0:
            return config.beta
        progress = min(1.0, self._selections / config.beta_steps)
        return config.beta + progress * (config.beta_final - config.beta)

    def on_insert(
        self, keys: Array, columns: Mapping[str, Column], priorities: Array | None
    ) -> None:
        if priorities is None:
            self._set(keys, np.full(len(keys), self._max_priority))
        else:
            self.update(keys, priorities)

    def on_evict(self, keys: Array) -> None:
        self._tree.set(keys % self.capacity, np.zeros(len(keys)))

    def available(self, live: range) -> int:
        return len(live)

    def population(self, request: DrawRequest, live: range) -> Population:
        return Population(len(live), self._tree.total)

    def select(self, request: DrawRequest, live: range, rng: np.random.Generator) -> Selection:
        size, total = request.size, self._tree.total
        strata = (np.arange(size) + rng.random(size)) / size
        slots = self._tree.find(strata * total)
        keys = live.start + (slots - live.start) % self.capacity
        selection = Selection(keys, self._tree.get(slots) / total, self.beta)
        self._selections += 1
        return selection

    def update(self, keys: Array, priorities: Array) -> None:
        checked = _checked(priorities, len(keys))
        if len(checked):
            self._max_priority = max(self._max_priority, float(checked.max()))
            self._set(keys, checked)

    def shares(self, live: range) -> dict[int, tuple[int, int]]:
        return {}

    def arrays(self, live: range) -> dict[str, Array]:
        slots = np.arange(live.start, live.stop, dtype=np.int64) % self.capacity
        return {
            "masses": self._tree.get(slots),
            "alpha": np.asarray(self.config.alpha),
            "max_priority": np.asarray(self._max_priority),
            "selections": np.asarray(self._selections, dtype=np.int64),
        }

    def load_arrays(self, arrays: Mapping[str, Array], live: range) -> None:
        saved_alpha, masses = float(arrays["alpha"]), arrays["masses"]
        masses = masses[len(masses) - len(live) :]
        self._max_priority = float(arrays["max_priority"])
        self._selections = int(arrays["selections"])
        if saved_alpha != self.config.alpha:
            # Masses that were saved with alpha 0 are all 1: the priorities they had are unknown.
            masses = masses ** (self.config.alpha / saved_alpha) if saved_alpha else masses
        self._tree = SumTree(self.capacity)
        self._tree.set(np.arange(live.start, live.stop, dtype=np.int64) % self.capacity, masses)

    def _set(self, keys: Array, priorities: Array) -> None:
        masses = (priorities + self.config.epsilon) ** self.config.alpha
        self._tree.set(keys % self.capacity, masses)


def _checked(priorities: Array, count: int) -> Array:
    """[B] float64 priorities, all usable."""
    checked = np.asarray(priorities, dtype=np.float64)
    if checked.shape != (count,):
        raise UsageError(f"{count} items need priorities [{count}], got {list(checked.shape)}")
    bad = ~((checked >= 0) & (checked <= LARGEST_PRIORITY))  # nan compares false, so it is bad
    if bad.any():
        place = int(bad.argmax())
        raise UsageError(
            f"the priority {checked[place]} at place {place} is not a number from 0 to "
            f"{LARGEST_PRIORITY:.3g}: give absolute TD errors; "
            "nan and inf usually mean that the learner has diverged"
        )
    return checked
