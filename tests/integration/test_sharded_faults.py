"""Shards that die, hang, come late or come back: nobody waits for them, and nothing is lost."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from replay_shards import LONG_SECONDS, connect_all, make_table, numbered, until
from shard_processes import ShardProcess

from buffer_server.server import ReplayServer, ServerConfig
from buffer_server.sharded import ShardedReplay, ShardState
from buffer_server.statistics import ShardStatistics
from buffer_server.statuses import ReplayUnavailable
from buffer_server.table import Table
from repertory.errors import ReplayTimeout
from repertory.types import ColumnSpec, Sample

PATIENCE = 0.4
QUICK = {
    "patience_seconds": PATIENCE,
    "watch_seconds": 0.1,
    "longest_pause_seconds": 0.2,
    "prefetch": 2,
}
# What may come on top of the patience where two cores run all shards and all tests.
SLACK = 3.0


class Shards:
    """Servers that can be stopped, and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: dict[str, ReplayServer] = {}
        self.tables: dict[str, Table] = {}

    def start(self, table: Table, address: str = "") -> str:
        address = address or f"unix:{self._folder}/{len(self.tables)}.sock"
        self._servers[address] = server = ReplayServer([table], ServerConfig(address=address))
        self.tables[address] = table
        server.start()
        return address

    def stop(self, address: str) -> None:
        self._servers.pop(address).stop(grace_seconds=0.0)

    def restart(self, address: str) -> None:
        """With all that it had, as from a checkpoint of that moment."""
        restored = make_table(capacity=self.tables[address].capacity)
        restored.load_arrays(self.tables[address].arrays())
        self.start(restored, address)

    def stop_all(self) -> None:
        for address in list(self._servers):
            self.stop(address)

    def stored(self) -> list[int]:
        """The numbers of the items in all tables."""
        return sorted(int(n) for table in self.tables.values() for n in contents(table))


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    group = Shards(tmp_path)
    yield group
    group.stop_all()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardProcess]:
    address = f"unix:{tmp_path_factory.mktemp('shard')}/apart.sock"
    with ShardProcess(address, "prioritized") as started:
        yield started


@pytest.fixture
def hanging(process: ShardProcess) -> Iterator[ShardProcess]:
    """A shard that can be made to hang; other tests may have left items there."""
    yield process
    process.resume()


def contents(table: Table) -> list[float]:
    return [float(n) for n in table.arrays()["storage/columns/reward"]]


def states(replay: ShardedReplay) -> dict[str, ShardState]:
    return {state.address: state for state in replay.client_statistics().shards}


def is_up(replay: ShardedReplay, address: str) -> bool:
    return states(replay)[address].up


def inserted(replay: ShardedReplay, address: str) -> int:
    shard = replay.statistics()[address]
    assert isinstance(shard, ShardStatistics)
    return shard.tables["replay"].inserted


def owners(sample: Sample) -> set[int]:
    return set((sample.keys >> 48).tolist())


def test_a_shard_that_stops_is_done_without_and_rejoins(shards: Shards) -> None:
    addresses = [shards.start(make_table(capacity=10_000)) for _ in range(3)]
    gone = addresses[1]
    with connect_all(*addresses, **QUICK) as replay:
        for step in range(30):
            replay.insert(numbered(10 * step, 10))
        replay.flush()
        replay.sample(30, timeout_seconds=LONG_SECONDS)
        shards.stop(gone)
        for step in range(30, 60):
            replay.insert(numbered(10 * step, 10))
            assert len(replay.sample(30, timeout_seconds=LONG_SECONDS).batch) == 30
        until(lambda: "is it running" in states(replay)[gone].reason)
        assert not is_up(replay, gone)
        assert 1 not in owners(replay.sample(31, timeout_seconds=LONG_SECONDS))
        shards.restart(gone)
        until(lambda: is_up(replay, gone))
        replay.flush()
        until(lambda: 1 in owners(replay.sample(32, timeout_seconds=LONG_SECONDS)))
        assert replay.client_statistics().inserts.acknowledged == 60
    assert shards.stored() == list(range(600))


