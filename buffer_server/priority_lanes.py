"""New priorities on their way to the shards that have the items.

They are sent without waiting, a bounded number at a time; those that wait to be sent go together in
one message. They soon grow old, so those for a shard that is away, or does not answer within the
patience, are dropped and counted: the items keep the priorities that they have.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from buffer_server import wire
from buffer_server.proto import replay_pb2 as pb
from buffer_server.remote_table import update_request
from buffer_server.sharded_config import ShardedConfig
from buffer_server.shards import Lane, Shard
from buffer_server.statuses import ReplayUnavailable, error_of
from buffer_server.streams import Stream
from repertory.errors import RepertoryError, ReplayTimeout
from repertory.types import Array

Update = tuple[Array, Array]  # keys [B] and their new priorities [B]

MOST_TOGETHER = 32  # updates in one message


class PriorityLane(Lane):
    """The way to one shard."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard)
        self.stream: Stream | None = None
        self.outgoing: queue.SimpleQueue[Update | None] = queue.SimpleQueue()
        self.under_way = 0
        self.together: deque[int] = deque()  # updates in each message that is under way
        self.sent_at = 0.0  # when it last answered, or got something after a silence


class PriorityLanes:
    """All shards'. Safe to share between threads."""

    def __init__(self, shards: Sequence[Shard], config: ShardedConfig) -> None:
        self._config = config
        self._changed = threading.Condition()
        self.lanes = [PriorityLane(shard) for shard in shards]
        self._failure: RepertoryError | None = None  # to be raised by the next call
        self._closed = False
        self.sent = 0
        self.dropped = 0

    def send(self, index: int, keys: Array, priorities: Array) -> None:
        """Raises what a shard has refused earlier."""
        lane, config = self.lanes[index], self._config
        with self._changed:
            self._raise_failure()
            now = time.monotonic()
            if lane.under_way >= config.updates_under_way and lane.usable(now):
                silent_in = lane.sent_at + config.patience_seconds - now
                self._changed.wait_for(
                    lambda: self._closed or lane.under_way < config.updates_under_way,
                    max(0.0, silent_in),
                )
                self._raise_failure()
                now = time.monotonic()
                if lane.under_way >= config.updates_under_way:
                    lane.stall(f"took no priorities for {now - lane.sent_at:.1f} s", now)
            if not lane.usable(now):
                self.dropped += 1
                return
            if lane.stream is None:
                self._open(lane)
            if not lane.under_way:
                lane.sent_at = now
            lane.under_way += 1
            self.sent += 1
            lane.outgoing.put((keys, priorities))

    def flush(self, timeout_seconds: float) -> None:
        """Returns when everything that was sent is answered."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._closed or not any(lane.under_way for lane in self.lanes),
                timeout_seconds,
            )
            self._raise_failure()
            if not done:
                silent = [lane.shard.address for lane in self.lanes if lane.under_way]
                raise ReplayTimeout(
                    f"within {timeout_seconds:g} s {', '.join(silent)} took not all priorities"
                )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for lane in self.lanes:
                if lane.stream is not None:
                    lane.stream.cancel()
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._closed:
            raise ReplayUnavailable("this client was closed: make another")

    def _open(self, lane: PriorityLane) -> None:
        outgoing: queue.SimpleQueue[Update | None] = queue.SimpleQueue()
        lane.outgoing, lane.together = outgoing, deque()

        def answered(raw: bytes) -> None:
            response = wire.parse(pb.UpdatePrioritiesResponse, raw)
            with self._changed:
                lane.answered()
                lane.sent_at = time.monotonic()
                lane.under_way -= lane.together.popleft()
                if response.HasField("refusal"):
                    refusal = response.refusal
                    self._failure = error_of(refusal.code, refusal.message, lane.shard.address)
                self._changed.notify_all()

        def ended(error: RepertoryError) -> None:
            outgoing.put(None)  # lets gRPC's own thread end
            with self._changed:
                if self._closed:
                    return
                lane.stream = None
                self.dropped += lane.under_way
                lane.under_way = 0
                lane.fail(error, time.monotonic())
                self._changed.notify_all()

        lane.stream = Stream(
            lane.shard.connection,
            "UpdatePrioritiesStream",
            self._messages(outgoing, lane.together),
            answered,
            ended,
        )

    def _messages(
        self, outgoing: queue.SimpleQueue[Update | None], together: deque[int]
    ) -> Iterator[bytes]:
        """What waits goes together: a shard takes long messages as easily as short ones, and where
        a key comes twice, the later priority counts there too."""
        while (update := outgoing.get()) is not None:
            updates = [update]
            while len(updates) < MOST_TOGETHER and not outgoing.empty():
                another = outgoing.get()
                if another is None:
                    return
                updates.append(another)
            together.append(len(updates))
            keys, priorities = (np.concatenate(parts) for parts in zip(*updates, strict=True))
            yield update_request(self._config.table, keys, priorities).SerializeToString()
