"""The `Replay` of actors and learners whose table is on a shard.

    client = ReplayClient(ClientConfig(address="unix:/run/shard-0.sock", table="td3"))
    client.insert(batch)
    sample = client.sample(256, timeout_seconds=10.0)
    client.update_priorities(sample.keys, priorities)

With `prefetch` batches are under way before they are asked for; with `insert_window_bytes` inserts
return before they are acknowledged. Every call has a deadline, is repeated while the shard is gone,
and raises our own errors only. An insert that is repeated is done once. A sample that is repeated
draws anew.
"""

from __future__ import annotations

import itertools
import os
from types import TracebackType

import numpy as np

from buffer_server import wire
from buffer_server.connection import ClientConfig, Connection
from buffer_server.pipelines import SLICE_SECONDS, InsertPipeline, SamplePipeline
from buffer_server.proto import replay_pb2 as pb
from buffer_server.statistics import ShardStatistics
from buffer_server.statuses import ReplayMismatch, ReplayOverload, UnknownTable
from buffer_server.writer_ledger import WRITER_BYTES
from repertory.errors import UsageError
from repertory.types import Array, Sample, Signature, TransitionBatch

__all__ = ["ClientConfig", "ReplayClient"]


class ReplayClient:
    """One table of one shard. Safe to share between threads. Making one needs the shard."""

    def __init__(self, config: ClientConfig, signature: Signature | None = None) -> None:
        """With a signature, a table with another one is refused."""
        self.config = config
        self._connection = Connection(config)
        self._writer = os.urandom(WRITER_BYTES)
        self._sequences = itertools.count(1)
        try:
            self._describe(signature)
        except BaseException:
            self._connection.close()
            raise
        self._samples = (
            SamplePipeline(self._connection, config.prefetch, self._sample_request, self._decode)
            if config.prefetch
            else None
        )
        self._inserts = (
            InsertPipeline(self._connection, config.insert_window_bytes)
            if config.insert_window_bytes
            else None
        )

    def insert(
        self,
        batch: TransitionBatch,
        priorities: Array | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> int:
        """How many items there were. With a window they are under way; `flush` waits for them."""
        timeout_seconds = self._timeout(timeout_seconds)
        request = pb.InsertRequest(
            table=self.config.table,
            signature_hash=self._signature_hash,
            writer=self._writer,
            sequence=next(self._sequences),
            timeout_seconds=timeout_seconds if self._inserts is None else SLICE_SECONDS,
        )
        wire.write_columns(request.columns, batch.columns())
        if priorities is not None:
            wire.write_column(request.priorities, "", np.asarray(priorities))
        nbytes = request.ByteSize()
        if nbytes > self._max_message_bytes:
            raise ReplayOverload(
                f"an insert of {len(batch)} items takes {nbytes} bytes, more than the "
                f"{self._max_message_bytes} of one message: insert smaller batches, "
                "or raise max_message_bytes on both sides"
            )
        if self._inserts is None:
            self._connection.call("Insert", request, pb.InsertResponse, timeout_seconds)
        else:
            self._inserts.submit(request.sequence, request.SerializeToString(), timeout_seconds)
        return len(batch)

    def flush(self, *, timeout_seconds: float | None = None) -> None:
        """Returns when every insert is acknowledged."""
        if self._inserts is not None:
            self._inserts.flush(self._timeout(timeout_seconds))

    def sample(self, size: int, *, timeout_seconds: float) -> Sample:
        """Arrays that the caller owns."""
        if not 1 <= size < 2**32:
            raise UsageError(f"a sample of {size} items was asked for: give at least 1")
        if not 0 <= timeout_seconds <= 3600:
            raise UsageError(f"a timeout of {timeout_seconds} s: give 0 to 3600 seconds")
        if self._samples is not None:
            return self._samples.take(size, timeout_seconds)
        request = pb.SampleRequest(
            table=self.config.table,
            signature_hash=self._signature_hash,
            size=size,
            timeout_seconds=timeout_seconds,
        )
        return self._decode(
            self._connection.call("Sample", request, pb.SampleResponse, timeout_seconds)
        )

    def update_priorities(self, keys: Array, priorities: Array) -> None:
        """Keys of items that were overwritten meanwhile are ignored."""
        request = pb.UpdatePrioritiesRequest(table=self.config.table)
        wire.write_column(request.keys, "", np.asarray(keys, dtype=np.int64))
        wire.write_column(request.priorities, "", np.asarray(priorities))
        self._connection.call(
            "UpdatePriorities", request, pb.UpdatePrioritiesResponse, self.config.timeout_seconds
        )

    def statistics(self) -> ShardStatistics:
        return wire.decode_statistics(
            self._connection.call(
                "Statistics",
                pb.StatisticsRequest(),
                pb.StatisticsResponse,
                self.config.timeout_seconds,
            )
        )

    def configure_limiter(
        self,
        *,
        min_size: int,
        samples_per_insert: float | None = None,
        error_buffer: float | None = None,
    ) -> None:
        """Takes the place of all settings of the table's limiter, while it runs."""
        if not 0 <= min_size < 2**63:
            raise UsageError(f"min_size {min_size} would sample from nothing: give at least 1")
        settings = pb.LimiterSettings(
            min_size=min_size, samples_per_insert=samples_per_insert, error_buffer=error_buffer
        )
        self._connection.call(
            "ConfigureLimiter",
            pb.ConfigureLimiterRequest(table=self.config.table, settings=settings),
            pb.ConfigureLimiterResponse,
            self.config.timeout_seconds,
        )

    def checkpoint(self, *, timeout_seconds: float) -> str:
        """Where the shard has written its tables, on its machine."""
        return self._connection.call(
            "Checkpoint", pb.CheckpointRequest(), pb.CheckpointResponse, timeout_seconds
        ).path

    def drain(self, *, timeout_seconds: float) -> int:
        """The shard takes no more work; how many requests are still under way."""
        return self._connection.call(
            "Drain", pb.DrainRequest(), pb.DrainResponse, timeout_seconds
        ).running_requests

    def close(self) -> int:
        """Returns how many inserts were not acknowledged; `flush` first to have none."""
        unacknowledged = 0 if self._inserts is None else self._inserts.close()
        self._connection.close()  # whoever waits for a sample is told so
        if self._samples is not None:
            self._samples.close()
        return unacknowledged

    def __enter__(self) -> ReplayClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _describe(self, expected: Signature | None) -> None:
        described = self._connection.call(
            "Describe", pb.DescribeRequest(), pb.DescribeResponse, self.config.timeout_seconds
        )
        tables = {table.name: table for table in described.tables}
        address = self.config.address
        if self.config.table not in tables:
            raise UnknownTable(
                f"the replay shard at {address} has no table {self.config.table!r}: "
                f"it has {', '.join(tables)}"
            )
        table = tables[self.config.table]
        self.capacity = table.capacity_items
        self.signature = wire.decode_signature(table.signature)
        self._signature_hash = table.signature_hash
        self._max_message_bytes = min(described.max_message_bytes, self.config.max_message_bytes)
        if expected is not None and wire.signature_hash(expected) != table.signature_hash:
            raise ReplayMismatch(
                f"table {self.config.table!r} at {address} holds {self.signature}, "
                f"but {dict(expected)} is expected: is it another environment's?"
            )

    def _sample_request(self, size: int, wait_seconds: float) -> bytes:
        return pb.SampleRequest(
            table=self.config.table,
            signature_hash=self._signature_hash,
            size=size,
            timeout_seconds=wait_seconds,
        ).SerializeToString()

    def _decode(self, response: pb.SampleResponse) -> Sample:
        return wire.decode_draw(response, self.signature).sample()

    def _timeout(self, timeout_seconds: float | None) -> float:
        return self.config.timeout_seconds if timeout_seconds is None else timeout_seconds
