"""What a caller believes of a shard, and of each direction to it."""

from __future__ import annotations

import pytest

from buffer_server.connection import ConnectionConfig
from buffer_server.draws import Population
from buffer_server.shards import Lane, Shard
from buffer_server.statuses import ReplayOverload, ReplayUnavailable
from repertory.errors import ReplayTimeout

ADDRESS = "unix:/nowhere/shard.sock"


@pytest.fixture
def lost() -> list[Shard]:
    return []


@pytest.fixture
def shard(lost: list[Shard]) -> Shard:
    config = ConnectionConfig(first_pause_seconds=1.0, longest_pause_seconds=1.0)
    made = Shard(0, ADDRESS, config, lost.append)
    made.away = None
    return made


def test_a_shard_is_lost_once_and_keeps_the_time_and_the_newest_reason(
    shard: Shard, lost: list[Shard]
) -> None:
    shard.lose(ReplayUnavailable(f"the replay shard at {ADDRESS}: first"))
    assert shard.away is not None
    since = shard.away.since
    shard.lose(ReplayUnavailable("second"))
    assert (shard.away.reason, shard.away.since) == ("second", since)
    assert lost == [shard]


def test_only_what_was_asked_after_a_shard_was_lost_finds_it(shard: Shard) -> None:
    shard.lose(ReplayUnavailable("gone"))
    assert shard.away is not None
    shard.find(shard.away.since - 0.001)
    assert shard.away is not None
    shard.find(shard.away.since)
    assert shard.away is None


def test_the_address_is_not_repeated_in_a_reason(shard: Shard) -> None:
    shard.lose(ReplayUnavailable(f"the replay shard at {ADDRESS}: not there"))
    assert shard.away is not None
    assert shard.away.reason == "not there"


def test_older_news_of_what_a_shard_holds_are_ignored(shard: Shard) -> None:
    shard.weigh(Population(5, 5.0), 2.0)
    shard.weigh(Population(4, 4.0), 1.0)
    assert shard.population.items == 5


def test_a_lane_whose_stream_ended_is_tried_again_after_a_pause(shard: Shard) -> None:
    lane = Lane(shard)
    lane.fail(ReplayOverload("64 streams are open"), 10.0)
    assert shard.away is None
    assert lane.usable(11.0)
    assert lane.trouble is not None
    assert lane.trouble.reason == "64 streams are open"
    lane.answered()
    assert lane.trouble is None


def test_a_lane_that_found_its_shard_gone_waits_for_the_watch(shard: Shard) -> None:
    lane, other = Lane(shard), Lane(shard)
    lane.fail(ReplayUnavailable("gone"), 10.0)
    assert not other.usable(100.0)
    assert shard.away is not None
    shard.find(shard.away.since)
    assert lane.usable(100.0)
    assert other.usable(0.0)


def test_the_end_of_a_streams_own_time_says_nothing_of_the_shard(shard: Shard) -> None:
    Lane(shard).fail(ReplayTimeout("its hour is over"), 10.0)
    assert shard.away is None


@pytest.mark.parametrize("failed_before", [False, True])
def test_a_silent_lane_is_not_used_before_it_has_answered(
    failed_before: bool, shard: Shard
) -> None:
    lane = Lane(shard)
    if failed_before:
        lane.fail(ReplayOverload("busy"), 0.0)
    lane.stall("silent", 10.0)
    lane.stall("still silent", 11.0)
    assert not lane.usable(1e9)
    away = lane.away(20.0)
    assert away is not None
    assert (away.reason, away.since) == ("silent", 10.0)
    lane.answered()
    assert lane.usable(20.0)
