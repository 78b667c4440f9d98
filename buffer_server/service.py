"""The methods of `replay.proto` around tables: decode, call the table, encode.

A table may let a caller wait for its limiter. Each wait takes a thread of the server, so unary
calls that wait are few (`max_waiting`) and their wait ends before the call's deadline; streams have
threads of their own (`max_streams`). Whoever hangs up while waiting is dismissed at once: a queue's
items do not go to the dead.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from buffer_server import wire
from buffer_server.callers import Caller
from buffer_server.proto import replay_pb2 as pb
from buffer_server.statuses import (
    ReplayMismatch,
    ReplayOverload,
    ReplayUnavailable,
    UnknownTable,
    status_of,
)
from buffer_server.table import Table
from buffer_server.writer_ledger import Origin
from repertory.errors import RepertoryError, ReplayTimeout, UsageError

logger = logging.getLogger(__name__)

LONGEST_CALLER = 128
LONGEST_WAIT_SECONDS = 3600.0
WAIT_SECONDS = 60.0  # of a call that has no deadline
RESPONSE_OVERHEAD_BYTES = 4096  # of names, shapes and lengths in one response

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one shard grants."""

    max_message_bytes: int
    max_waiting: int
    max_streams: int


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that is safe on disk."""

    path: Path
    items: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Call:
    """One request: who asks, and until when."""

    caller: Caller
    context: grpc.ServicerContext
    in_stream: bool
    wait_seconds: float  # how long it may wait at most


@dataclass(frozen=True, slots=True)
class _Served:
    """A table and what is the same for every call of it."""

    table: Table
    signature_hash: int
    item_nbytes: int


class ReplayService:
    """Every method, with its counts. Safe to share between threads."""

    def __init__(
        self,
        tables: Mapping[str, Table],
        limits: Limits,
        save: Callable[[], SavedCheckpoint] | None,
        on_drain: Callable[[], None],
    ) -> None:
        self._served = {
            name: _Served(
                table,
                wire.signature_hash(table.signature),
                # Keys and probabilities travel too.
                16 + sum(column.nbytes for column in table.signature.values()),
            )
            for name, table in tables.items()
        }
        self._limits = limits
        self._save = save
        self._on_drain = on_drain
        self._saving = threading.Lock()
        self._seats = threading.BoundedSemaphore(limits.max_waiting)
        self._started = time.monotonic()
        self._changed = threading.Condition()
        self._running = 0
        self._streams = 0
        self._draining = False

    def handler(self) -> grpc.GenericRpcHandler:
        """What a gRPC server routes. No deserialisers: malformed bytes are ours to refuse."""
        unary: dict[str, tuple[type[Any], Callable[[Any, _Call], Message]]] = {
            "Describe": (pb.DescribeRequest, self._describe),
            "Insert": (pb.InsertRequest, self._insert),
            "Sample": (pb.SampleRequest, self._sample),
            "Weigh": (pb.SampleRequest, self._weigh),
            "UpdatePriorities": (pb.UpdatePrioritiesRequest, self._update_priorities),
            "Statistics": (pb.StatisticsRequest, self._statistics),
            "ConfigureLimiter": (pb.ConfigureLimiterRequest, self._configure_limiter),
            "Checkpoint": (pb.CheckpointRequest, self._checkpoint),
            "Drain": (pb.DrainRequest, self._drain),
        }
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(self._unary(kind, method))
            for name, (kind, method) in unary.items()
        }
        methods["InsertStream"] = grpc.stream_stream_rpc_method_handler(
            self._stream(pb.InsertRequest, self._insert, _refused_insert)
        )
        methods["SampleStream"] = grpc.stream_stream_rpc_method_handler(
            self._stream(pb.SampleRequest, self._sample, _refused_sample)
        )
        methods["UpdatePrioritiesStream"] = grpc.stream_stream_rpc_method_handler(
            self._stream(pb.UpdatePrioritiesRequest, self._update_priorities, _refused_update)
        )
        return grpc.method_handlers_generic_handler(wire.SERVICE, methods)

    def drain(self, timeout_seconds: float) -> int:
        """No more work is taken, those who wait are sent away; returns what is still under way."""
        self._on_drain()
        with self._changed:
            self._draining = True
        for served in self._served.values():
            served.table.close("the shard is draining: use another")
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0, timeout_seconds)
            return self._running

    def _describe(self, request: pb.DescribeRequest, call: _Call) -> pb.DescribeResponse:
        return pb.DescribeResponse(
            protocol_version=wire.PROTOCOL_VERSION,
            max_message_bytes=self._limits.max_message_bytes,
            tables=[
                pb.TableDescription(
                    name=name,
                    capacity_items=served.table.capacity,
                    capacity_bytes=served.table.nbytes,
                    signature=wire.encode_signature(served.table.signature),
                    signature_hash=served.signature_hash,
                )
                for name, served in self._served.items()
            ],
        )

    def _insert(self, request: pb.InsertRequest, call: _Call) -> pb.InsertResponse:
        served = self._find(request.table)
        _check_hash(request.signature_hash, served)
        call = _limited(call, request)
        origin = Origin(request.writer, request.sequence)
        columns = wire.decode_columns(request.columns, served.table.signature)
        items = len(columns["reward"])
        priorities = None
        if request.HasField("priorities"):
            priorities = wire.decode_vector(request.priorities, wire.PRIORITIES, "priorities")
            if len(priorities) != items:
                raise UsageError(f"{items} items came with {len(priorities)} priorities")
        with self._work():
            new = self._patiently(
                call,
                lambda seconds: served.table.insert_once(
                    origin, columns, priorities, timeout_seconds=seconds, caller=call.caller
                ),
            )
        return pb.InsertResponse(sequence=request.sequence, items=items, duplicate=not new)

    def _sample(self, request: pb.SampleRequest, call: _Call) -> pb.SampleResponse:
        served = self._find(request.table)
        _check_hash(request.signature_hash, served)
        call = _limited(call, request)
        nbytes = request.size * served.item_nbytes + RESPONSE_OVERHEAD_BYTES
        if nbytes > self._limits.max_message_bytes:
            raise ReplayOverload(
                f"a sample of {request.size} items takes {nbytes} bytes, more than the "
                f"{self._limits.max_message_bytes} of one message: sample smaller batches"
            )
        wanted = wire.read_request(request)
        with self._work():
            draw = self._patiently(
                call,
                lambda seconds: served.table.draw(
                    wanted, timeout_seconds=seconds, caller=call.caller
                ),
            )
        return wire.encode_draw(draw)

    def _weigh(self, request: pb.SampleRequest, call: _Call) -> pb.Population:
        served = self._find(request.table)
        _check_hash(request.signature_hash, served)
        with self._work():
            return wire.encode_population(served.table.population(wire.read_request(request)))

    def _update_priorities(
        self, request: pb.UpdatePrioritiesRequest, call: _Call
    ) -> pb.UpdatePrioritiesResponse:
        served = self._find(request.table)
        keys = wire.decode_vector(request.keys, wire.KEYS, "keys")
        priorities = wire.decode_vector(request.priorities, wire.PRIORITIES, "priorities")
        with self._work():
            served.table.update_priorities(keys, priorities)
        return pb.UpdatePrioritiesResponse()

    def _statistics(self, request: pb.StatisticsRequest, call: _Call) -> pb.StatisticsResponse:
        return pb.StatisticsResponse(
            tables=[
                wire.encode_statistics(name, served.table.statistics())
                for name, served in self._served.items()
            ],
            uptime_seconds=time.monotonic() - self._started,
            open_streams=self._streams,
            running_requests=self._running,
            draining=self._draining,
        )

    def _configure_limiter(
        self, request: pb.ConfigureLimiterRequest, call: _Call
    ) -> pb.ConfigureLimiterResponse:
        settings = request.settings
        ratio, buffer = settings.samples_per_insert, settings.error_buffer
        self._find(request.table).table.configure_limiter(
            min_size=settings.min_size,
            samples_per_insert=ratio if settings.HasField("samples_per_insert") else None,
            error_buffer=buffer if settings.HasField("error_buffer") else None,
        )
        logger.info("%s set the limiter of %r", call.caller.name or "somebody", request.table)
        return pb.ConfigureLimiterResponse()

    def _checkpoint(self, request: pb.CheckpointRequest, call: _Call) -> pb.CheckpointResponse:
        if self._save is None:
            raise ReplayMismatch("this shard has no checkpoint directory: start it with one")
        if not self._saving.acquire(blocking=False):
            raise ReplayUnavailable("a checkpoint is being written already: ask again later")
        try:
            saved = self._save()
        finally:
            self._saving.release()
        return pb.CheckpointResponse(path=str(saved.path), items=saved.items, bytes=saved.nbytes)

    def _drain(self, request: pb.DrainRequest, call: _Call) -> pb.DrainResponse:
        return pb.DrainResponse(running_requests=self.drain(call.wait_seconds))

    def _find(self, name: str) -> _Served:
        served = self._served.get(name)
        if served is None:
            known = ", ".join(self._served)
            raise UnknownTable(f"there is no table {name[:100]!r} here: there is {known}")
        return served

    def _patiently(self, call: _Call, attempt: Callable[[float], Result]) -> Result:
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
                f"{self._limits.max_waiting} callers wait already: ask again later, "
                "or raise max_waiting"
            )
        try:
            self._dismiss_when_gone(call.context, call.caller)
            return attempt(call.wait_seconds)
        finally:
            self._seats.release()

    def _dismiss_when_gone(self, context: grpc.ServicerContext, caller: Caller) -> None:
        def gone() -> None:
            for served in self._served.values():
                served.table.dismiss(caller, "the caller hung up")

        if not context.add_callback(gone):
            gone()

    @contextmanager
    def _work(self) -> Iterator[None]:
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

    @contextmanager
    def _open_stream(self) -> Iterator[None]:
        with self._changed:
            if self._streams >= self._limits.max_streams:
                raise ReplayOverload(
                    f"{self._streams} streams are open already: close some, or raise max_streams"
                )
            self._streams += 1
        try:
            yield
        finally:
            with self._changed:
                self._streams -= 1

    def _unary(
        self, kind: type[Any], method: Callable[[Any, _Call], Message]
    ) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def handle(raw: bytes, context: grpc.ServicerContext) -> bytes:
            with _statuses(context):
                call = _begin(context, in_stream=False)
                return method(wire.parse(kind, raw), call).SerializeToString()

        return handle

    def _stream(
        self,
        kind: type[Any],
        method: Callable[[Any, _Call], Message],
        refused: Callable[[Any, pb.Refusal], Message],
    ) -> Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]:
        def handle(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            with _statuses(context), self._open_stream():
                call = _begin(context, in_stream=True)
                self._dismiss_when_gone(context, call.caller)
                for raw in requests:
                    request = wire.parse(kind, raw)
                    try:
                        response = method(request, call)
                    except RepertoryError as error:
                        code, message = status_of(error)
                        if code is grpc.StatusCode.UNAVAILABLE:
                            raise
                        refusal = pb.Refusal(code=code.value[0], message=message)
                        response = refused(request, refusal)
                    yield response.SerializeToString()

        return handle


def _begin(context: grpc.ServicerContext, *, in_stream: bool) -> _Call:
    """Checks the version, and notes who calls and for how long they wait."""
    metadata = dict(context.invocation_metadata())
    version = metadata.get(wire.PROTOCOL_KEY)
    if version != str(wire.PROTOCOL_VERSION):
        raise ReplayMismatch(
            f"this shard speaks protocol {wire.PROTOCOL_VERSION}, the caller "
            f"{str(version)[:20] if version else 'did not say which'}: use the same release"
        )
    name = str(metadata.get(wire.CALLER_KEY, ""))[:LONGEST_CALLER]
    wait_seconds = WAIT_SECONDS
    remaining = context.time_remaining()
    if remaining is not None and not in_stream:
        # The reason must be on its way before the caller gives up by itself.
        latest = max(0.0, remaining - min(0.1, 0.2 * remaining))
        wait_seconds = min(latest, LONGEST_WAIT_SECONDS)
    return _Call(Caller(name), context, in_stream, wait_seconds)


def _limited(call: _Call, request: pb.InsertRequest | pb.SampleRequest) -> _Call:
    """The call with the request's own timeout, if that is shorter."""
    if not request.HasField("timeout_seconds"):
        return call
    seconds = request.timeout_seconds
    if not 0 <= seconds < math.inf:
        raise UsageError(f"a timeout of {seconds} s is not a deadline: give seconds")
    return replace(call, wait_seconds=min(call.wait_seconds, seconds))


