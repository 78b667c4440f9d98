"""A shard's numbers for Prometheus: `repertory_replay_...`, units in the names.

They are read from the shard's statistics when somebody asks, so that serving costs nothing more.
Counts begin with the process, but for what a checkpoint brings back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import grpc
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from buffer_server.reception import Kind
from buffer_server.request_times import BOUNDS, Histogram
from buffer_server.server import ReplayServer
from buffer_server.statistics import CheckpointStatistics, ShardStatistics, TableStatistics

PREFIX = "repertory_replay_"
CODES = {code.value[0]: code.name.lower() for code in grpc.StatusCode}


class ShardCollector(Collector):
    """Asks the server each time it is asked."""

    def __init__(self, server: ReplayServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        shard = self._server.statistics()
        yield from _of_shard(shard)
        yield from _of_tables(shard)
        yield from _of_requests(self._server.request_times())
        if shard.checkpoint is not None:
            yield from _of_checkpoint(shard.checkpoint)


def _of_shard(shard: ShardStatistics) -> Iterator[Metric]:
    yield _gauge("uptime_seconds", "Since the shard was made.", shard.uptime_seconds)
    yield _gauge("clients", "Callers heard of within the last minute.", shard.clients)
    yield _gauge("open_streams", "Streams that are open.", shard.open_streams)
    yield _gauge("running_requests", "Requests under way.", shard.running_requests)
    yield _gauge("inflight_bytes", "Bytes of messages under way.", shard.inflight_nbytes)
    yield _gauge("draining", "1 while no more work is taken.", shard.draining)
    refused = CounterMetricFamily(
        PREFIX + "refused_requests", "Requests that were not done.", labels=["code"]
    )
    for code, count in shard.refused.items():
        refused.add_metric([CODES.get(code, str(code))], count)
    yield refused


def _of_tables(shard: ShardStatistics) -> Iterator[Metric]:
    def counter(name: str, help_: str) -> CounterMetricFamily:
        return CounterMetricFamily(PREFIX + name, help_, labels=["table"])

    def gauge(name: str, help_: str, labels: Sequence[str] = ("table",)) -> GaugeMetricFamily:
        return GaugeMetricFamily(PREFIX + name, help_, labels=labels)

    families: list[tuple[Metric, str]] = [
        (gauge("size_items", "Items in the table."), "size"),
        (gauge("capacity_items", "Items it has room for."), "capacity"),
        (gauge("size_bytes", "Bytes of its items."), "size_nbytes"),
        (gauge("capacity_bytes", "Bytes when it is full."), "capacity_nbytes"),
        (gauge("surplus_samples", "Samples owed for what was inserted."), "surplus"),
        (gauge("newest_item_age_seconds", "Since the last insert."), "newest_age_seconds"),
        (gauge("oldest_item_age_seconds", "Since a restart at most."), "oldest_age_seconds"),
        (counter("inserted_items", "Items ever inserted."), "inserted"),
        (counter("sampled_items", "Items ever sampled."), "sampled"),
        (counter("evicted_items", "Items inserted and no longer here."), "evicted"),
        (counter("duplicate_inserts", "Repeated inserts, not done twice."), "duplicate_inserts"),
        (counter("insert_wait_seconds", "Inserts held back, together."), "insert_wait_seconds"),
        (counter("sample_wait_seconds", "Samples held back, together."), "sample_wait_seconds"),
    ]
    for family, field in families:
        for name, table in shard.tables.items():
            value = getattr(table, field)
            if value is not None:
                family.add_metric([name], value)  # type: ignore[attr-defined]
        yield family
    blocked = gauge("blocked_callers", "Callers that wait now.", ("table", "operation"))
    policies = gauge("policy_items", "Items of each policy.", ("table", "policy_id"))
    versions = gauge("policy_newest_version", "Newest version of each.", ("table", "policy_id"))
    for name, table in shard.tables.items():
        for operation in ("insert", "sample"):
            blocked.add_metric([name, operation], _blocked(table, operation))
        for share in table.policies:
            policies.add_metric([name, str(share.policy_id)], share.items)
            versions.add_metric([name, str(share.policy_id)], share.newest_version)
    yield from (blocked, policies, versions)
    yield from _of_consumers(shard)


def _of_consumers(shard: ShardStatistics) -> Iterator[Metric]:
    def gauge(name: str, help_: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{PREFIX}consumer_{name}", help_, labels=labels)

    labels = ["table", "consumer"]
    sampled = CounterMetricFamily(
        PREFIX + "consumer_sampled_items", "Items it ever sampled.", labels=labels
    )
    families: list[tuple[Metric, str]] = [
        (gauge("samples_per_insert", "Its ratio."), "samples_per_insert"),
        (sampled, "sampled"),
        (gauge("surplus_samples", "Samples that it owes."), "surplus"),
        (gauge("waiting_samples", "Its samples that wait now."), "waiting_samples"),
        (gauge("held_inserts", "Inserts that wait for it now."), "held_inserts"),
    ]
    for family, field in families:
        for name, table in shard.tables.items():
            for one in table.consumers:
                value = getattr(one, field)
                family.add_metric([name, str(one.consumer)], value)  # type: ignore[attr-defined]
        yield family


def _blocked(table: TableStatistics, operation: str) -> int:
    return sum(one.operation == operation for one in table.blocked)


def _of_requests(times: Mapping[Kind, Histogram]) -> Iterator[Metric]:
    family = HistogramMetricFamily(
        PREFIX + "request_seconds",
        "How long requests took, without the wait for a limiter.",
        labels=["operation"],
    )
    for operation, histogram in times.items():
        upto, buckets = 0, []
        bounds = [*(f"{bound:.6g}" for bound in BOUNDS), "+Inf"]
        for bound, count in zip(bounds, histogram.counts, strict=True):
            upto += count
            buckets.append((bound, float(upto)))
        family.add_metric([operation], buckets, histogram.total_seconds)
    yield family


def _of_checkpoint(checkpoint: CheckpointStatistics) -> Iterator[Metric]:
    if checkpoint.age_seconds is not None:
        yield _gauge("checkpoint_age_seconds", "Since it was begun.", checkpoint.age_seconds)
    yield _gauge("checkpoint_duration_seconds", "Of the last one.", checkpoint.duration_seconds)
    yield _gauge("checkpoint_items", "Items in the last one.", checkpoint.items)
    yield _gauge("checkpoint_bytes", "Bytes of the last one.", checkpoint.nbytes)
    failures = CounterMetricFamily(PREFIX + "checkpoint_failures", "That could not be written.")
    failures.add_metric([], checkpoint.failures)
    yield failures


def _gauge(name: str, help_: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, help_, value=value)
