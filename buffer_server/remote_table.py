"""What a shard says of one of its tables, and how requests for it are written.

Both clients have one, from the handshake (`Describe`): `ReplayClient` of its shard, `ShardedReplay`
of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from buffer_server import wire
from buffer_server.connection import ConnectionConfig
from buffer_server.draws import Draw, DrawRequest
from buffer_server.frames import share_frames
from buffer_server.proto import replay_pb2 as pb
from buffer_server.statuses import ReplayMismatch, ReplayOverload, UnknownTable
from repertory.errors import UsageError
from repertory.types import Array, Signature, TransitionBatch

LONGEST_TIMEOUT_SECONDS = 3600.0
NAME_BYTES = 32  # of writer and sequence in an insert


@dataclass(frozen=True, slots=True)
class RemoteTable:
    """A table on a shard."""

    name: str
    address: str
    signature: Signature
    signature_hash: int
    capacity: int  # items
    consumes: bool  # a queue: items are used up by sampling
    max_message_bytes: int  # of the side that takes less
    compression: wire.Compression

    @classmethod
    def described(
        cls,
        response: pb.DescribeResponse,
        name: str,
        address: str,
        config: ConnectionConfig,
        expected: Signature | None = None,
    ) -> RemoteTable:
        """With an expected signature, a table with another one is refused."""
        tables = {table.name: table for table in response.tables}
        if name not in tables:
            raise UnknownTable(
                f"the replay shard at {address} has no table {name!r}: it has {', '.join(tables)}"
            )
        table = tables[name]
        signature = wire.decode_signature(table.signature)
        if expected is not None and wire.signature_hash(expected) != table.signature_hash:
            raise ReplayMismatch(
                f"table {name!r} at {address} holds {signature}, "
                f"but {dict(expected)} is expected: is it another environment's?"
            )
        return cls(
            name,
            address,
            signature,
            table.signature_hash,
            table.capacity_items,
            table.consumes,
            min(response.max_message_bytes, config.max_message_bytes),
            config.compression,
        )

    def insert_request(
        self, batch: TransitionBatch, priorities: Array | None, timeout_seconds: float
    ) -> pb.InsertRequest:
        """Without the name of its writer: who sends it adds that."""
        request = pb.InsertRequest(
            table=self.name, signature_hash=self.signature_hash, timeout_seconds=timeout_seconds
        )
        columns = share_frames(batch.columns(), self.signature)
        wire.write_items(request, columns, self.compression)
        if priorities is not None:
            wire.write_column(request.priorities, "", np.asarray(priorities))
        nbytes = request.ByteSize() + NAME_BYTES
        if nbytes > self.max_message_bytes:
            raise ReplayOverload(
                f"an insert of {len(batch)} items takes {nbytes} bytes, more than the "
                f"{self.max_message_bytes} of one message: insert smaller batches, "
                "or raise max_message_bytes on both sides"
            )
        return request

    def sample_request(self, draw: DrawRequest, timeout_seconds: float) -> pb.SampleRequest:
        request = pb.SampleRequest(
            table=self.name,
            signature_hash=self.signature_hash,
            timeout_seconds=timeout_seconds,
            compression=wire.COMPRESSIONS[self.compression],
        )
        wire.write_request(request, draw)
        return request

    def read_draw(self, response: pb.SampleResponse, *, writable: bool) -> Draw:
        """Views of the received bytes, or copies that the learner owns."""
        return wire.decode_draw(response, self.signature, self.max_message_bytes, writable=writable)


def check_sample(size: int, timeout_seconds: float) -> None:
    """Raises for what no shard could be asked for."""
    if not 1 <= size < 2**32:
        raise UsageError(f"a sample of {size} items was asked for: give at least 1")
    if not 0 <= timeout_seconds <= LONGEST_TIMEOUT_SECONDS:
        raise UsageError(
            f"a timeout of {timeout_seconds} s: give 0 to {LONGEST_TIMEOUT_SECONDS:.0f} seconds"
        )


def update_request(table: str, keys: Array, priorities: Array) -> pb.UpdatePrioritiesRequest:
    request = pb.UpdatePrioritiesRequest(table=table)
    wire.write_column(request.keys, "", np.asarray(keys, dtype=np.int64))
    wire.write_column(request.priorities, "", np.asarray(priorities))
    return request


def limiter_request(
    table: str,
    min_size: int,
    samples_per_insert: float | None,
    error_buffer: float | None,
    consumers: Mapping[int, float] | None,
    consumer_buffer_items: int | None,
) -> pb.ConfigureLimiterRequest:
    if not 0 <= min_size < 2**63:
        raise UsageError(f"min_size {min_size} would sample from nothing: give at least 1")
    if consumer_buffer_items is not None and not 0 <= consumer_buffer_items < 2**63:
        raise UsageError(f"consumer_buffer_items {consumer_buffer_items}: give at least 1")
    settings = pb.LimiterSettings(
        min_size=min_size,
        samples_per_insert=samples_per_insert,
        error_buffer=error_buffer,
        consumers=_checked(consumers or {}),
        consumer_buffer_items=consumer_buffer_items,
    )
    return pb.ConfigureLimiterRequest(table=table, settings=settings)


def consumers_request(table: str, ratios: Mapping[int, float]) -> pb.ConfigureConsumersRequest:
    return pb.ConfigureConsumersRequest(table=table, samples_per_insert=_checked(ratios))


def _checked(ratios: Mapping[int, float]) -> Mapping[int, float]:
    """What can be sent; the rest is for the shard to say."""
    for consumer in ratios:
        if not 0 <= consumer < 2**32:
            raise UsageError(f"consumer {consumer} is no place in a portfolio: give 0 or more")
    return ratios
