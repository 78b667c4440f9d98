"""One learner's `Replay` of a table that several share: a floor of its own experience, an age.

For a table in this process or one shard of it; `ShardedReplay` has the same wishes in its settings.
"""

from __future__ import annotations

import math
from typing import Protocol

from buffer_server.draws import Draw, DrawRequest
from repertory.protocols import Replay
from repertory.types import Array, Sample, TransitionBatch


class Draws(Replay, Protocol):
    """A `Table`, or a `ReplayClient` of one."""

    def draw(self, request: DrawRequest, *, timeout_seconds: float) -> Draw: ...


class LearnerView:
    """`own_policy` is the learner's place in the portfolio."""

    def __init__(
        self, table: Draws, own_policy: int, own_share: float, max_age: int | None
    ) -> None:
        self._table = table
        self._own_policy = own_policy
        self._own_share = own_share
        self._max_age = max_age

    def insert(self, batch: TransitionBatch, priorities: Array | None = None) -> int:
        return self._table.insert(batch, priorities)

    def sample(self, size: int, *, timeout_seconds: float) -> Sample:
        request = DrawRequest(
            size,
            own_items=math.ceil(self._own_share * size),
            own_policy=self._own_policy,
            max_age=self._max_age,
        )
        return self._table.draw(request, timeout_seconds=timeout_seconds).sample()

    def update_priorities(self, keys: Array, priorities: Array) -> None:
        self._table.update_priorities(keys, priorities)
