"""The methods of `replay.proto` around tables: decode, call the table, encode.

What all of them share (deadlines, limits, statuses) is `buffer_server.reception`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc

from buffer_server import wire
from buffer_server.callers import Caller
from buffer_server.proto import replay_pb2 as pb
from buffer_server.reception import Call, Kind, Limits, Method, Reception
from buffer_server.request_times import Histogram
from buffer_server.statistics import CheckpointStatistics, ShardStatistics
from buffer_server.statistics_messages import encode_statistics
from buffer_server.statuses import ReplayMismatch, ReplayOverload, UnknownTable
from buffer_server.table import Table
from buffer_server.writer_ledger import Origin
from repertory.errors import UsageError
from repertory.types import ColumnSpec

logger = logging.getLogger(__name__)

RESPONSE_OVERHEAD_BYTES = 4096  # of names, shapes and lengths in one response


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that is safe on disk."""

    path: Path
    items: int
    nbytes: int
    seconds: float  # that it took


class Checkpoints(Protocol):
    """Who writes a shard's tables to disk."""

    def save(self, *, wait_seconds: float = 0.0) -> SavedCheckpoint:
        """Waits that long for one that is being written already."""
        ...

    def statistics(self) -> CheckpointStatistics: ...


@dataclass(frozen=True, slots=True)
class _Served:
    """A table and what is the same for every call of it."""

    table: Table
    signature_hash: int
    item_nbytes: int


