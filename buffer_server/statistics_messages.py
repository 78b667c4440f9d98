"""Statistics as messages and back."""

from __future__ import annotations

from buffer_server.callers import Blocked
from buffer_server.proto import replay_pb2 as pb
from buffer_server.statistics import (
    CheckpointStatistics,
    ConsumerStatistics,
    PolicyShare,
    RequestStatistics,
    ShardStatistics,
    TableStatistics,
)


def encode_statistics(shard: ShardStatistics) -> pb.StatisticsResponse:
    return pb.StatisticsResponse(
        tables=[_encode_table(name, table) for name, table in shard.tables.items()],
        requests=[
            pb.RequestStatistics(
                operation=operation,
                count=request.count,
                per_second=request.per_second,
                p50_seconds=request.p50_seconds,
                p99_seconds=request.p99_seconds,
            )
            for operation, request in shard.requests.items()
        ],
        refused=[pb.Refused(code=code, count=count) for code, count in shard.refused.items()],
        checkpoint=None if shard.checkpoint is None else _encode_checkpoint(shard.checkpoint),
        uptime_seconds=shard.uptime_seconds,
        clients=shard.clients,
        open_streams=shard.open_streams,
        running_requests=shard.running_requests,
        inflight_bytes=shard.inflight_nbytes,
        draining=shard.draining,
    )


def decode_statistics(response: pb.StatisticsResponse) -> ShardStatistics:
    has_checkpoint = response.HasField("checkpoint")
    return ShardStatistics(
        tables={table.name: _decode_table(table) for table in response.tables},
        requests={
            request.operation: RequestStatistics(
                request.count, request.per_second, request.p50_seconds, request.p99_seconds
            )
            for request in response.requests
        },
        refused={refused.code: refused.count for refused in response.refused},
        checkpoint=_decode_checkpoint(response.checkpoint) if has_checkpoint else None,
        uptime_seconds=response.uptime_seconds,
        clients=response.clients,
        open_streams=response.open_streams,
        running_requests=response.running_requests,
        inflight_nbytes=response.inflight_bytes,
        draining=response.draining,
    )


def _encode_table(name: str, table: TableStatistics) -> pb.TableStatistics:
    return pb.TableStatistics(
        name=name,
        size_items=table.size,
        capacity_items=table.capacity,
        size_bytes=table.size_nbytes,
        capacity_bytes=table.capacity_nbytes,
        inserted_items=table.inserted,
        sampled_items=table.sampled,
        evicted_items=table.evicted,
        duplicate_inserts=table.duplicate_inserts,
        limiter=pb.LimiterSettings(
            min_size=table.min_size,
            samples_per_insert=table.samples_per_insert,
            error_buffer=table.error_buffer,
            consumers={one.consumer: one.samples_per_insert for one in table.consumers},
            consumer_buffer_items=table.consumer_buffer_items,
        ),
        surplus=table.surplus,
        insert_wait_seconds=table.insert_wait_seconds,
        sample_wait_seconds=table.sample_wait_seconds,
        newest_age_seconds=table.newest_age_seconds,
        oldest_age_seconds=table.oldest_age_seconds,
        policies=[
            pb.PolicyShare(
                policy_id=share.policy_id, items=share.items, newest_version=share.newest_version
            )
            for share in table.policies
        ],
        blocked=[
            pb.Blocked(
                caller=one.caller,
                operation=one.operation,
                items=one.items,
                seconds=one.seconds,
                reason=one.reason,
                consumer=one.consumer,
            )
            for one in table.blocked
        ],
        consumers=[
            pb.ConsumerStatistics(
                consumer=one.consumer,
                samples_per_insert=one.samples_per_insert,
                sampled_items=one.sampled,
                surplus=one.surplus,
                caller=one.caller,
                waiting_samples=one.waiting_samples,
                held_inserts=one.held_inserts,
            )
            for one in table.consumers
        ],
    )


def _decode_table(table: pb.TableStatistics) -> TableStatistics:
    limiter = table.limiter
    has_ratio, has_buffer, has_items = (
        limiter.HasField("samples_per_insert"),
        limiter.HasField("error_buffer"),
        limiter.HasField("consumer_buffer_items"),
    )
    has_newest, has_oldest = (
        table.HasField("newest_age_seconds"),
        table.HasField("oldest_age_seconds"),
    )
    return TableStatistics(
        size=table.size_items,
        capacity=table.capacity_items,
        size_nbytes=table.size_bytes,
        capacity_nbytes=table.capacity_bytes,
        inserted=table.inserted_items,
        sampled=table.sampled_items,
        evicted=table.evicted_items,
        duplicate_inserts=table.duplicate_inserts,
        min_size=limiter.min_size,
        samples_per_insert=limiter.samples_per_insert if has_ratio else None,
        error_buffer=limiter.error_buffer if has_buffer else None,
        surplus=table.surplus,
        insert_wait_seconds=table.insert_wait_seconds,
        sample_wait_seconds=table.sample_wait_seconds,
        newest_age_seconds=table.newest_age_seconds if has_newest else None,
        oldest_age_seconds=table.oldest_age_seconds if has_oldest else None,
        policies=tuple(
            PolicyShare(share.policy_id, share.items, share.newest_version)
            for share in table.policies
        ),
        blocked=tuple(
            Blocked(
                one.caller,
                "insert" if one.operation == "insert" else "sample",
                one.items,
                one.seconds,
                one.reason,
                one.consumer if one.HasField("consumer") else None,
            )
            for one in table.blocked
        ),
        consumer_buffer_items=limiter.consumer_buffer_items if has_items else None,
        consumers=tuple(
            ConsumerStatistics(
                one.consumer,
                one.samples_per_insert,
                one.sampled_items,
                one.surplus,
                one.caller,
                one.waiting_samples,
                one.held_inserts,
            )
            for one in table.consumers
        ),
    )


def _encode_checkpoint(checkpoint: CheckpointStatistics) -> pb.CheckpointStatistics:
    return pb.CheckpointStatistics(
        path=checkpoint.path,
        age_seconds=checkpoint.age_seconds,
        duration_seconds=checkpoint.duration_seconds,
        items=checkpoint.items,
        bytes=checkpoint.nbytes,
        failures=checkpoint.failures,
    )


def _decode_checkpoint(checkpoint: pb.CheckpointStatistics) -> CheckpointStatistics:
    return CheckpointStatistics(
        path=checkpoint.path,
        age_seconds=checkpoint.age_seconds if checkpoint.HasField("age_seconds") else None,
        duration_seconds=checkpoint.duration_seconds,
        items=checkpoint.items,
        nbytes=checkpoint.bytes,
        failures=checkpoint.failures,
    )
