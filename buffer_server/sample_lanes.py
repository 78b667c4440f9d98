"""What was asked of each shard's `SampleStream` and is still to come.

A shard answers in the order of asking, so each lane keeps what it was asked in a line. Answers of
all shards arrive in one queue, and whoever takes a batch (`planned_batches`, `queued_batches`)
reads them: nothing here happens behind its back. One caller at a time.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import grpc

from buffer_server import wire
from buffer_server.connection import STREAM_SECONDS
from buffer_server.proto import replay_pb2 as pb
from buffer_server.shards import Lane, Shard
from buffer_server.statuses import ReplayMismatch, ReplayUnavailable, UnknownTable, error_of
from buffer_server.streams import Stream
from repertory.errors import RepertoryError

_DEADLINE: int = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]

Ask = TypeVar("Ask")


@dataclass(slots=True, eq=False)
class Answer(Generic[Ask]):
    """What came of one request. Without a response it has brought nothing."""

    lane: SampleLane[Ask]
    ask: Ask
    response: pb.SampleResponse | None = None
    held: bool = False  # the limiter did not let it pass in time
    error: RepertoryError | None = None  # it never will


class SampleLane(Lane, Generic[Ask]):
    """The samples of one shard."""

    def __init__(self, shard: Shard, events: _Events[Ask]) -> None:
        super().__init__(shard)
        # In the order of asking; None: nobody wants it any more.
        self.expected: deque[Ask | None] = deque()
        self.progress_at = 0.0  # when it last answered, or was asked after it had answered all
        self.held_since: float | None = None  # since when its limiter lets nothing pass
        self.ask_again_at = 0.0  # if its limiter has used the patience up
        self.reason = ""  # what the limiter said
        self._events = events
        self._stream: Stream | None = None
        self._stream_number = 0  # events of earlier streams mean nothing
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._opened_at = 0.0

    @property
    def waits(self) -> bool:
        """Whether it has something to give that is wanted."""
        return any(ask is not None for ask in self.expected)

    def held_for(self, now: float) -> float:
        """Seconds for which its limiter let nothing pass."""
        return 0.0 if self.held_since is None else now - self.held_since

    def ask(self, ask: Ask, raw: bytes, now: float) -> None:
        if not self.expected:
            self.progress_at = now
            if now - self._opened_at > STREAM_SECONDS / 2:
                self.close()  # before it ends with something under way
        if self._stream is None:
            self._open(now)
        self.expected.append(ask)
        self._outgoing.put(raw)

    def forget(self) -> list[Ask]:
        """What is still to come will be dropped when it comes; what that was."""
        forgotten = [ask for ask in self.expected if ask is not None]
        self.expected = deque([None] * len(self.expected))
        return forgotten

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    def hear(self, stream_number: int, event: bytes | RepertoryError) -> list[Answer[Ask]]:
        """What an event of this stream means."""
        if self._stream is None or stream_number != self._stream_number:
            return []
        now = time.monotonic()
        if isinstance(event, RepertoryError):
            return self._ended(event, now)
        waited_since, self.progress_at = self.progress_at, now
        self.answered()
        ask = self.expected.popleft()
        if ask is None:
            return []
        try:
            response = wire.parse(pb.SampleResponse, event)
            if not response.HasField("refusal"):
                self.shard.weigh(wire.decode_population(response.population), now)
                self.held_since, self.reason = None, ""
                return [Answer(self, ask, response)]
        except RepertoryError as unreadable:
            self.expected.appendleft(ask)
            return self._ended(unreadable, now)
        refusal = response.refusal
        if refusal.code == _DEADLINE:
            if self.held_since is None:
                self.held_since = waited_since
            self.reason = refusal.message
            return [Answer(self, ask, held=True)]
        error = error_of(refusal.code, refusal.message, self.shard.address)
        if not isinstance(error, ReplayMismatch | UnknownTable):
            return [Answer(self, ask, error=error)]
        self.shard.lose(error)
        return [Answer(self, ask)]

    def why_not(self, now: float) -> str:
        """Why it gives nothing, for people."""
        if (trouble := self.trouble) is not None:
            return f"away for {now - trouble.since:.1f} s: {trouble.reason}"
        if self.reason:
            return self.reason
        if self.waits:
            return f"no answer for {now - self.progress_at:.1f} s"
        return f"{self.shard.population.items} items"

    def _open(self, now: float) -> None:
        self._stream_number = number = self._stream_number + 1
        outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._outgoing = outgoing
        self._opened_at = now

        def answered(raw: bytes) -> None:
            self.answered()  # known at once, though nobody may be taking batches
            self._events.put((self, number, raw))

        def ended(error: RepertoryError) -> None:
            outgoing.put(None)  # lets gRPC's own thread end
            self._events.put((self, number, error))

        self._stream = Stream(
            self.shard.connection, "SampleStream", iter(outgoing.get, None), answered, ended
        )

    def _ended(self, error: RepertoryError, now: float) -> list[Answer[Ask]]:
        self.close()
        self.fail(error, now)
        lost = [Answer(self, ask) for ask in self.expected if ask is not None]
        self.expected.clear()
        return lost


_Event = tuple[SampleLane[Ask], int, bytes | RepertoryError]
_Events = queue.SimpleQueue[_Event[Ask] | None]


class SampleLanes(Generic[Ask]):
    """All shards'."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._events: _Events[Ask] = queue.SimpleQueue()
        self.lanes = [SampleLane[Ask](shard, self._events) for shard in shards]
        self._closed = False

    def usable(self, now: float) -> list[SampleLane[Ask]]:
        return [lane for lane in self.lanes if lane.usable(now)]

    def receive(self, timeout_seconds: float) -> list[Answer[Ask]]:
        """What has come, or comes within the timeout; perhaps nothing."""
        answers: list[Answer[Ask]] = []
        try:
            event = self._events.get(timeout=timeout_seconds)
            while True:
                if self._closed:
                    raise ReplayUnavailable("this client was closed: make another")
                if event is not None:
                    lane, stream_number, content = event
                    answers += lane.hear(stream_number, content)
                event = self._events.get_nowait()
        except queue.Empty:
            return answers

    def wake(self) -> None:
        """Whoever waits looks again who is there."""
        self._events.put(None)

    def why_not(self, now: float) -> str:
        return "; ".join(f"{lane.shard.address}: {lane.why_not(now)}" for lane in self.lanes)

    def close(self) -> None:
        """From any thread."""
        self._closed = True
        self.wake()
        for lane in self.lanes:
            lane.close()
