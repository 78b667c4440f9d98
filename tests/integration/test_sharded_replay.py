"""One table over several shards, over real gRPC: like one table that holds everything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from replay_shards import LONG_SECONDS, connect_all, make_table, numbered, serving, until

from buffer_server.draws import DrawRequest, Population
from buffer_server.rate_limiter import RateLimiter
from buffer_server.sharded import ShardedConfig, ShardedReplay
from buffer_server.statistics import ShardStatistics
from buffer_server.statuses import ReplayMismatch, ReplayUnavailable, UnknownTable
from buffer_server.table import Table
from repertory.errors import RepertoryError, ReplayTimeout, UsageError
from repertory.types import Sample, TransitionBatch

Serve = Callable[..., str]
# Long enough that no shard is ever thought slow, or weighed again, by accident.
STEADY = {"patience_seconds": LONG_SECONDS, "watch_seconds": LONG_SECONDS}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with serving(tmp_path) as start:
        yield start


def numbers(sample: Sample) -> list[int]:
    return [int(number) for number in sample.batch.reward]


def by_policy(first: int, count: int, policy: int) -> TransitionBatch:
    columns = numbered(first, count).columns()
    columns["policy_id"] = np.full(count, policy, dtype=np.int32)
    columns["policy_version"] = np.zeros(count, dtype=np.int64)
    return TransitionBatch.from_columns(columns)


def fill_unequally(tables: list[Table], sizes: tuple[int, ...]) -> None:
    first = 0
    for table, size in zip(tables, sizes, strict=True):
        table.insert(numbered(first, size))
        first += size


def assert_drawn_as(counts: np.ndarray, chances: np.ndarray) -> None:
    """Chi-square: strata only make it smaller than independent draws would."""
    expected = counts.sum() * chances / chances.sum()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5
    assert counts.sum() > 20 * len(counts)


def test_items_of_unequal_shards_are_equally_likely(serve: Serve) -> None:
    tables = [make_table(seed=seed) for seed in range(3)]
    fill_unequally(tables, (5, 60, 335))
    counts = np.zeros(400)
    with connect_all(*map(serve, tables), **STEADY, seed=1) as replay:
        for _ in range(250):
            sample = replay.sample(64, timeout_seconds=LONG_SECONDS)
            assert (sample.weights == 1).all()
            np.add.at(counts, numbers(sample), 1)
    assert_drawn_as(counts, np.ones(400))


def test_items_are_drawn_by_priority_over_shards_of_unequal_mass(serve: Serve) -> None:
    tables = [make_table("prioritized", seed=seed, alpha=1.0) for seed in range(3)]
    rng = np.random.default_rng(0)
    priorities = np.concatenate([rng.uniform(0.5, 1, 200), rng.uniform(2, 9, 40), np.full(10, 30)])
    fill_unequally(tables, (200, 40, 10))
    first = 0
    for table in tables:
        size = table.size
        table.update_priorities(np.arange(size), priorities[first : first + size])
        first += size
    counts = np.zeros(250)
    with connect_all(*map(serve, tables), **STEADY, seed=2) as replay:
        for _ in range(400):
            np.add.at(counts, numbers(replay.sample(64, timeout_seconds=LONG_SECONDS)), 1)
    assert_drawn_as(counts, priorities + 1e-6)


def test_weights_are_those_of_one_table_that_holds_everything(serve: Serve) -> None:
    whole = make_table("prioritized", beta=0.7)
    tables = [make_table("prioritized", seed=seed, beta=0.7) for seed in range(3)]
    rng = np.random.default_rng(1)
    first = 0
    for table, size in zip(tables, (7, 100, 30), strict=True):
        priorities = rng.uniform(0, 4, size)
        table.insert(numbered(first, size), priorities)
        whole.insert(numbered(first, size), priorities)
        first += size
    masses = whole.arrays()["sampler/masses"]
    probability = masses / masses.sum()
    with connect_all(*map(serve, tables), **STEADY) as replay:
        for _ in range(20):
            sample = replay.sample(48, timeout_seconds=LONG_SECONDS)
            drawn = probability[numbers(sample)]
            expected = (drawn / drawn.min()) ** -0.7
            np.testing.assert_allclose(sample.weights, expected, rtol=1e-6)


def test_weights_are_right_where_a_shard_was_weighed_too_early(serve: Serve) -> None:
    tables = [make_table("prioritized", seed=seed, alpha=1.0, beta=1.0) for seed in range(2)]
    for table in tables:
        table.insert(numbered(0, 10), np.ones(10))
    with connect_all(*map(serve, tables), **STEADY, prefetch=0) as replay:
        tables[0].update_priorities(np.arange(10), np.full(10, 9.0))
        sample = replay.sample(40, timeout_seconds=LONG_SECONDS)
    # Both were given half of the draws, and within each all items are alike.
    np.testing.assert_allclose(sample.weights, 1.0, rtol=1e-6)
    assert (sample.keys >> 48).tolist() == [0] * 20 + [1] * 20


def test_a_floor_of_own_items_comes_from_wherever_they_are(serve: Serve) -> None:
    tables = [make_table("mixture", seed=seed) for seed in range(3)]
    tables[0].insert(by_policy(0, 300, policy=1))
    tables[1].insert(by_policy(300, 30, policy=0))
    tables[2].insert(by_policy(330, 10, policy=0))
    settings = {"own_policy": 0, "own_share": 0.25}
    counts = np.zeros(340)
    with connect_all(*map(serve, tables), **STEADY, **settings) as replay:
        for _ in range(300):
            sample = replay.sample(30, timeout_seconds=LONG_SECONDS)
            assert (sample.batch.policy_id == 0).sum() >= 8  # 7.5, rounded up
            np.add.at(counts, numbers(sample), 1)
    # 8 of 30 from the 40 own ones, the other 22 from all 340.
    assert_drawn_as(counts, np.r_[np.full(300, 22 / 340), np.full(40, 22 / 340 + 8 / 40)])


def test_where_nobody_has_own_items_all_come_from_all(serve: Serve) -> None:
    tables = [make_table("mixture", seed=seed) for seed in range(2)]
    for table in tables:
        table.insert(by_policy(0, 10, policy=1))
    settings = {"own_policy": 0, "own_share": 1.0}
    with connect_all(*map(serve, tables), **settings) as replay:
        sample = replay.sample(16, timeout_seconds=LONG_SECONDS)
        assert sample.batch.policy_id.tolist() == [1] * 16


def test_items_that_are_too_old_are_left_out_on_every_shard(serve: Serve) -> None:
    tables = [make_table("mixture", seed=seed) for seed in range(2)]
    for table in tables:
        for version in range(10):
            columns = by_policy(version, 1, policy=0).columns()
            columns["policy_version"] = np.array([version])
            table.insert(TransitionBatch.from_columns(columns))
    with connect_all(*map(serve, tables), max_age=2) as replay:
        sample = replay.sample(64, timeout_seconds=LONG_SECONDS)
        assert set(sample.batch.policy_version.tolist()) == {7, 8, 9}


def test_a_wish_that_the_table_cannot_know_is_refused_at_once(serve: Serve) -> None:
    with pytest.raises(UsageError, match="does not know whose experience"):
        connect_all(serve(make_table()), own_policy=0, own_share=0.5)


def test_one_shards_batches_come_in_the_tables_order(serve: Serve) -> None:
    table, served = make_table("prioritized", seed=3), make_table("prioritized", seed=3)
    with connect_all(serve(served), prefetch=3) as replay:
        for first in range(0, 500, 50):
            replay.insert(numbered(first, 50))
            table.insert(numbered(first, 50))
        replay.flush()
        for _ in range(6):
            here, there = (
                source.sample(8, timeout_seconds=LONG_SECONDS) for source in (table, replay)
            )
            np.testing.assert_array_equal(here.keys, there.keys)
            np.testing.assert_array_equal(here.weights, there.weights)
            np.testing.assert_array_equal(here.batch.observation, there.batch.observation)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_another_size_is_served_and_arrays_belong_to_the_caller(
    prefetch: int, serve: Serve
) -> None:
    tables = [make_table(seed=seed) for seed in range(3)]
    fill_unequally(tables, (100, 50, 1))
    with connect_all(*map(serve, tables), prefetch=prefetch) as replay:
        for size in (8, 8, 64, 1, 8, 300):
            sample = replay.sample(size, timeout_seconds=LONG_SECONDS)
            assert len(sample.batch) == len(sample.keys) == len(sample.weights) == size
            sample.batch.observation[:] = 0.0
            assert sample.batch.discount.tolist() == sample.batch.reward.tolist()
        assert replay.client_statistics().sampled_batches == 6


def test_threads_share_one_replay(serve: Serve) -> None:
    tables = [make_table(seed=seed) for seed in range(2)]
    fill_unequally(tables, (100, 100))
    with connect_all(*map(serve, tables)) as replay, ThreadPoolExecutor(4) as pool:

        def work(worker: int) -> int:
            for step in range(25):
                sample = replay.sample(16, timeout_seconds=LONG_SECONDS)
                replay.update_priorities(sample.keys, np.ones(16))
                replay.insert(numbered(1000 * worker + step, 1))
            return len(sample.batch)

        assert list(pool.map(work, range(4))) == [16] * 4
        replay.flush()
        assert replay.client_statistics().inserts.acknowledged == 100


def test_a_queue_over_shards_loses_and_doubles_nothing(serve: Serve) -> None:
    addresses = [serve(make_table("fifo", 40)) for _ in range(3)]
    received: list[int] = []
    with connect_all(*addresses) as actors, connect_all(*addresses) as learner:

        def act(worker: int) -> None:
            for step in range(30):
                actors.insert(numbered(1000 * worker + 5 * step, 5))

        with ThreadPoolExecutor(3) as pool:
            acting = [pool.submit(act, worker) for worker in range(3)]
            while len(received) < 450:
                size = min(1 + len(received) % 32, 450 - len(received))
                sample = learner.sample(size, timeout_seconds=LONG_SECONDS)
                assert len(sample.batch) == size
                received += numbers(sample)
            for future in acting:
                future.result(LONG_SECONDS)
    expected = [1000 * worker + item for worker in range(3) for item in range(150)]
    assert sorted(received) == expected


def test_what_came_for_a_batch_that_timed_out_is_in_the_next(serve: Serve) -> None:
    addresses = [serve(make_table("fifo")) for _ in range(2)]
    with connect_all(*addresses, first_shard=0) as replay:
        for first in (0, 2):
            replay.insert(numbered(first, 2))
        replay.flush()
        with pytest.raises(ReplayTimeout, match=r"1 s only 4 of 6 items .* kept: .*0 can be"):
            replay.sample(6, timeout_seconds=1.0)
        replay.insert(numbered(4, 3))
        assert sorted(numbers(replay.sample(6, timeout_seconds=LONG_SECONDS))) == list(range(6))
        assert numbers(replay.sample(1, timeout_seconds=LONG_SECONDS)) == [6]


def test_a_queue_is_not_read_ahead(serve: Serve) -> None:
    tables = [make_table("fifo") for _ in range(2)]
    fill_unequally(tables, (10, 10))
    with connect_all(*map(serve, tables), prefetch=4) as replay:
        replay.sample(6, timeout_seconds=LONG_SECONDS)
        replay.sample(4, timeout_seconds=LONG_SECONDS)
        assert sum(table.sample_count for table in tables) == 10


def test_a_queues_batch_may_be_larger_than_any_of_its_shards(serve: Serve) -> None:
    addresses = [serve(make_table("fifo", 8)) for _ in range(2)]
    with connect_all(*addresses) as replay, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(replay.sample, 40, timeout_seconds=LONG_SECONDS)
        for first in range(0, 40, 4):
            replay.insert(numbered(first, 4))
        assert sorted(numbers(waiting.result(LONG_SECONDS))) == list(range(40))


def test_a_caller_that_hangs_up_takes_nothing_from_a_queue(serve: Serve) -> None:
    table = make_table("fifo")
    address = serve(table)
    replay = connect_all(address)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(replay.sample, 2, timeout_seconds=LONG_SECONDS)
        until(lambda: table.statistics().blocked)
        replay.close()
        with pytest.raises(ReplayUnavailable, match="was closed"):
            waiting.result(LONG_SECONDS)
    until(lambda: not table.statistics().blocked)
    table.insert(numbered(0, 2))
    assert numbers(table.sample(2, timeout_seconds=0.0)) == [0, 1]


def test_every_shard_says_why_nothing_came(serve: Serve) -> None:
    tables = [make_table(limiter=RateLimiter(min_size=9)) for _ in range(2)]
    tables[0].insert(numbered(0, 4))
    with connect_all(*map(serve, tables)) as replay:
        with pytest.raises(ReplayTimeout, match=r"only 4 of the first 9 items .*; .*: 0 items"):
            replay.sample(4, timeout_seconds=1.0)
        tables[0].insert(numbered(4, 5))
        assert len(replay.sample(4, timeout_seconds=LONG_SECONDS).batch) == 4


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_call_that_does_not_wait_asks_once_and_hears_why(prefetch: int, serve: Serve) -> None:
    table = make_table(limiter=RateLimiter(min_size=9))
    with connect_all(serve(table), prefetch=prefetch) as replay:
        for _ in range(2):
            with pytest.raises(ReplayTimeout, match="only 0 of the first 9 items"):
                replay.sample(2, timeout_seconds=0.0)
        table.insert(numbered(0, 9))
        assert len(replay.sample(2, timeout_seconds=0.0).batch) == 2


def test_a_shard_that_its_limiter_holds_is_waited_for_and_then_done_without(serve: Serve) -> None:
    held = make_table(limiter=RateLimiter(samples_per_insert=1.0, error_buffer=64.0))
    free = make_table()
    for table in (held, free):
        table.insert(numbered(0, 50))
    held.sample(64, timeout_seconds=0.0)
    held.sample(48, timeout_seconds=0.0)  # one more may come
    with connect_all(serve(held), serve(free), patience_seconds=0.3, prefetch=1) as replay:
        assert len(replay.sample(64, timeout_seconds=LONG_SECONDS).batch) == 64
        assert replay.client_statistics().refilled_batches == 1
        # From now on nobody waits for it; it still counts as there, and is asked now and then.
        for _ in range(20):
            sample = replay.sample(64, timeout_seconds=0.25)
            assert set((sample.keys >> 48).tolist()) == {1}
        assert all(state.up for state in replay.client_statistics().shards)
        held.insert(numbered(50, 50))
        until(lambda: 0 in replay.sample(64, timeout_seconds=LONG_SECONDS).keys >> 48)


def test_a_live_change_of_all_limiters_releases_who_waits(serve: Serve) -> None:
    tables = [make_table(limiter=RateLimiter(min_size=100)) for _ in range(2)]
    for table in tables:
        table.insert(numbered(0, 10))
    with connect_all(*map(serve, tables)) as replay, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(replay.sample, 4, timeout_seconds=LONG_SECONDS)
        until(lambda: all(table.statistics().blocked for table in tables))
        with pytest.raises(UsageError, match=r"2 of 2 limiters .* min_size 5000 .* never reached"):
            replay.configure_limiter(min_size=5000)
        replay.configure_limiter(min_size=1)
        assert len(waiting.result(LONG_SECONDS).batch) == 4


def test_shards_with_other_columns_are_named(serve: Serve) -> None:
    other = Table(
        "replay",
        {**make_table().signature, "reward": numbered(0, 1).signature()["policy_version"]},
        1000,
        make_table()._sampler,
        RateLimiter(),
        seed=0,
    )
    addresses = [serve(make_table()), serve(other)]
    with pytest.raises(ReplayMismatch, match="not the same on all shards") as caught:
        connect_all(*addresses)
    assert all(address in str(caught.value) for address in addresses)


def test_a_queue_and_a_replay_are_not_shards_of_one_table(serve: Serve) -> None:
    with pytest.raises(ReplayMismatch, match=r"a (queue|replay) of .* but at .* a"):
        connect_all(serve(make_table("fifo")), serve(make_table()))


def test_what_the_caller_expects_must_be_there(serve: Serve) -> None:
    address = serve(make_table())
    with pytest.raises(UnknownTable, match="no table 'other': it has replay"):
        connect_all(address, table="other")
    wrong = {"reward": numbered(0, 1).signature()["reward"]}
    with pytest.raises(ReplayMismatch, match="another environment"):
        ShardedReplay(ShardedConfig(addresses=(address,), table="replay"), wrong)


def test_shards_speak_for_themselves(serve: Serve) -> None:
    tables = [make_table() for _ in range(2)]
    fill_unequally(tables, (3, 5))
    addresses = [*map(serve, tables), "unix:/nowhere/shard.sock"]
    with connect_all(*addresses) as replay:
        assert replay.capacity == 2000
        assert replay.signature == tables[0].signature
        first, second, third = replay.statistics().values()
        assert isinstance(first, ShardStatistics)
        assert isinstance(second, ShardStatistics)
        assert [shard.tables["replay"].size for shard in (first, second)] == [3, 5]
        assert "not there" in str(third)
        with pytest.raises(RepertoryError, match=r"1 of 3 limiters .*/nowhere/"):
            replay.configure_limiter(min_size=2)
        assert [table.statistics().min_size for table in tables] == [2, 2]


def test_too_many_streams_are_told_and_tried_again(serve: Serve) -> None:
    table = make_table()
    table.insert(numbered(0, 10))
    address = serve(table, max_streams=1)
    with connect_all(address) as one, connect_all(address) as other:
        one.sample(2, timeout_seconds=LONG_SECONDS)
        with pytest.raises(ReplayTimeout, match="1 streams are open already"):
            other.sample(2, timeout_seconds=0.5)
        one.close()
        assert len(other.sample(2, timeout_seconds=LONG_SECONDS).batch) == 2


def test_who_does_not_sample_seldom_asks_what_a_shard_holds(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    weighed: list[str] = []
    weigh = Table.population

    def counted(table: Table, request: DrawRequest) -> Population:
        weighed.append(table.name)
        return weigh(table, request)

    monkeypatch.setattr(Table, "population", counted)
    tables = [make_table(), make_table()]
    tables[1].insert(numbered(0, 10))
    tables[0].name, tables[1].name = "actors", "learners"
    actor, learner = (
        connect_all(serve(table), table=table.name, watch_seconds=0.05) for table in tables
    )
    with actor, learner:
        learner.sample(2, timeout_seconds=LONG_SECONDS)
        until(lambda: weighed.count("learners") > 50)
        assert weighed.count("actors") < 15


def test_no_thread_outlives_its_replay(serve: Serve) -> None:
    addresses = [serve(make_table("prioritized")) for _ in range(3)]

    def ours() -> set[threading.Thread]:  # the servers' pool may grow, and stays
        threads = threading.enumerate()
        return {thread for thread in threads if not thread.name.startswith("replay_")}

    before = ours()
    for _ in range(3):
        replay = connect_all(*addresses, "unix:/nowhere/shard.sock")
        for _ in range(3):
            replay.insert(numbered(0, 5))
        replay.flush()
        sample = replay.sample(4, timeout_seconds=LONG_SECONDS)
        replay.update_priorities(sample.keys, np.ones(4))
        assert len(ours() - before) > 3
        replay.close()
    until(lambda: not ours() - before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"addresses": ()}, "at least 1"),
        ({"addresses": ("unix:/a", "unix:/a")}, "unix:/a is named twice"),
        ({"addresses": ("nowhere",)}, "is no address"),
        ({"first_shard": 1}, "first_shard 1 is not there"),
        ({"own_share": 0.5}, "takes own_policy"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ShardedConfig(**{"addresses": ("unix:/a",), "table": "replay", **settings})


def test_an_operator_and_a_learner_see_the_same_keys(serve: Serve) -> None:
    """With one shard, keys are those of the table itself."""
    table = make_table("prioritized", alpha=1.0)
    table.insert(numbered(0, 10), np.ones(10))
    server_address = serve(table)
    with connect_all(server_address) as replay:
        sample = replay.sample(4, timeout_seconds=LONG_SECONDS)
        assert sample.keys.tolist() == numbers(sample)
