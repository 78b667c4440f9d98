"""What every call of a shard goes through: who asks, until when, whether there is room; and out.

Streams have threads of their own (`max_streams`). A unary call that has to wait for a limiter takes
one of few seats (`max_waiting`) and ends before its deadline, so that the reason still arrives.
Whoever hangs up while waiting is dismissed at once: a queue's items do not go to the dead. Messages
under way are bounded in bytes (`max_inflight_bytes`), and what goes wrong leaves as a status.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import grpc
from google.protobuf.message import Message

from buffer_server import wire
from buffer_server.byte_budget import ByteBudget
from buffer_server.callers import Caller
from buffer_server.proto import replay_pb2 as pb
from buffer_server.request_times import RequestTimes
from buffer_server.statuses import (
    ReplayMismatch,
    ReplayOverload,
    ReplayUnavailable,
    status_of,
)
from repertory.errors import RepertoryError, ReplayTimeout, UsageError

logger = logging.getLogger(__name__)

LONGEST_CALLER = 128
LONGEST_WAIT_SECONDS = 3600.0
WAIT_SECONDS = 60.0  # of a call that has no deadline
BUSY_SECONDS = 1.0  # how long a stream is held back while too many bytes are under way
PRESENT_SECONDS = 60.0  # how long a caller counts as a client after it was heard of
MOST_CALLERS = 4096

Kind = Literal["insert", "sample", "update"]  # of requests whose number and time are of interest
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one shard grants."""

    max_message_bytes: int
    max_inflight_bytes: int
    max_waiting: int
    max_streams: int