def _check_hash(given: int, served: _Served) -> None:
    if given != served.signature_hash:
        raise ReplayMismatch(
            f"table {served.table.name!r} has the signature {served.signature_hash:016x}, the "
            f"caller expects {given:016x}: describe it again, and compare the environments"
        )


def _refused_insert(request: pb.InsertRequest, refusal: pb.Refusal) -> pb.InsertResponse:
    return pb.InsertResponse(sequence=request.sequence, refusal=refusal)


def _refused_sample(request: pb.SampleRequest, refusal: pb.Refusal) -> pb.SampleResponse:
    return pb.SampleResponse(refusal=refusal)


def _refused_update(
    request: pb.UpdatePrioritiesRequest, refusal: pb.Refusal
) -> pb.UpdatePrioritiesResponse:
    return pb.UpdatePrioritiesResponse(refusal=refusal)


@contextmanager
def _statuses(context: grpc.ServicerContext) -> Iterator[None]:
    """Errors become the call's status; those nobody thought of are logged and told in brief."""
    try:
        yield
    except RepertoryError as error:
        context.abort(*status_of(error))
    except Exception as error:
        if not context.is_active():  # the caller hung up in the middle of a stream
            return
        logger.exception("a replay call failed")
        context.abort(grpc.StatusCode.INTERNAL, f"the shard failed: {type(error).__name__}")
