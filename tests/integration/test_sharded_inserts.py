"""Inserts and priorities over several shards: each in its place, none lost, none held for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from replay_shards import LONG_SECONDS, connect_all, make_table, numbered, serving, until

from buffer_server.rate_limiter import RateLimiter
from buffer_server.sharded import ShardedReplay
from buffer_server.statuses import ReplayOverload, ReplayUnavailable
from buffer_server.table import Table
from repertory.errors import ReplayTimeout, UsageError

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with serving(tmp_path) as start:
        yield start


def stored(table: Table) -> list[int]:
    """The numbers of the items in a table."""
    return [int(number) for number in table.arrays()["storage/columns/reward"]]


def test_inserts_are_spread_evenly_and_each_is_in_one_shard(serve: Serve) -> None:
    tables = [make_table() for _ in range(3)]
    with connect_all(*map(serve, tables)) as replay:
        for step in range(30):
            assert replay.insert(numbered(10 * step, 10)) == 10
        replay.flush()
    assert [table.size for table in tables] == [100, 100, 100]
    assert sorted(number for table in tables for number in stored(table)) == list(range(300))


def test_without_a_window_an_insert_is_there_when_it_returns(serve: Serve) -> None:
    tables = [make_table("prioritized") for _ in range(2)]
    with connect_all(*map(serve, tables), insert_window_bytes=0) as replay:
        for step in range(4):
            replay.insert(numbered(step, 1))
            assert sum(table.size for table in tables) == step + 1
        with pytest.raises(UsageError, match=r"priority -1\.0 at place 0"):
            replay.insert(numbered(0, 1), np.array([-1.0]))
        assert replay.client_statistics().inserts.refused == 1
        replay.insert(numbered(4, 1))


def test_without_a_window_a_timeout_says_what_became_of_the_insert(serve: Serve) -> None:
    limiter = RateLimiter(min_size=1, samples_per_insert=1.0, error_buffer=8.0)
    table = make_table(limiter=limiter)
    with connect_all(serve(table), insert_window_bytes=0) as replay:
        replay.insert(numbered(0, 8))
        with pytest.raises(ReplayTimeout, match=r"may still be done: .* wait for more samples"):
            replay.insert(numbered(8, 8), timeout_seconds=1.0)
        replay.configure_limiter(min_size=1)
        replay.flush()
    assert stored(table) == list(range(16))


def test_a_full_queue_holds_the_caller_back_and_says_why(serve: Serve) -> None:
    limiters = [RateLimiter(samples_per_insert=1.0, error_buffer=8.0) for _ in range(2)]
    tables = [make_table(limiter=limiter) for limiter in limiters]
    settings = {"insert_window_bytes": 2048, "queue_bytes": 8192}
    with connect_all(*map(serve, tables), **settings) as replay:
        with pytest.raises(ReplayTimeout) as caught:
            insert_eights(replay)
        accepted = replay.client_statistics().inserts.accepted
        assert "this one was not taken: " in str(caught.value)
        assert str(caught.value).count("must wait for more samples") == 2
        assert 4096 < replay.client_statistics().inserts.pending_bytes <= 8192
        replay.configure_limiter(min_size=1)
        replay.flush()
        assert replay.client_statistics().inserts.acknowledged == accepted
    assert sorted(n for table in tables for n in stored(table)) == list(range(8 * accepted))


def insert_eights(replay: ShardedReplay) -> None:
    for first in range(0, 2000, 8):
        replay.insert(numbered(first, 8), timeout_seconds=0.6)


def test_a_full_queue_drops_and_counts_if_told_so(serve: Serve) -> None:
    table = make_table(limiter=RateLimiter(samples_per_insert=1.0, error_buffer=8.0))
    settings = {"insert_window_bytes": 1024, "queue_bytes": 2048, "when_full": "drop"}
    with connect_all(serve(table), **settings) as replay:
        taken = [replay.insert(numbered(8 * step, 8)) for step in range(50)]
        statistics = replay.client_statistics().inserts
        assert set(taken) == {0, 8}
        assert taken.count(0) == statistics.dropped
        replay.configure_limiter(min_size=1)
        replay.flush()
    assert table.size == sum(taken)


def test_a_refused_insert_is_raised_by_a_later_call_and_counted(serve: Serve) -> None:
    addresses = [serve(make_table("prioritized")) for _ in range(2)]
    with connect_all(*addresses) as replay:
        replay.insert(numbered(0, 2), np.array([1.0, -1.0]))
        with pytest.raises(UsageError, match=r"priority -1\.0 at place 1"):
            replay.flush()
        replay.insert(numbered(0, 2))
        replay.flush()
        statistics = replay.client_statistics().inserts
        assert (statistics.refused, statistics.acknowledged) == (1, 1)


def test_an_insert_that_is_too_large_is_refused_before_it_leaves(serve: Serve) -> None:
    with connect_all(serve(make_table(capacity=10_000), max_message_bytes=2**16)) as replay:
        with pytest.raises(ReplayOverload, match="insert smaller batches"):
            replay.insert(numbered(0, 5000))
        assert replay.client_statistics().inserts.accepted == 0


def test_closing_says_how_many_inserts_were_not_acknowledged(serve: Serve) -> None:
    table = make_table(limiter=RateLimiter(samples_per_insert=1.0, error_buffer=8.0))
    replay = connect_all(serve(table))
    for step in range(5):
        replay.insert(numbered(8 * step, 8))
    until(lambda: replay.client_statistics().inserts.acknowledged == 1)
    assert replay.close() == 4
    with pytest.raises(ReplayUnavailable, match="closed"):
        replay.insert(numbered(0, 8))
    assert stored(table) == list(range(8))


def test_priorities_reach_the_shard_that_has_the_item(serve: Serve) -> None:
    tables = [make_table("prioritized", seed=seed, alpha=1.0) for seed in range(3)]
    for index, table in enumerate(tables):
        table.insert(numbered(10 * index, 10), np.full(10, 0.5))
    with connect_all(*map(serve, tables)) as replay:
        sample = replay.sample(60, timeout_seconds=LONG_SECONDS)
        priorities = sample.batch.reward.astype(np.float64) + 1.0
        replay.update_priorities(sample.keys, priorities)
        replay.flush()
        sent = replay.client_statistics().sent_updates
    drawn = {int(number) for number in sample.batch.reward}
    for index, table in enumerate(tables):
        items = np.arange(10 * index, 10 * index + 10)
        expected = np.where(np.isin(items, list(drawn)), items + 1.0, 0.5)
        np.testing.assert_allclose(table.arrays()["sampler/masses"], expected, atol=1e-5)
    assert sent == len({number // 10 for number in drawn})


def test_refused_priorities_are_raised_by_a_later_call(serve: Serve) -> None:
    table = make_table("prioritized")
    table.insert(numbered(0, 2))
    with connect_all(serve(table)) as replay:
        replay.update_priorities(np.array([0, 1]), np.array([1.0, -2.0]))
        with pytest.raises(UsageError, match=r"priority -2\.0 at place 1"):
            replay.flush()
        replay.update_priorities(np.array([0, 1]), np.array([1.0, 2.0]))
        replay.flush()


@pytest.mark.parametrize(
    ("keys", "priorities", "message"),
    [
        ([0, 1], [1.0], "do not match"),
        ([5 << 48], [1.0], "names shard 5"),
        ([-1], [1.0], "names shard -1"),
    ],
)
def test_keys_that_name_nothing_here_are_refused(
    keys: list[int], priorities: list[float], message: str, serve: Serve
) -> None:
    with connect_all(serve(make_table())) as replay, pytest.raises(UsageError, match=message):
        replay.update_priorities(np.array(keys), np.array(priorities))
