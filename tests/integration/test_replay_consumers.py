"""Consumers of one table over real gRPC: each at its own ratio, the slowest holds the writer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from replay_shards import (
    LONG_SECONDS,
    connect,
    connect_all,
    make_table,
    numbered,
    serving,
    until,
)

from buffer_server.metrics import ShardCollector
from buffer_server.rate_limiter import RateLimiter
from buffer_server.server import ReplayServer, ServerConfig
from buffer_server.sharded import ShardedReplay
from buffer_server.table import Table
from repertory.errors import ReplayTimeout, UsageError

Serve = Callable[..., str]
FAST, SLOW = 0, 1
RATIOS = {FAST: 4.0, SLOW: 0.5}
ITEMS = 1600


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with serving(tmp_path) as start:
        yield start


def make_shared(buffer_items: int = 16) -> Table:
    limiter = RateLimiter(consumers=RATIOS, consumer_buffer_items=buffer_items)
    return make_table(capacity=5000, limiter=limiter)


def sampled(tables: list[Table], consumer: int) -> int:
    return sum(table.statistics().consumers[consumer].sampled for table in tables)


def held_by(tables: list[Table], consumer: int) -> int:
    return sum(table.statistics().consumers[consumer].held_inserts for table in tables)


def test_two_of_different_speed_end_at_their_ratios_and_the_slow_one_holds_the_writer(
    serve: Serve,
) -> None:
    tables = [make_shared() for _ in range(2)]
    addresses = [serve(table) for table in tables]
    written = threading.Event()
    reasons: list[str] = []
    holds = 0

    def write(replay: ShardedReplay) -> None:
        try:
            for first in range(0, ITEMS, 8):
                replay.insert(numbered(first, 8), timeout_seconds=LONG_SECONDS)
            replay.flush(timeout_seconds=LONG_SECONDS)
        finally:
            written.set()

    def learn(replay: ShardedReplay, size: int, ready: Callable[[], bool]) -> int:
        """Until the writer is done and nothing more is given."""
        total = 0
        while True:
            done = written.is_set()
            until(ready)
            try:
                total += len(replay.sample(size, timeout_seconds=0.5).keys)
            except ReplayTimeout:
                if done:
                    return total

    def at_last() -> bool:
        """The slow one comes only when somebody waits for it."""
        nonlocal holds
        if held_by(tables, SLOW):
            holds += 1
            reasons.extend(one.reason for table in tables for one in table.statistics().blocked)
            return True
        return written.is_set()

    with (
        connect_all(*addresses, insert_window_bytes=0) as actor,
        connect_all(*addresses, consumer=FAST, caller="learner-fast", prefetch=0) as fast,
        connect_all(*addresses, consumer=SLOW, caller="learner-slow", prefetch=0) as slow,
        ThreadPoolExecutor(3) as pool,
    ):
        writing = pool.submit(write, actor)
        learning = [
            pool.submit(learn, fast, 32, lambda: True),
            pool.submit(learn, slow, 4, at_last),
        ]
        writing.result(4 * LONG_SECONDS)
        totals = [future.result(4 * LONG_SECONDS) for future in learning]

    assert sum(table.insert_count for table in tables) == ITEMS
    assert holds > 50  # and the writer got 8 items further with each batch, or little more
    assert any("consumer 1 (caller learner-slow@" in reason for reason in reasons)
    for consumer, total in zip((FAST, SLOW), totals, strict=True):
        expected = RATIOS[consumer] * (ITEMS - len(tables))  # each shard's first item is min_size
        assert sampled(tables, consumer) == pytest.approx(expected, rel=0.05)
        assert total <= sampled(tables, consumer)


def test_ratios_change_on_all_shards_while_a_writer_waits(serve: Serve) -> None:
    tables = [make_shared() for _ in range(2)]
    with (
        connect_all(*map(serve, tables), insert_window_bytes=0, consumer=FAST) as replay,
        ThreadPoolExecutor(1) as pool,
    ):
        for _ in range(4):
            replay.insert(numbered(0, 8))
        waiting = pool.submit(replay.insert, numbered(0, 16))
        until(lambda: held_by(tables, FAST) and held_by(tables, SLOW))
        with pytest.raises(UsageError, match=r"2 of 2 limiters .* nan of consumer 0"):
            replay.configure_consumers({FAST: float("nan")})
        with pytest.raises(UsageError, match="consumer -1"):
            replay.configure_consumers({-1: 1.0})
        replay.configure_consumers({FAST: 0.0, SLOW: 0.0})
        assert waiting.result(LONG_SECONDS) == 16
        for table in tables:
            ratios = [one.samples_per_insert for one in table.statistics().consumers]
            assert ratios == [0.0, 0.0]
        with pytest.raises(ReplayTimeout, match=r"consumer 0 .* has a ratio of 0"):
            replay.sample(4, timeout_seconds=0.2)
        replay.configure_limiter(min_size=1, consumers={FAST: 9.0}, consumer_buffer_items=64)
        for table in tables:
            (only,) = table.statistics().consumers
            assert (only.consumer, only.samples_per_insert) == (FAST, 9.0)
            assert table.statistics().consumer_buffer_items == 64
        assert len(replay.sample(4, timeout_seconds=LONG_SECONDS).keys) == 4


def test_one_shard_tells_its_client_and_prometheus(tmp_path: Path) -> None:
    table = make_shared()
    with (
        ReplayServer([table], ServerConfig(address=f"unix:{tmp_path}/s")) as server,
        connect(server, consumer=SLOW, caller="learner-slow") as client,
        connect(server) as nobody,
    ):
        nobody.insert(numbered(0, 9))
        client.sample(3, timeout_seconds=LONG_SECONDS)
        with pytest.raises(UsageError, match=r"for which consumer .* one of 0, 1"):
            nobody.sample(3, timeout_seconds=LONG_SECONDS)
        client.configure_consumers({FAST: 2.0, 5: 1.5})
        fast, slow, late = client.statistics().tables["replay"].consumers
        assert (fast.samples_per_insert, fast.surplus) == (2.0, 32.0)
        assert (slow.sampled, slow.surplus) == (3, 1.0)
        assert slow.caller.startswith("learner-slow@")
        assert (late.consumer, late.samples_per_insert, late.surplus) == (5, 1.5, 0.0)
        metrics = {metric.name: metric for metric in ShardCollector(server).collect()}
        assert values(metrics["repertory_replay_consumer_sampled_items"]) == {0: 0, 1: 3, 5: 0}
        assert values(metrics["repertory_replay_consumer_surplus_samples"]) == {0: 32, 1: 1, 5: 0}
        assert values(metrics["repertory_replay_consumer_samples_per_insert"])[5] == 1.5
        client.configure_limiter(min_size=1, consumers={SLOW: 1.0}, consumer_buffer_items=32)
        statistics = client.statistics().tables["replay"]
        assert [one.consumer for one in statistics.consumers] == [SLOW]
        assert statistics.consumer_buffer_items == 32


def values(metric: Metric) -> dict[int, float]:
    """By consumer."""
    return {int(sample.labels["consumer"]): sample.value for sample in metric.samples}


@pytest.mark.parametrize("at_once", [1, 8])
def test_batches_that_come_together_are_as_many_as_those_that_come_singly(
    at_once: int, serve: Serve
) -> None:
    ratio, buffer_items, size = 4.0, 64, 8
    limiter = RateLimiter(consumers={FAST: ratio}, consumer_buffer_items=buffer_items)
    table = make_table(capacity=5000, limiter=limiter)
    batches = 0
    with (
        connect_all(serve(table), consumer=FAST, batches_at_once=at_once, prefetch=2) as replay,
        ThreadPoolExecutor(1) as pool,
    ):
        writing = pool.submit(
            lambda: [replay.insert(numbered(first, 16)) for first in range(0, ITEMS, 16)]
        )
        while True:
            done = writing.done()
            try:
                replay.sample(size, timeout_seconds=0.3)
                batches += 1
            except ReplayTimeout:
                if done:
                    break
            allowed = ratio * (table.insert_count - 1 + buffer_items)  # the first is min_size
            assert sampled([table], FAST) <= allowed
        requests = table.statistics().consumers[FAST]
    # To the last batch: as far ahead as the buffer lets it be, and nothing is left in between.
    assert requests.sampled == ratio * (ITEMS - 1 + buffer_items) // size * size
    assert batches == requests.sampled // size