@dataclass(frozen=True, slots=True)
class Call:
    """One request: who asks, and until when."""

    caller: Caller
    context: grpc.ServicerContext
    in_stream: bool
    wait_seconds: float  # how long it may wait at most

    def limited(self, request: pb.InsertRequest | pb.SampleRequest) -> Call:
        """The call with the request's own timeout, if that is shorter."""
        if not request.HasField("timeout_seconds"):
            return self
        seconds = request.timeout_seconds
        if not 0 <= seconds < math.inf:
            raise UsageError(f"a timeout of {seconds} s is not a deadline: give seconds")
        return replace(self, wait_seconds=min(self.wait_seconds, seconds))


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the service, and what it costs to serve it."""

    request: type[Any]
    serve: Callable[[Any, Call], Message]
    kind: Kind | None = None
    # Bytes of the response that a request asks for, at most.
    response_nbytes: Callable[[Any], int] = lambda request: 0


class Reception:
    """Counts and bounds what is under way. Safe to share between threads."""

    def __init__(self, limits: Limits, dismiss: Callable[[Caller], None]) -> None:
        self.limits = limits
        self.times: Mapping[Kind, RequestTimes] = {
            kind: RequestTimes() for kind in ("insert", "sample", "update")
        }
        self._dismiss = dismiss
        self._inserts = ByteBudget(limits.max_inflight_bytes // 2)
        self._others = ByteBudget(limits.max_inflight_bytes // 2)
        self._seats = threading.BoundedSemaphore(limits.max_waiting)
        self._changed = threading.Condition()
        self._running = 0
        self._streams = 0
        self._draining = False
        self._refused: Counter[int] = Counter()  # by status code
        self._callers: dict[str, float] = {}  # when each was last heard of

    @property
    def running(self) -> int:
        return self._running

    @property
    def open_streams(self) -> int:
        return self._streams

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def inflight_nbytes(self) -> int:
        return self._inserts.taken_nbytes + self._others.taken_nbytes

    @property
    def refused(self) -> dict[int, int]:
        with self._changed:
            return dict(sorted(self._refused.items()))

    @property
    def clients(self) -> int:
        """Callers that were heard of lately."""
        with self._changed:
            self._forget_silent()
            return len(self._callers)

    def drain(self) -> None:
        """No more work is taken."""
        with self._changed:
            self._draining = True

    def wait_until_idle(self, timeout_seconds: float) -> int:
        """What is still under way then."""
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0, timeout_seconds)
            return self._running

    @contextmanager
    def work(self) -> Iterator[None]:
        """Counts what is under way, and refuses more while draining."""
        with self._changed:
            if self._draining:
                raise ReplayUnavailable("the shard is draining: use another")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def patiently(self, call: Call, attempt: Callable[[float], Result]) -> Result:
        """At once if possible; else the caller waits, if there is a seat for it."""
        if call.in_stream:
            return attempt(call.wait_seconds)
        try:
            return attempt(0.0)
        except ReplayTimeout:
            if call.wait_seconds <= 0:
                raise
        if not self._seats.acquire(blocking=False):
            raise ReplayOverload(
                f"{self.limits.max_waiting} callers wait already: ask again later, "
                "or raise max_waiting"
            )
        try:
            self._dismiss_when_gone(call.context, call.caller)
            return attempt(call.wait_seconds)
        finally:
            self._seats.release()

    def unary(self, method: Method) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def handle(raw: bytes, context: grpc.ServicerContext) -> bytes:
            with self._statuses(context):
                call = self._begin(context, in_stream=False)
                request = wire.parse(method.request, raw)
                budget, nbytes = self._cost(method, request, raw)
                budget.take(nbytes, wait_seconds=0.0)
                # Until the answer is out: who asks and does not listen must not fill our memory.
                if not context.add_callback(lambda: budget.give_back(nbytes)):
                    budget.give_back(nbytes)
                return self._serve(method, request, call)

        return handle

    def stream(
        self, method: Method, refused: Callable[[Any, pb.Refusal], Message]
    ) -> Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]:
        def handle(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            with self._statuses(context), self._open_stream():
                call = self._begin(context, in_stream=True)
                self._dismiss_when_gone(context, call.caller)
                for raw in requests:
                    request = wire.parse(method.request, raw)
                    budget, nbytes = self._cost(method, request, raw)
                    with budget.hold(nbytes, wait_seconds=BUSY_SECONDS):
                        try:
                            response = self._serve(method, request, call)
                        except RepertoryError as error:
                            code, message = status_of(error)
                            if code is grpc.StatusCode.UNAVAILABLE:
                                raise
                            self._count_refused(code)
                            refusal = pb.Refusal(code=code.value[0], message=message)
                            response = refused(request, refusal).SerializeToString()
                        yield response  # gRPC comes back when it is sent
                    self._hear(call.caller.name)

        return handle

    def _serve(self, method: Method, request: Any, call: Call) -> bytes:
        if method.kind is None:
            return method.serve(request, call).SerializeToString()
        begun, waited = time.monotonic(), call.caller.waited_seconds
        response = method.serve(request, call).SerializeToString()
        waited = call.caller.waited_seconds - waited
        self.times[method.kind].note(time.monotonic() - begun - waited)
        return response

    def _cost(self, method: Method, request: Any, raw: bytes) -> tuple[ByteBudget, int]:
        budget = self._inserts if method.kind == "insert" else self._others
        return budget, len(raw) + method.response_nbytes(request)

    def _begin(self, context: grpc.ServicerContext, *, in_stream: bool) -> Call:
        """Checks the version, and notes who calls and for how long they wait."""
        metadata = dict(context.invocation_metadata())
        version = metadata.get(wire.PROTOCOL_KEY)
        if version != str(wire.PROTOCOL_VERSION):
            raise ReplayMismatch(
                f"this shard speaks protocol {wire.PROTOCOL_VERSION}, the caller "
                f"{str(version)[:20] if version else 'did not say which'}: use the same release"
            )
        name = str(metadata.get(wire.CALLER_KEY, ""))[:LONGEST_CALLER]
        self._hear(name)
        wait_seconds = WAIT_SECONDS
        remaining = context.time_remaining()
        if remaining is not None and not in_stream:
            # The reason must be on its way before the caller gives up by itself.
            latest = max(0.0, remaining - min(0.1, 0.2 * remaining))
            wait_seconds = min(latest, LONGEST_WAIT_SECONDS)
        return Call(Caller(name), context, in_stream, wait_seconds)

    def _dismiss_when_gone(self, context: grpc.ServicerContext, caller: Caller) -> None:
        """gRPC calls back on the one thread that serves all calls: that must be quick."""

        def gone() -> None:
            self._dismiss(caller)

        if not context.add_callback(gone):
            gone()

    def _hear(self, caller: str) -> None:
        with self._changed:
            self._callers[caller] = time.monotonic()
            if len(self._callers) > MOST_CALLERS:
                self._forget_silent()
            if len(self._callers) > MOST_CALLERS:
                del self._callers[next(iter(self._callers))]

    def _forget_silent(self) -> None:
        since = time.monotonic() - PRESENT_SECONDS
        self._callers = {name: heard for name, heard in self._callers.items() if heard >= since}

    @contextmanager
    def _open_stream(self) -> Iterator[None]:
        with self._changed:
            if self._streams >= self.limits.max_streams:
                raise ReplayOverload(
                    f"{self._streams} streams are open already: close some, or raise max_streams"
                )
            self._streams += 1
        try:
            yield
        finally:
            with self._changed:
                self._streams -= 1

    def _count_refused(self, code: grpc.StatusCode) -> None:
        with self._changed:
            self._refused[code.value[0]] += 1

    @contextmanager
    def _statuses(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Errors become the call's status; others are logged, and told in brief."""
        try:
            yield
        except RepertoryError as error:
            code, message = status_of(error)
            self._count_refused(code)
            context.abort(code, message)
        except Exception as error:
            if not context.is_active():  # the caller hung up in the middle of a stream
                return
            logger.exception("a replay call failed")
            self._count_refused(grpc.StatusCode.INTERNAL)
            context.abort(grpc.StatusCode.INTERNAL, f"the shard failed: {type(error).__name__}")
