"""Inserts on their way to all shards: many under way at once, each in one shard in the end.

`InsertRouter` decides; here are the streams it sends by, and the callers who wait. A shard that
acknowledges nothing within the patience gets no more, and when it is back, first what it has not
acknowledged. Inserts keep their order on the way to one shard, unless one of them waited for the
limiter so long that it was sent again: others may then have passed it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import grpc

from buffer_server import wire
from buffer_server.insert_router import InsertRouter, InsertStatistics, Parcel
from buffer_server.proto import replay_pb2 as pb
from buffer_server.sharded_config import ShardedConfig
from buffer_server.shards import Lane, Shard
from buffer_server.statuses import (
    ReplayDenied,
    ReplayMismatch,
    ReplayOverload,
    ReplayUnavailable,
    UnknownTable,
    error_of,
)
from buffer_server.streams import Stream
from repertory.errors import RepertoryError, ReplayTimeout

_DEADLINE: int = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
# Statuses of a stream that speak of the shard, not of the insert that it was at.
_OF_THE_SHARD = (
    ReplayUnavailable,
    ReplayTimeout,
    ReplayOverload,
    ReplayDenied,
    ReplayMismatch,
    UnknownTable,
)


class InsertLane(Lane):
    """The way to one shard."""

    def __init__(self, shard: Shard, lock: threading.Lock) -> None:
        super().__init__(shard)
        self.work = threading.Condition(lock)  # there is something to send, or the stream is over
        self.stream: Stream | None = None
        self.stream_number = 0
        self.reason = ""  # what the limiter said
        self.sent_at = 0.0  # when the stream last answered, or got something after a silence
        self.heard_at = 0.0  # when it last answered, or got something after all was acknowledged


class InsertLanes:
    """All shards'. Safe to share between threads."""

    def __init__(self, shards: Sequence[Shard], config: ShardedConfig) -> None:
        self._config = config
        first = config.first_shard
        if first is None:  # actors should not march in step
            first = random.SystemRandom().randrange(len(shards))
        self._router = InsertRouter(
            len(shards), first, config.insert_window_bytes, config.queue_bytes
        )
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # for callers who wait
        self.lanes = [InsertLane(shard, self._lock) for shard in shards]
        self._failure: RepertoryError | None = None  # to be raised by the next call
        self._closed = False
        self._look_around(time.monotonic())

    def submit(self, body: bytes, timeout_seconds: float) -> bool:
        """Whether it was taken. Raises what went wrong with an earlier insert that was refused."""
        waits = self._config.insert_window_bytes == 0
        parcel = Parcel(body, awaited=waits)
        deadline = time.monotonic() + timeout_seconds
        with self._lock:
            self._raise_failure()
            if not self._router.has_room(len(body)):
                if self._config.when_full == "drop":
                    self._router.drop()
                    return False
                if not self._wait(lambda: self._router.has_room(len(body)), deadline):
                    raise self._timeout(timeout_seconds, "this one was not taken")
            self._router.accept(parcel)
            self._serve()
            if waits:
                self._await(parcel, deadline, timeout_seconds)
        return True

    def flush(self, timeout_seconds: float) -> None:
        """Returns when everything is acknowledged."""
        with self._lock:
            if not self._wait(lambda: not self._router.pending, time.monotonic() + timeout_seconds):
                raise self._timeout(timeout_seconds, "they stay under way")

    def turn(self) -> None:
        """By the watch, every so often: who can be used now, and who was given up."""
        now = time.monotonic()
        with self._lock:
            if self._closed:
                return
            self._look_around(now)
            self._abandon(now)
            self._serve()

    def statistics(self) -> InsertStatistics:
        with self._lock:
            return self._router.statistics()

    def close(self) -> int:
        """At once; how many inserts were not acknowledged."""
        with self._lock:
            self._closed = True
            for lane in self.lanes:
                self._end_stream(lane)
            self._changed.notify_all()
            return self._router.pending

    def _await(self, parcel: Parcel, deadline: float, timeout_seconds: float) -> None:
        try:
            done = self._wait(lambda: parcel.settled, deadline)
        finally:
            parcel.awaited = False
        if parcel.error is not None:
            raise parcel.error
        if not done:
            withdrawn = self._router.withdraw(parcel)
            fate = "this one was not sent" if withdrawn else "this one may still be done"
            raise self._timeout(timeout_seconds, fate)

    def _wait(self, ready: Callable[[], bool], deadline: float) -> bool:
        remaining = max(0.0, deadline - time.monotonic())
        done = self._changed.wait_for(
            lambda: self._failure is not None or self._closed or ready(), remaining
        )
        self._raise_failure()
        return done

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._closed:
            raise ReplayUnavailable("this client was closed: make another")

    def _look_around(self, now: float) -> None:
        """Which lanes can be used now."""
        patience = self._config.patience_seconds
        for lane, routed in zip(self.lanes, self._router.lanes, strict=True):
            if lane.stream is not None and routed.sent and now - lane.sent_at >= patience:
                lane.stall(f"acknowledged nothing for {now - lane.sent_at:.1f} s", now)
            table = lane.shard.table
            routed.max_message_bytes = 0 if table is None else table.max_message_bytes
            self._router.set_usable(lane.index, lane.usable(now))

    def _serve(self) -> None:
        """Opens streams where there is something to send."""
        if self._closed:
            return
        for lane, routed in zip(self.lanes, self._router.lanes, strict=True):
            if not routed.pending or not routed.usable:
                continue
            if lane.stream is None:
                self._open(lane)
            elif routed.to_send:
                lane.work.notify()

    def _open(self, lane: InsertLane) -> None:
        lane.stream_number += 1
        self._router.begin_stream(lane.index)
        lane.stream = Stream(
            lane.shard.connection,
            "InsertStream",
            self._requests(lane, lane.stream_number),
            partial(self._hear, lane, lane.stream_number),
            partial(self._ended, lane, lane.stream_number),
        )

    def _requests(self, lane: InsertLane, stream_number: int) -> Iterator[bytes]:
        """What gRPC sends, taken when it can be sent: what was not taken has not left."""
        routed = self._router.lanes[lane.index]
        while True:
            with self._lock:
                lane.work.wait_for(lambda: lane.stream_number != stream_number or routed.to_send)
                if lane.stream_number != stream_number:
                    return
                now = time.monotonic()
                if not routed.sent:
                    lane.sent_at = now
                if not next(iter(routed.pending.values())).left:
                    lane.heard_at = now
                raw = self._router.next_request(lane.index)
            assert raw is not None
            yield raw

    def _hear(self, lane: InsertLane, stream_number: int, raw: bytes) -> None:
        response = wire.parse(pb.InsertResponse, raw)
        with self._lock:
            lane.answered()
            lane.sent_at = lane.heard_at = time.monotonic()
            self._router.set_usable(lane.index, lane.usable(lane.heard_at))
            if not response.HasField("refusal"):
                lane.reason = ""
                self._router.acknowledge(
                    lane.index, response.sequence, response.items, response.previous_sequence
                )
            elif response.refusal.code == _DEADLINE:
                lane.reason = response.refusal.message
                # Back-pressure: nothing is dropped, the caller waits.
                if lane.stream_number == stream_number:
                    self._router.send_again(lane.index, response.sequence)
            else:
                refusal = response.refusal
                error = error_of(refusal.code, refusal.message, lane.shard.address)
                self._refuse(lane, response.sequence, error)
            self._serve()
            self._changed.notify_all()

    def _ended(self, lane: InsertLane, stream_number: int, error: RepertoryError) -> None:
        with self._lock:
            if lane.stream_number != stream_number:
                return
            self._end_stream(lane)
            lane.fail(error, time.monotonic())
            sent = self._router.lanes[lane.index].sent
            if sent and not isinstance(error, _OF_THE_SHARD):
                # Requests are served in order, so it was at the first of them.
                self._refuse(lane, next(iter(sent)), error)
            self._router.set_usable(lane.index, False)
            self._serve()
            self._changed.notify_all()

    def _refuse(self, lane: InsertLane, sequence: int, error: RepertoryError) -> None:
        parcel = self._router.refuse(lane.index, sequence, error)
        if parcel is not None and not parcel.awaited:
            self._failure = error

    def _abandon(self, now: float) -> None:
        """Gives up on shards that were not heard of for too long, if others are there."""
        seconds = self._config.abandon_seconds
        if seconds is None:
            return
        for lane, routed in zip(self.lanes, self._router.lanes, strict=True):
            others = any(other.usable for other in self._router.lanes if other is not routed)
            silent = not routed.usable and now - lane.heard_at >= seconds
            if routed.pending and silent and others:
                self._end_stream(lane)
                self._router.abandon(lane.index)

    def _end_stream(self, lane: InsertLane) -> None:
        stream, lane.stream = lane.stream, None
        lane.stream_number += 1
        lane.work.notify_all()
        if stream is not None:
            stream.cancel()

    def _timeout(self, timeout_seconds: float, fate: str) -> ReplayTimeout:
        now, router = time.monotonic(), self._router
        reasons = "; ".join(
            f"{lane.shard.address}: {self._why_not(lane, now)}" for lane in self.lanes
        )
        return ReplayTimeout(
            f"within {timeout_seconds:g} s {router.pending} inserts ({router.pending_bytes} bytes) "
            f"were still not acknowledged, {fate}: {reasons}"
        )

    def _why_not(self, lane: InsertLane, now: float) -> str:
        if (trouble := lane.trouble) is not None:
            return f"away for {now - trouble.since:.1f} s: {trouble.reason}"
        return lane.reason or f"{len(self._router.lanes[lane.index].pending)} under way"
