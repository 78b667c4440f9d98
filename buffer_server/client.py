"""One shard, one call at a time: for operators, and for programs that need no more.

    client = ReplayClient(ClientConfig(address="unix:/run/shard-0.sock", table="td3"))
    client.insert(batch)
    sample = client.sample(256, timeout_seconds=10.0)
    client.update_priorities(sample.keys, priorities)

Actors and learners use `ShardedReplay`, also where there is one shard: it has several requests
under way. Here every call waits for its answer, is repeated while the shard is gone, has a
deadline, and raises our own errors only. An insert that is repeated is done once. A sample that is
repeated draws anew.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from buffer_server.addresses import check_address
from buffer_server.connection import Connection, ConnectionConfig
from buffer_server.consumers import LARGEST_CONSUMER
from buffer_server.draws import Draw, DrawRequest
from buffer_server.proto import replay_pb2 as pb
from buffer_server.remote_table import (
    RemoteTable,
    check_sample,
    consumers_request,
    limiter_request,
    update_request,
)
from buffer_server.statistics import ShardStatistics
from buffer_server.statistics_messages import decode_statistics
from buffer_server.writer_ledger import WRITER_BYTES
from repertory.closing import Closing
from repertory.types import Array, Sample, Signature, TransitionBatch


class ClientConfig(ConnectionConfig):
    address: Annotated[str, AfterValidator(check_address)]
    table: str
    # Whose ratio its samples count for, in a table that several share: a place in the portfolio.
    consumer: int | None = Field(default=None, ge=0, le=LARGEST_CONSUMER)


class ReplayClient(Closing):
    """One table of one shard. Safe to share between threads. Making one needs the shard."""

    def __init__(self, config: ClientConfig, signature: Signature | None = None) -> None:
        """With a signature, a table with another one is refused."""
        self.config = config
        self._connection = Connection(config.address, config)
        self._writer = os.urandom(WRITER_BYTES)
        self._sequences = itertools.count(1)
        try:
            described = self._connection.call(
                "Describe", pb.DescribeRequest(), pb.DescribeResponse, config.timeout_seconds
            )
            self._table = RemoteTable.described(
                described, config.table, config.address, config, signature
            )
        except BaseException:
            self._connection.close()
            raise

    @property
    def signature(self) -> Signature:
        return self._table.signature

    @property
    def capacity(self) -> int:
        """Items."""
        return self._table.capacity

    def insert(
        self,
        batch: TransitionBatch,
        priorities: Array | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> int:
        """How many items there were; they are in the shard."""
        if timeout_seconds is None:
            timeout_seconds = self.config.timeout_seconds
        request = self._table.insert_request(batch, priorities, timeout_seconds)
        request.writer, request.sequence = self._writer, next(self._sequences)
        self._connection.call("Insert", request, pb.InsertResponse, timeout_seconds)
        return len(batch)

    def sample(self, size: int, *, timeout_seconds: float) -> Sample:
        """Arrays that the caller owns."""
        check_sample(size, timeout_seconds)
        draw = DrawRequest(size, consumer=self.config.consumer)
        return self.draw(draw, timeout_seconds=timeout_seconds).sample()

    def draw(self, request: DrawRequest, *, timeout_seconds: float) -> Draw:
        """The same, with wishes of whose experience it is; see `DrawRequest`."""
        message = self._table.sample_request(request, timeout_seconds)
        response = self._connection.call("Sample", message, pb.SampleResponse, timeout_seconds)
        return self._table.read_draw(response, writable=True)

    def update_priorities(self, keys: Array, priorities: Array) -> None:
        """Keys of items that were overwritten meanwhile are ignored."""
        self._connection.call(
            "UpdatePriorities",
            update_request(self.config.table, keys, priorities),
            pb.UpdatePrioritiesResponse,
            self.config.timeout_seconds,
        )

    def statistics(self) -> ShardStatistics:
        return decode_statistics(
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
        consumers: Mapping[int, float] | None = None,
        consumer_buffer_items: int | None = None,
    ) -> None:
        """Takes the place of all settings of the table's limiter, while it runs."""
        self._connection.call(
            "ConfigureLimiter",
            limiter_request(
                self.config.table,
                min_size,
                samples_per_insert,
                error_buffer,
                consumers,
                consumer_buffer_items,
            ),
            pb.ConfigureLimiterResponse,
            self.config.timeout_seconds,
        )

    def configure_consumers(self, ratios: Mapping[int, float]) -> None:
        """Other samples per insert for these consumers of the table, while it runs."""
        self._connection.call(
            "ConfigureConsumers",
            consumers_request(self.config.table, ratios),
            pb.ConfigureConsumersResponse,
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

    def close(self) -> None:
        """Whoever waits is told so."""
        self._connection.close()
