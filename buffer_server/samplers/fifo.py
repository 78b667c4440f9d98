"""First in, first out: the queue between actors and an on-policy learner.

Items come in the order of insertion. Each takes part in at most `max_times_sampled` selections and
is then used up. Unlike Reverb's queue, which names the oldest item several times in a row, one
selection never names an item twice: with `max_times_sampled = 2` the same batch comes twice.

The table never overwrites an item that is not used up: it lets the insert wait (see `consumes`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from buffer_server.draws import DrawRequest, Population, Selection
from buffer_server.frames import Column
from repertory.errors import UsageError
from repertory.settings import PartSettings
from repertory.types import Array

log = logging.getLogger(__name__)


class Fifo:
    """The oldest items that are not used up."""

    class Config(PartSettings):
        name: str = "fifo"
        max_times_sampled: int = Field(default=1, gt=0)

    consumes: ClassVar[bool] = True
    knows_provenance: ClassVar[bool] = False
    per_item: ClassVar[frozenset[str]] = frozenset({"times_sampled"})

    def __init__(self, config: Config, capacity: int) -> None:
        self.config = config
        self.capacity = capacity
        self._head = 0  # the oldest key that is not used up
        # By slot, and never rising from the head on: selections all start at the head.
        self._times_sampled = np.zeros(capacity, dtype=np.int64)

    def on_insert(
        self, keys: Array, columns: Mapping[str, Column], priorities: Array | None
    ) -> None:
        self._times_sampled[keys % self.capacity] = 0

    def on_evict(self, keys: Array) -> None:
        """Nothing to note: the head is never before the oldest live key."""

    def available(self, live: range) -> int:
        return live.stop - max(self._head, live.start)

    def population(self, request: DrawRequest, live: range) -> Population:
        return Population(self.available(live), float(self.available(live)))

    def select(self, request: DrawRequest, live: range, rng: np.random.Generator) -> Selection:
        size = request.size
        if size > self.available(live):
            raise UsageError(
                f"{size} items were asked for, but only {self.available(live)} are not used up"
            )
        head = max(self._head, live.start)
        keys = np.arange(head, head + size, dtype=np.int64)
        slots = keys % self.capacity
        self._times_sampled[slots] += 1
        used_up = self._times_sampled[slots] >= self.config.max_times_sampled
        self._head = head + int(used_up.sum())
        return Selection(keys)

    def update(self, keys: Array, priorities: Array) -> None:
        """Nothing to note: the order is that of insertion."""

    def shares(self, live: range) -> dict[int, tuple[int, int]]:
        return {}

    def arrays(self, live: range) -> dict[str, Array]:
        waiting = np.arange(max(self._head, live.start), live.stop, dtype=np.int64)
        return {"times_sampled": self._times_sampled[waiting % self.capacity]}

    def load_arrays(self, arrays: Mapping[str, Array], live: range) -> None:
        # Of the newest items, those that were not used up. Where several queues become one, an item
        # rather comes once too often: counts never rise from the head on.
        saved = np.minimum.accumulate(arrays["times_sampled"])
        kept = min(len(saved), len(live))
        if kept < len(saved):
            log.warning(
                "%d items that were not yet used up are dropped: only the newest %d are here",
                len(saved) - kept,
                kept,
            )
        # A lower max_times_sampled than that of the saved run may find items used up by now.
        counts = saved[len(saved) - kept :]
        used_up = int((counts >= self.config.max_times_sampled).sum())
        self._head = live.stop - kept + used_up
        waiting = np.arange(live.stop - kept, live.stop, dtype=np.int64)
        self._times_sampled[waiting % self.capacity] = counts