class ReplayService:
    """Every method. Safe to share between threads."""

    def __init__(
        self,
        tables: Mapping[str, Table],
        limits: Limits,
        checkpoints: Checkpoints | None,
        on_drain: Callable[[], None],
    ) -> None:
        self._served = {
            name: _Served(
                table,
                wire.signature_hash(table.signature),
                # Keys and probabilities travel too; stacks that share nothing, and their indices.
                16 + sum(_travel_nbytes(column) for column in table.signature.values()),
            )
            for name, table in tables.items()
        }
        self._limits = limits
        self._checkpoints = checkpoints
        self._on_drain = on_drain
        self._reception = Reception(limits, self._dismiss)
        self._started = time.monotonic()

    def handler(self) -> grpc.GenericRpcHandler:
        """What a gRPC server routes. No deserialisers: malformed bytes are ours to refuse."""
        insert = Method(pb.InsertRequest, self._insert, "insert")
        sample = Method(pb.SampleRequest, self._sample, "sample", self._sample_nbytes)
        update = Method(pb.UpdatePrioritiesRequest, self._update_priorities, "update")
        unary = {
            "Describe": Method(pb.DescribeRequest, self._describe),
            "Insert": insert,
            "Sample": sample,
            "Weigh": Method(pb.SampleRequest, self._weigh),
            "UpdatePriorities": update,
            "Statistics": Method(pb.StatisticsRequest, self._statistics),
            "ConfigureLimiter": Method(pb.ConfigureLimiterRequest, self._configure_limiter),
            "ConfigureConsumers": Method(pb.ConfigureConsumersRequest, self._configure_consumers),
            "Checkpoint": Method(pb.CheckpointRequest, self._checkpoint),
            "Drain": Method(pb.DrainRequest, self._drain),
        }
        reception = self._reception
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(reception.unary(method))
            for name, method in unary.items()
        }
        for name, behaviour in (
            ("InsertStream", reception.stream(insert, _refused_insert)),
            ("SampleStream", reception.stream(sample, _refused_sample)),
            ("UpdatePrioritiesStream", reception.stream(update, _refused_update)),
        ):
            methods[name] = grpc.stream_stream_rpc_method_handler(behaviour)
        return grpc.method_handlers_generic_handler(wire.SERVICE, methods)

    def drain(self, timeout_seconds: float) -> int:
        """No more work is taken, those who wait are sent away; returns what is still under way."""
        self._on_drain()
        self._reception.drain()
        for served in self._served.values():
            served.table.close("the shard is draining: use another")
        return self._reception.wait_until_idle(timeout_seconds)

    def statistics(self) -> ShardStatistics:
        reception = self._reception
        return ShardStatistics(
            tables={name: served.table.statistics() for name, served in self._served.items()},
            requests={kind: times.statistics() for kind, times in reception.times.items()},
            refused=reception.refused,
            checkpoint=None if self._checkpoints is None else self._checkpoints.statistics(),
            uptime_seconds=time.monotonic() - self._started,
            clients=reception.clients,
            open_streams=reception.open_streams,
            running_requests=reception.running,
            inflight_nbytes=reception.inflight_nbytes,
            draining=reception.draining,
        )

    def request_times(self) -> dict[Kind, Histogram]:
        """Since the start."""
        return {kind: times.total() for kind, times in self._reception.times.items()}

    def _dismiss(self, caller: Caller) -> None:
        for served in self._served.values():
            served.table.dismiss(caller, "the caller hung up")

    def _describe(self, request: pb.DescribeRequest, call: Call) -> pb.DescribeResponse:
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
                    consumes=served.table.consumes,
                )
                for name, served in self._served.items()
            ],
        )

    def _insert(self, request: pb.InsertRequest, call: Call) -> pb.InsertResponse:
        served = self._find(request.table)
        _check_hash(request.signature_hash, served)
        call = call.limited(request)
        origin = Origin(request.writer, request.sequence)
        columns = wire.read_items(request, served.table.signature, self._limits.max_message_bytes)
        items = len(columns["reward"])
        priorities = None
        if request.HasField("priorities"):
            priorities = wire.decode_vector(request.priorities, wire.PRIORITIES, "priorities")
            if len(priorities) != items:
                raise UsageError(f"{items} items came with {len(priorities)} priorities")
        with self._reception.work():
            previous = served.table.last_sequence(origin.writer)
            new = self._reception.patiently(
                call,
                lambda seconds: served.table.insert_once(
                    origin, columns, priorities, timeout_seconds=seconds, caller=call.caller
                ),
            )
        return pb.InsertResponse(
            sequence=request.sequence, items=items, duplicate=not new, previous_sequence=previous
        )

    def _sample(self, request: pb.SampleRequest, call: Call) -> pb.SampleResponse:
        served = self._find(request.table)
        _check_hash(request.signature_hash, served)
        call = call.limited(request)
        nbytes = _response_nbytes(request, served)
        if nbytes > self._limits.max_message_bytes:
            raise ReplayOverload(
                f"a sample of {request.size} items takes {nbytes} bytes, more than the "
                f"{self._limits.max_message_bytes} of one message: sample smaller batches"
            )
        wanted, compression = wire.read_request(request), wire.read_compression(request)
        with self._reception.work():
            draw = self._reception.patiently(
                call,
                lambda seconds: served.table.draw(
                    wanted, timeout_seconds=seconds, caller=call.caller
                ),
            )
        return wire.encode_draw(draw, compression)

    def _weigh(self, request: pb.SampleRequest, call: Call) -> pb.Population:
        served = self._find(request.table)
        _check_hash(request.signature_hash, served)
        with self._reception.work():
            return wire.encode_population(served.table.population(wire.read_request(request)))

    def _update_priorities(
        self, request: pb.UpdatePrioritiesRequest, call: Call
    ) -> pb.UpdatePrioritiesResponse:
        served = self._find(request.table)
        keys = wire.decode_vector(request.keys, wire.KEYS, "keys")
        priorities = wire.decode_vector(request.priorities, wire.PRIORITIES, "priorities")
        with self._reception.work():
            served.table.update_priorities(keys, priorities)
        return pb.UpdatePrioritiesResponse()

    def _statistics(self, request: pb.StatisticsRequest, call: Call) -> pb.StatisticsResponse:
        return encode_statistics(self.statistics())

    def _configure_limiter(
        self, request: pb.ConfigureLimiterRequest, call: Call
    ) -> pb.ConfigureLimiterResponse:
        settings = request.settings
        ratio, buffer = settings.samples_per_insert, settings.error_buffer
        items = settings.consumer_buffer_items
        self._find(request.table).table.configure_limiter(
            min_size=settings.min_size,
            samples_per_insert=ratio if settings.HasField("samples_per_insert") else None,
            error_buffer=buffer if settings.HasField("error_buffer") else None,
            consumers=dict(settings.consumers),
            consumer_buffer_items=items if settings.HasField("consumer_buffer_items") else None,
        )
        logger.info("%s set the limiter of %r", call.caller.name or "somebody", request.table)
        return pb.ConfigureLimiterResponse()

    def _configure_consumers(
        self, request: pb.ConfigureConsumersRequest, call: Call
    ) -> pb.ConfigureConsumersResponse:
        ratios = dict(request.samples_per_insert)
        self._find(request.table).table.configure_consumers(ratios)
        logger.info("%s set ratios of %r: %s", call.caller.name, request.table, ratios)
        return pb.ConfigureConsumersResponse()

    def _checkpoint(self, request: pb.CheckpointRequest, call: Call) -> pb.CheckpointResponse:
        if self._checkpoints is None:
            raise ReplayMismatch("this shard has no checkpoint directory: start it with one")
        saved = self._checkpoints.save(wait_seconds=call.wait_seconds)
        return pb.CheckpointResponse(path=str(saved.path), items=saved.items, bytes=saved.nbytes)

    def _drain(self, request: pb.DrainRequest, call: Call) -> pb.DrainResponse:
        return pb.DrainResponse(running_requests=self.drain(call.wait_seconds))

    def _sample_nbytes(self, request: pb.SampleRequest) -> int:
        served = self._served.get(request.table)
        if served is None:
            return 0
        return min(_response_nbytes(request, served), self._limits.max_message_bytes)

    def _find(self, name: str) -> _Served:
        served = self._served.get(name)
        if served is None:
            known = ", ".join(self._served)
            raise UnknownTable(f"there is no table {name[:100]!r} here: there is {known}")
        return served


def _response_nbytes(request: pb.SampleRequest, served: _Served) -> int:
    """Of a sample, at most."""
    return request.size * served.item_nbytes + RESPONSE_OVERHEAD_BYTES


def _travel_nbytes(column: ColumnSpec) -> int:
    """Of one item at most."""
    return column.nbytes + (4 * column.stack if column.stack > 1 else 0)


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
