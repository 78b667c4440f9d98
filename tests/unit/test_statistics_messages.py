"""Statistics travel whole: every field comes back, and what is unknown stays unknown."""

from __future__ import annotations

import pytest

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
from buffer_server.statistics_messages import decode_statistics, encode_statistics


def shard(*, known: bool) -> ShardStatistics:
    """Every number another one; `known`: also those that may be missing."""
    table = TableStatistics(
        size=1,
        capacity=2,
        size_nbytes=3,
        capacity_nbytes=4,
        inserted=5,
        sampled=6,
        evicted=7,
        duplicate_inserts=8,
        min_size=9,
        samples_per_insert=10.5 if known else None,
        error_buffer=11.5 if known else None,
        surplus=-12.5,
        insert_wait_seconds=13.5,
        sample_wait_seconds=14.5,
        newest_age_seconds=15.5 if known else None,
        oldest_age_seconds=16.5 if known else None,
        policies=(PolicyShare(-17, 18, 19),) if known else (),
        blocked=(
            Blocked("actor-1", "insert", 20, 21.5, "it is full"),
            Blocked("learner", "sample", 37, 38.5, "it is ahead", 0),
        )
        if known
        else (),
        consumer_buffer_items=39 if known else None,
        consumers=(ConsumerStatistics(0, 0.0, 40, -41.5, "sac", 42, 43),) if known else (),
    )
    checkpoint = CheckpointStatistics("/saved/step_1", 22.5 if known else None, 23.5, 24, 25, 26)
    return ShardStatistics(
        tables={"replay": table},
        requests={"sample": RequestStatistics(27, 28.5, 29.5, 30.5)},
        refused={14: 31},
        checkpoint=checkpoint if known else None,
        uptime_seconds=32.5,
        clients=33,
        open_streams=34,
        running_requests=35,
        inflight_nbytes=36,
        draining=True,
    )


@pytest.mark.parametrize("known", [True, False])
def test_statistics_come_back(known: bool) -> None:
    raw = encode_statistics(shard(known=known)).SerializeToString()
    assert decode_statistics(pb.StatisticsResponse.FromString(raw)) == shard(known=known)


def test_a_checkpoint_of_no_age_comes_back_without_one() -> None:
    statistics = shard(known=True)
    assert statistics.checkpoint is not None
    response = encode_statistics(statistics)
    response.checkpoint.ClearField("age_seconds")
    decoded = decode_statistics(response).checkpoint
    assert decoded is not None
    assert decoded.age_seconds is None