def test_one_shards_inserts_and_samples_survive_its_restart(shards: Shards) -> None:
    address = shards.start(make_table(capacity=10_000))
    with connect_all(address, **QUICK) as replay:
        for step in range(20):
            replay.insert(numbered(10 * step, 10))
        replay.sample(8, timeout_seconds=LONG_SECONDS)
        shards.stop(address)
        for step in range(20, 40):
            replay.insert(numbered(10 * step, 10))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(replay.sample, 9, timeout_seconds=LONG_SECONDS)
            shards.restart(address)
            assert len(waiting.result(LONG_SECONDS).batch) == 9
        replay.flush()
    assert shards.stored() == list(range(400))


def test_inserts_go_on_through_restarts_of_every_shard_and_none_is_doubled(shards: Shards) -> None:
    addresses = [shards.start(make_table(capacity=10_000)) for _ in range(2)]
    with connect_all(*addresses, **QUICK) as replay, ThreadPoolExecutor(1) as pool:

        def act() -> None:
            for step in range(400):
                replay.insert(numbered(5 * step, 5), timeout_seconds=LONG_SECONDS)

        acting = pool.submit(act)
        for address in [*addresses, *addresses]:
            wait_for_progress(replay)
            shards.stop(address)
            shards.restart(address)
        acting.result(LONG_SECONDS)
        replay.flush()
        assert replay.client_statistics().inserts.handed_over == 0
    assert shards.stored() == list(range(2000))


def wait_for_progress(replay: ShardedReplay) -> None:
    before = replay.client_statistics().inserts
    if before.pending:
        until(lambda: replay.client_statistics().inserts.acknowledged > before.acknowledged)


