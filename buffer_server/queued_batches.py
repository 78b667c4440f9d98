"""Batches collected from all shards of a queue: what each has, until there is enough.

Items of a queue are used up when they are sent, so nothing that came is ever dropped: what is left
over, or came for a batch that timed out, is in the next one. Nothing is read ahead either, whatever
`prefetch` says: actors would then run further ahead of the learner than the capacity allows. Shards
that are known to have items are asked for what is missing, in proportion; while none is, each is
asked for its share, at least one item. Only what is on the way when a stream breaks, or when the
client is closed, is lost. One caller at a time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from buffer_server.allocation import allocate
from buffer_server.connection import GRACE_SECONDS
from buffer_server.draws import DrawRequest, Population
from buffer_server.joining import Piece, join
from buffer_server.remote_table import RemoteTable
from buffer_server.sample_lanes import Answer, SampleLane, SampleLanes
from buffer_server.sharded_config import ShardedConfig
from buffer_server.shards import Shard
from repertory.errors import RepertoryError, ReplayTimeout
from repertory.types import Sample

# What one shard was asked for in vain is asked of another after this time.
TURN_SECONDS = 0.05


class QueuedBatches:
    """For tables whose items are used up."""

    def __init__(self, shards: Sequence[Shard], table: RemoteTable, config: ShardedConfig) -> None:
        self._table = table
        self._consumer = config.consumer
        self._patience = config.patience_seconds
        self._lanes = SampleLanes[int](shards)  # asked for so many items
        self._rng = np.random.default_rng(config.seed)
        self._stock: deque[Piece] = deque()
        self._stocked_items = 0
        self._call = 0
        self._asked_in = [0] * len(shards)  # the last call of `take` that asked each shard
        self.taken = 0
        self.refilled = 0  # nothing is planned

    @property
    def lanes(self) -> Sequence[SampleLane[int]]:
        return self._lanes.lanes

    def take(self, size: int, deadline: float) -> Sample:
        """The next `size` items, oldest first for each shard."""
        self._call += 1
        self._receive(0.0)  # shards are not silent while their answers wait for us
        while self._stocked_items < size:
            now = time.monotonic()
            self._ask(size, now, min(TURN_SECONDS, deadline - now))
            expected = any(lane.waits for lane in self._lanes.usable(now))
            if now >= deadline and (now >= deadline + GRACE_SECONDS or not expected):
                raise ReplayTimeout(
                    f"only {self._stocked_items} of {size} items came, which are kept: "
                    f"{self._lanes.why_not(now)}"
                )
            self._receive(TURN_SECONDS)
        self.taken += 1
        return join(self._cut(size), self._table.signature)

    def wake(self) -> None:
        self._lanes.wake()

    def close(self) -> None:
        self._lanes.close()

    def _ask(self, size: int, now: float, wait_seconds: float) -> None:
        """Shards that are not asked already, for what is missing."""
        for lane in self.lanes:
            if lane.waits and now - lane.progress_at >= self._patience:
                lane.stall(f"gave no sample for {now - lane.progress_at:.1f} s", now)
        usable = self._lanes.usable(now)
        asked = sum(ask or 0 for lane in usable for ask in lane.expected)
        missing = size - self._stocked_items - asked
        idle = [
            lane
            for lane in usable
            # After the deadline, once: what an earlier call was refused may be there by now.
            if not lane.waits and (wait_seconds > 0 or self._asked_in[lane.index] != self._call)
        ]
        if missing <= 0 or not idle:
            return
        stocked = [lane for lane in idle if lane.shard.population.items]
        lanes = stocked or idle
        populations = [lane.shard.population for lane in lanes]
        sizes = allocate(populations, missing, 0, self._rng).sizes
        for lane, share in zip(lanes, sizes, strict=True):
            table = lane.shard.table
            assert table is not None  # it is usable
            share = share if stocked else max(1, share)
            if share:
                # A queue takes no request for more than half of its capacity.
                share = min(share, (table.capacity + 1) // 2)
                draw = DrawRequest(share, partial=True, consumer=self._consumer)
                request = self._table.sample_request(draw, max(0.0, wait_seconds))
                lane.ask(share, request.SerializeToString(), now)
                self._asked_in[lane.index] = self._call

    def _receive(self, timeout_seconds: float) -> None:
        errors = [self._note(answer) for answer in self._lanes.receive(timeout_seconds)]
        for error in errors:
            if error is not None:
                raise error

    def _note(self, answer: Answer[int]) -> RepertoryError | None:
        """Puts what came into stock, or says what is wrong with it."""
        shard, now = answer.lane.shard, time.monotonic()
        if answer.held:
            shard.weigh(Population(0, 0.0), now)
        if answer.response is not None:
            try:
                draw = self._table.read_draw(answer.response, writable=False)
            except RepertoryError as unreadable:
                return unreadable
            count = len(draw.selection.keys)
            self._stock.append(Piece(shard.index, draw))
            self._stocked_items += count
            left = max(0, draw.population.items - count)
            shard.weigh(Population(left, float(left)), now)
        return answer.error

    def _cut(self, size: int) -> list[Piece]:
        """Takes the oldest pieces out of stock."""
        self._stocked_items -= size
        pieces = []
        while size:
            piece = self._stock.popleft()
            if len(piece) > size:
                piece, rest = piece.cut(size)
                self._stock.appendleft(rest)
            size -= len(piece)
            pieces.append(piece)
        return pieces
