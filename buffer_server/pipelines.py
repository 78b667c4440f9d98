"""Several requests under way at once: how a client hides the way to the shard and back.

`SamplePipeline` keeps a few batches coming; `InsertPipeline` sends without waiting for each
acknowledgement, bounded in bytes, and sends again what was not acknowledged when a stream breaks:
the shard drops what it has already. `ReplayClient` owns both. Inserts keep their order unless one
of them waited for the limiter so long that it was sent again: others may then have passed it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from buffer_server import wire
from buffer_server.connection import GRACE_SECONDS, Connection
from buffer_server.proto import replay_pb2 as pb
from buffer_server.statuses import ReplayUnavailable, error_of
from buffer_server.writer_ledger import WINDOW
from repertory.errors import RepertoryError, ReplayTimeout
from repertory.types import Sample

logger = logging.getLogger(__name__)

# A request that waits for the limiter is answered at least this often, with the reason.
SLICE_SECONDS = 0.25
# The shard remembers WINDOW sequences; what may be sent again must stay well within.
MAX_INSERTS_UNDER_WAY = WINDOW // 2
_DEADLINE: int = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


class _Stream:
    """One bidirectional stream. Its last event is the error that it ended with."""

    def __init__(self, connection: Connection, method: str) -> None:
        self.events: queue.SimpleQueue[bytes | RepertoryError] = queue.SimpleQueue()
        self._connection = connection
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = connection.open_stream(method, iter(self._outgoing.get, None))
        self._reader = threading.Thread(target=self._read, name=f"replay-{method}", daemon=True)
        self._reader.start()

    def send(self, raw: bytes) -> None:
        self._outgoing.put(raw)

    def close(self) -> None:
        self._outgoing.put(None)  # lets gRPC's own thread end
        self._call.cancel()

    def _read(self) -> None:
        try:
            for raw in self._call:
                self.events.put(raw)
            self.events.put(ReplayUnavailable("the shard ended the stream"))
        except grpc.RpcError as error:
            self.events.put(self._connection.translate(error))


def _may_reopen(error: RepertoryError) -> bool:
    """A shard that is gone may come back; a stream also ends when its hour is over."""
    return isinstance(error, ReplayUnavailable | ReplayTimeout)


class SamplePipeline:
    """Batches of one size, asked for ahead of time, in the order of asking."""

    def __init__(
        self,
        connection: Connection,
        depth: int,
        request: Callable[[int, float], bytes],
        decode: Callable[[pb.SampleResponse], Sample],
    ) -> None:
        self._connection = connection
        self._depth = depth
        self._request = request
        self._decode = decode
        self._lock = threading.Lock()
        self._stream: _Stream | None = None
        self._size = 0
        self._under_way = 0

    def take(self, size: int, timeout_seconds: float) -> Sample:
        """The next batch. After an error the stream begins anew."""
        deadline = time.monotonic() + timeout_seconds
        if not self._lock.acquire(timeout=timeout_seconds):
            raise ReplayTimeout(f"within {timeout_seconds:g} s another thread was still sampling")
        try:
            attempt = 0
            while True:
                try:
                    return self._take(size, deadline, timeout_seconds)
                except RepertoryError as error:
                    if not isinstance(error, _Unfilled):
                        self._reset()
                    attempt += 1
                    pause = self._connection.pause_seconds(attempt)
                    if (
                        not isinstance(error, ReplayUnavailable)
                        or attempt >= self._connection.config.attempts
                        or time.monotonic() + pause >= deadline
                        or self._connection.sleep(pause)
                    ):
                        raise
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._reset()

    def _take(self, size: int, deadline: float, timeout_seconds: float) -> Sample:
        stream = self._open(size)
        earlier = self._under_way  # answers to what former calls asked, which may be stale
        reason = "the shard did not answer"
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            self._top_up(stream, min(SLICE_SECONDS, remaining))
            try:
                event = stream.events.get(timeout=remaining + GRACE_SECONDS)
            except queue.Empty:
                raise ReplayTimeout(self._sentence(size, timeout_seconds, reason)) from None
            if isinstance(event, RepertoryError):
                if isinstance(event, ReplayTimeout):
                    raise ReplayUnavailable(str(event))
                raise event
            self._under_way -= 1
            response = wire.parse(pb.SampleResponse, event)
            if not response.HasField("refusal"):
                self._top_up(stream, SLICE_SECONDS)
                return self._decode(response)
            refusal = response.refusal
            if refusal.code != _DEADLINE:
                raise error_of(refusal.code, refusal.message, self._connection.config.address)
            reason = refusal.message
            if earlier <= 0 and time.monotonic() >= deadline:
                raise _Unfilled(self._sentence(size, timeout_seconds, reason))
            earlier -= 1

    def _top_up(self, stream: _Stream, wait_seconds: float) -> None:
        while self._under_way < self._depth:
            stream.send(self._request(self._size, wait_seconds))
            self._under_way += 1

    def _open(self, size: int) -> _Stream:
        if self._stream is None or size != self._size:
            self._reset()
            self._stream = _Stream(self._connection, "SampleStream")
            self._size = size
        return self._stream

    def _reset(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self._under_way = 0

    def _sentence(self, size: int, timeout_seconds: float, reason: str) -> str:
        address = self._connection.config.address
        return (
            f"the replay shard at {address} gave no {size} items in {timeout_seconds:g} s: {reason}"
        )


class _Unfilled(ReplayTimeout):
    """The limiter let nothing pass; the stream is as good as before."""


class InsertPipeline:
    """Inserts under way, bounded in bytes. Whoever would exceed the bound waits."""

    def __init__(self, connection: Connection, window_bytes: int) -> None:
        self._connection = connection
        self._window_bytes = window_bytes
        self._changed = threading.Condition()
        self._pending: dict[int, bytes] = {}  # by sequence, oldest first
        self._pending_bytes = 0
        self._trouble = "none was acknowledged yet"
        self._failure: RepertoryError | None = None  # to be raised by the next call
        self._broken: RepertoryError | None = None  # nothing more can be sent
        self._closed = False
        self._stream: _Stream | None = None
        self._driver = threading.Thread(target=self._drive, name="replay-inserts", daemon=True)
        self._driver.start()

    def submit(self, sequence: int, raw: bytes, timeout_seconds: float) -> None:
        """Raises what went wrong with an earlier insert, which then is not in the shard."""
        with self._changed:
            self._wait(lambda: self._has_room(sequence, len(raw)), timeout_seconds)
            self._pending[sequence] = raw
            self._pending_bytes += len(raw)
            if self._stream is not None:
                self._stream.send(raw)
            self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> None:
        """Returns when everything is acknowledged."""
        with self._changed:
            self._wait(lambda: not self._pending, timeout_seconds)

    def close(self) -> int:
        """Ends the stream at once; returns how many inserts were not acknowledged."""
        with self._changed:
            self._closed = True
            if self._stream is not None:
                self._stream.close()
            self._changed.notify_all()
            return len(self._pending)

    def _wait(self, ready: Callable[[], bool], timeout_seconds: float) -> None:
        def settled() -> bool:
            return bool(self._failure or self._broken or self._closed or ready())

        done = self._changed.wait_for(settled, timeout_seconds)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._broken is not None:
            raise self._broken
        if self._closed:
            raise ReplayUnavailable("this client was closed: make another")
        if not done:
            raise ReplayTimeout(
                f"the replay shard at {self._connection.config.address}: within "
                f"{timeout_seconds:g} s {len(self._pending)} inserts ({self._pending_bytes} bytes) "
                f"were still not acknowledged: {self._trouble}"
            )

    def _has_room(self, sequence: int, nbytes: int) -> bool:
        if not self._pending:
            return True  # one alone may be larger than the window
        oldest = next(iter(self._pending))
        return (
            self._pending_bytes + nbytes <= self._window_bytes
            and sequence - oldest < MAX_INSERTS_UNDER_WAY
        )

    def _drive(self) -> None:
        """Keeps a stream open, for as long as the client lives."""
        attempt = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                if self._closed:
                    return
            try:
                stream = _Stream(self._connection, "InsertStream")
            except RepertoryError as closed:
                self._give_up(closed)
                return
            with self._changed:
                self._stream = stream
                for raw in self._pending.values():
                    stream.send(raw)
                if self._closed:
                    stream.close()
            progress, error = self._follow(stream)
            stream.close()
            with self._changed:
                self._stream = None
                self._trouble = str(error)
            if not _may_reopen(error):
                self._give_up(error)
                return
            attempt = 1 if progress else attempt + 1
            if self._connection.sleep(self._connection.pause_seconds(attempt)):
                return

    def _follow(self, stream: _Stream) -> tuple[bool, RepertoryError]:
        """Reads acknowledgements until the stream ends; whether there were any, and why it did."""
        progress = False
        while True:
            event = stream.events.get()  # the stream's end is an event too
            if isinstance(event, RepertoryError):
                return progress, event
            progress = True
            try:
                response = wire.parse(pb.InsertResponse, event)
            except RepertoryError as error:
                return progress, error
            with self._changed:
                self._settle(stream, response)
                self._changed.notify_all()

    def _settle(self, stream: _Stream, response: pb.InsertResponse) -> None:
        raw = self._pending.get(response.sequence)
        if raw is None:
            return
        if response.HasField("refusal"):
            refusal = response.refusal
            self._trouble = refusal.message
            if refusal.code == _DEADLINE:
                stream.send(raw)  # back-pressure: nothing is dropped, the caller waits
                return
            self._failure = error_of(refusal.code, refusal.message, self._connection.config.address)
        del self._pending[response.sequence]
        self._pending_bytes -= len(raw)

    def _give_up(self, error: RepertoryError) -> None:
        with self._changed:
            self._broken = error
            if self._pending and not self._closed:
                logger.error("%d inserts were not acknowledged: %s", len(self._pending), error)
            self._changed.notify_all()