def test_without_a_shard_the_weights_are_those_of_the_rest(shards: Shards) -> None:
    rng = np.random.default_rng(0)
    addresses, masses = [], []
    for seed, size in enumerate((40, 60, 80)):
        table = make_table("prioritized", seed=seed, alpha=1.0, beta=0.6)
        priorities = rng.uniform(0.5, 3.0, size)
        table.insert(numbered(100 * seed, size), priorities)
        masses.append(priorities + 1e-6)
        addresses.append(shards.start(table))
    quick = {**QUICK, "watch_seconds": LONG_SECONDS}
    with connect_all(*addresses, **quick) as replay:
        shards.stop(addresses[2])
        for _ in range(5):  # of which the first were planned with it
            sample = replay.sample(50, timeout_seconds=LONG_SECONDS)
            assert owners(sample) == {0, 1}
            numbers = sample.batch.reward.astype(int)
            drawn = np.array([masses[number // 100][number % 100] for number in numbers])
            np.testing.assert_allclose(sample.weights, (drawn / drawn.min()) ** -0.6, rtol=1e-6)
        assert replay.client_statistics().refilled_batches >= 1


def test_a_shard_that_hangs_holds_up_neither_samples_nor_inserts(
    shards: Shards, hanging: ShardProcess
) -> None:
    addresses = [shards.start(make_table("prioritized", 10_000)), hanging.address]
    with connect_all(*addresses, **QUICK) as replay:
        until(lambda: is_up(replay, hanging.address))
        before = inserted(replay, hanging.address)
        for step in range(20):
            replay.insert(numbered(10 * step, 10))
        replay.flush()
        until(lambda: owners(replay.sample(20, timeout_seconds=LONG_SECONDS)) == {0, 1})
        hanging.pause()
        start = time.monotonic()
        for step in range(20, 40):
            replay.insert(numbered(10 * step, 10))
        for _ in range(10):  # all in all one patience, not one each
            assert len(replay.sample(20, timeout_seconds=LONG_SECONDS).batch) == 20
        assert time.monotonic() - start < PATIENCE + SLACK
        until(lambda: not is_up(replay, hanging.address))
        for step in range(40, 50):
            replay.insert(numbered(10 * step, 10))
        with pytest.raises(ReplayTimeout, match=f"{hanging.address}: away for"):
            replay.flush(timeout_seconds=0.2)
        hanging.resume()
        replay.flush()
        until(lambda: is_up(replay, hanging.address))
        until(lambda: 1 in owners(replay.sample(20, timeout_seconds=LONG_SECONDS)))
        statistics = replay.client_statistics()
        assert statistics.inserts.acknowledged == 50
        assert statistics.inserts.handed_over == 0
        assert statistics.refilled_batches >= 1
        apart = inserted(replay, hanging.address) - before
    here = shards.stored()
    assert len(here) == len(set(here)) == 500 - apart


def test_a_shard_that_takes_connections_but_never_answers_is_away(
    shards: Shards, tmp_path: Path
) -> None:
    table = make_table()
    table.insert(numbered(0, 10))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{tmp_path}/silent.sock")
        silent.listen()
        mute = f"unix:{tmp_path}/silent.sock"
        start = time.monotonic()
        with connect_all(mute, shards.start(table), **QUICK) as replay:
            assert len(replay.sample(8, timeout_seconds=LONG_SECONDS).batch) == 8
            replay.insert(numbered(10, 2))
            replay.flush()
            assert time.monotonic() - start < 2 * PATIENCE + SLACK
            assert not is_up(replay, mute)
            assert "no answer before the deadline" in str(replay.statistics()[mute])


def test_inserts_of_a_shard_that_stays_away_are_handed_over(
    shards: Shards, hanging: ShardProcess
) -> None:
    here = shards.start(make_table("prioritized", 10_000))
    settings = {**QUICK, "abandon_seconds": 2 * PATIENCE, "first_shard": 0}
    with connect_all(here, hanging.address, **settings) as replay:
        for step in range(4):
            replay.insert(numbered(step, 1))
        replay.flush()
        hanging.pause()
        for step in range(4, 10):
            replay.insert(numbered(step, 1))
        replay.flush()
        statistics = replay.client_statistics().inserts
        assert 1 <= statistics.handed_over <= 3
        assert statistics.acknowledged == 10
    assert shards.stored() == [0, 2, *range(4, 10)]  # 1 and 3 were there before


def test_inserts_wait_for_a_shard_for_ever_if_told_so(
    shards: Shards, hanging: ShardProcess
) -> None:
    here = shards.start(make_table("prioritized", 10_000))
    settings = {**QUICK, "abandon_seconds": None, "first_shard": 1}
    with connect_all(here, hanging.address, **settings) as replay:
        replay.insert(numbered(0, 1))
        replay.flush()
        hanging.pause()
        for step in range(1, 7):
            replay.insert(numbered(step, 1))
        until(lambda: not is_up(replay, hanging.address))
        with pytest.raises(ReplayTimeout):
            replay.flush(timeout_seconds=4 * PATIENCE)
        assert replay.client_statistics().inserts.handed_over == 0
        hanging.resume()
        replay.flush()
        assert replay.client_statistics().inserts.acknowledged == 7


def test_priorities_for_a_shard_that_is_away_are_dropped_and_counted(shards: Shards) -> None:
    tables = [make_table("prioritized", seed=seed, alpha=1.0) for seed in range(2)]
    for table in tables:
        table.insert(numbered(0, 4), np.ones(4))
    addresses = [shards.start(table) for table in tables]
    keys = np.array([0, 1, 1 << 48])
    with connect_all(*addresses, **QUICK) as replay:
        replay.update_priorities(keys, np.full(3, 2.0))
        replay.flush()
        shards.stop(addresses[1])
        until(lambda: not is_up(replay, addresses[1]))
        replay.update_priorities(keys, np.full(3, 3.0))
        replay.flush()
        statistics = replay.client_statistics()
        assert (statistics.sent_updates, statistics.dropped_updates) == (3, 1)
    np.testing.assert_allclose(tables[0].arrays()["sampler/masses"], [3, 3, 1, 1], atol=1e-5)


def test_priorities_for_a_shard_that_hangs_wait_no_longer_than_the_patience(
    hanging: ShardProcess,
) -> None:
    with connect_all(hanging.address, **QUICK, updates_under_way=2) as replay:
        replay.insert(numbered(0, 4))
        replay.flush()
        hanging.pause()
        start = time.monotonic()
        for _ in range(20):
            replay.update_priorities(np.arange(4), np.ones(4))
        assert time.monotonic() - start < PATIENCE + SLACK
        statistics = replay.client_statistics()
        assert statistics.sent_updates == 2
        assert statistics.dropped_updates == 18
        hanging.resume()
        until(lambda: is_up(replay, hanging.address))
        replay.update_priorities(np.arange(4), np.ones(4))
        replay.flush()
        assert replay.client_statistics().sent_updates == 3


def test_a_shard_may_come_later(shards: Shards, tmp_path: Path) -> None:
    tables = [make_table(seed=seed) for seed in range(2)]
    for table in tables:
        table.insert(numbered(0, 10))
    late = f"unix:{tmp_path}/late.sock"
    with connect_all(late, shards.start(tables[0]), **QUICK) as replay:
        assert owners(replay.sample(8, timeout_seconds=LONG_SECONDS)) == {1}
        shards.start(tables[1], late)
        until(lambda: owners(replay.sample(8, timeout_seconds=LONG_SECONDS)) == {0, 1})
        assert replay.capacity == 2000


def test_a_shard_that_comes_with_another_table_stays_away(shards: Shards, tmp_path: Path) -> None:
    table = make_table()
    table.insert(numbered(0, 10))
    other = Table(
        "replay",
        {**table.signature, "extras/more": ColumnSpec("<f4", ())},
        1000,
        make_table()._sampler,
        make_table()._limiter,
        seed=0,
    )
    late = f"unix:{tmp_path}/late.sock"
    with connect_all(shards.start(table), late, **QUICK) as replay:
        shards.start(other, late)
        until(lambda: "not the same on all shards" in states(replay)[late].reason)
        assert owners(replay.sample(8, timeout_seconds=LONG_SECONDS)) == {0}
        replay.insert(numbered(0, 1))
        replay.flush()


def test_without_any_shard_there_is_no_replay(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(ReplayUnavailable, match=r"within 0\.5 s: .*; .*") as caught:
        connect_all(f"unix:{tmp_path}/a", f"unix:{tmp_path}/b", **QUICK, timeout_seconds=0.5)
    assert str(caught.value).count("is it running") == 2
    assert time.monotonic() - start < 0.5 + SLACK


def test_with_all_shards_gone_a_sample_names_each_within_its_deadline(shards: Shards) -> None:
    tables = [make_table() for _ in range(2)]
    for table in tables:
        table.insert(numbered(0, 10))
    addresses = [shards.start(table) for table in tables]
    with connect_all(*addresses, **QUICK) as replay:
        shards.stop_all()
        start = time.monotonic()
        with pytest.raises(ReplayTimeout) as caught:
            replay.sample(4, timeout_seconds=0.6)
        assert time.monotonic() - start < 0.6 + SLACK
        assert all(f"{address}: away for" in str(caught.value) for address in addresses)


def test_a_draining_shard_is_left_to_itself(shards: Shards) -> None:
    tables = [make_table(capacity=10_000, seed=seed) for seed in range(2)]
    for table in tables:
        table.insert(numbered(0, 10))
    addresses = [shards.start(table) for table in tables]
    with connect_all(*addresses, **QUICK) as replay:
        replay.sample(4, timeout_seconds=LONG_SECONDS)
        shards._servers[addresses[0]].drain(timeout_seconds=LONG_SECONDS)
        for step in range(20):
            replay.insert(numbered(10 + step, 1))
        assert len(replay.sample(5, timeout_seconds=LONG_SECONDS).batch) == 5
        until(lambda: "draining" in states(replay)[addresses[0]].reason)
        assert owners(replay.sample(6, timeout_seconds=LONG_SECONDS)) == {1}


def test_a_queue_goes_on_without_a_shard(shards: Shards) -> None:
    addresses = [shards.start(make_table("fifo")) for _ in range(2)]
    with connect_all(*addresses, **QUICK, first_shard=0) as replay:
        for number in range(4):
            replay.insert(numbered(number, 1))
        replay.flush()
        shards.stop(addresses[0])
        until(lambda: not is_up(replay, addresses[0]))
        for number in range(4, 8):
            replay.insert(numbered(number, 1))
        sample = replay.sample(6, timeout_seconds=LONG_SECONDS)
        assert sorted(sample.batch.reward.tolist()) == [1, 3, 4, 5, 6, 7]
