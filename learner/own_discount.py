"""A `Replay` whose one-step discounts become those of this learner's own gamma.

Learners of different gamma may share a table of one-step items (`repertory.table_layout`): all but
`discount` is the same for them, and that is gamma, or 0 where the episode terminated.
"""

from __future__ import annotations

from dataclasses import replace

from repertory.protocols import Replay
from repertory.table_layout import own_discount
from repertory.types import Array, Sample, TransitionBatch


class OwnDiscount:
    def __init__(self, replay: Replay, gamma: float) -> None:
        self._replay = replay
        self._gamma = gamma

    def insert(self, batch: TransitionBatch, priorities: Array | None = None) -> int:
        return self._replay.insert(batch, priorities)

    def sample(self, size: int, *, timeout_seconds: float) -> Sample:
        sample = self._replay.sample(size, timeout_seconds=timeout_seconds)
        discount = own_discount(sample.batch.discount, self._gamma)
        return replace(sample, batch=replace(sample.batch, discount=discount))

    def update_priorities(self, keys: Array, priorities: Array) -> None:
        self._replay.update_priorities(keys, priorities)
