"""Snapshots of a table that goes on: whole items of one moment, with the ledger of that moment."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pixel_envs import PixelCopy, collect, stacked_signature
from replay_shards import LONG_SECONDS, make_table, numbered
from saved_states import numbers, restore, saved, written

import buffer_server.snapshots
from buffer_server.capacity import Capacity
from buffer_server.rate_limiter import RateLimiter
from buffer_server.saved_tables import KEY_GAP, KEY_LIMIT, restored_next_key
from buffer_server.table import Table
from buffer_server.writer_ledger import Origin
from repertory.errors import CheckpointError
from repertory.parts import lookup
from repertory.types import TransitionBatch

WRITER = b"w" * 16
SAMPLERS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "prioritized": {"beta_steps": 9},
    "mixture": {},
    "fifo": {"max_times_sampled": 2},
}


CAPACITY = {"fifo": 40}  # of items that come twice, half are still wanted


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_server.snapshots, "PIECE_ROWS", 7)


def use(table: Table, first: int, steps: int = 8) -> list[tuple[Any, ...]]:
    """Inserts and samples; what came out, without the keys."""
    seen = []
    for step in range(steps):
        table.insert(numbered((first + 3 * step) % 200, 3), timeout_seconds=0)
        sample = table.sample(3, timeout_seconds=0)
        seen.append((sample.batch.reward.tolist(), sample.weights.tolist()))
        table.update_priorities(sample.keys, sample.batch.reward % 5)
    return seen


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_snapshot_of_a_table_at_rest_is_all_of_it(sampler: str) -> None:
    table = make_table(sampler, CAPACITY.get(sampler, 20), **SAMPLERS[sampler])
    use(table, 0, steps=9)
    snapshot = table.snapshot()
    arrays, expected = written(snapshot), table.arrays()
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    assert snapshot.first_whole_key == snapshot.live.start


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_restored_table_goes_on_as_it_would_have(sampler: str) -> None:
    capacity = CAPACITY.get(sampler, 20)
    table = make_table(sampler, capacity, seed=3, **SAMPLERS[sampler])
    use(table, 0, steps=9)
    state = saved(table)
    restored = restore(make_table(sampler, capacity, seed=4, **SAMPLERS[sampler]), state)
    assert use(restored, 27) == use(table, 27)


@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "mixture"])
def test_what_comes_meanwhile_is_not_part_of_it(sampler: str) -> None:
    table = make_table(sampler, 300, **SAMPLERS[sampler])
    table.insert(numbered(0, 50))
    coming = iter(range(50, 200))
    state = saved(table, lambda: table.insert(numbered(next(coming, 0), 1)))
    restored = restore(make_table(sampler, 300, **SAMPLERS[sampler]), state)
    assert numbers(restored) == list(range(50))
    assert restored.insert_count == 50


@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "mixture"])
def test_items_that_are_overwritten_meanwhile_are_dropped_whole(sampler: str) -> None:
    table = make_table(sampler, 30, **SAMPLERS[sampler])
    for first in (0, 20):
        table.insert(numbered(first, 20))  # 10 to 39 are here
    if sampler == "prioritized":
        table.update_priorities(np.arange(10, 40), np.arange(10.0, 40.0))
    coming = iter(range(40, 100_000))

    def insert() -> None:
        number = next(coming)
        if number % 3 == 0:
            table.insert(numbered(number % 200, 1))

    state = saved(table, insert)
    restored = restore(make_table(sampler, 30, **SAMPLERS[sampler]), state)
    left = numbers(restored)
    assert 0 < len(left) < 30
    assert left == list(range(40 - len(left), 40))
    columns = restored.arrays()
    for name in ("observation", "policy_version", "extras/frame"):
        column = columns[f"storage/columns/{name}"].reshape(len(left), -1)
        np.testing.assert_array_equal(column[:, 0], left)
    if sampler == "prioritized":
        np.testing.assert_allclose(columns["sampler/masses"], (np.array(left) + 1e-6) ** 0.6)


def test_a_ring_that_turns_faster_than_it_is_copied_is_saved_empty() -> None:
    table = make_table(capacity=10)
    table.insert(numbered(0, 10))
    state = saved(table, lambda: table.insert(numbered(100, 10)))
    assert state.items == 0
    assert restore(make_table(capacity=10), state).size == 0


def test_a_queues_items_that_were_used_up_meanwhile_do_not_come_back_half() -> None:
    table = make_table("fifo", 20)
    table.insert(numbered(0, 10))

    def turn() -> None:
        table.sample(5, timeout_seconds=0)
        table.insert(numbered(100, 5), timeout_seconds=0)

    state = saved(table, turn)
    restored = restore(make_table("fifo", 20), state)
    left = numbers(restored)
    assert left == list(range(10 - len(left), 10))
    if left:
        sample = restored.sample(len(left), timeout_seconds=0)
        assert sample.batch.reward.tolist() == left


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_an_insert_is_there_with_its_name_or_neither_is(data: st.DataObject) -> None:
    table = make_table(capacity=1000)
    sequence = 0

    def insert() -> None:
        nonlocal sequence
        if sequence < 300 and data.draw(st.booleans()):
            sequence += 1
            columns = numbered(sequence, 1).columns()
            table.insert_once(Origin(WRITER, sequence), columns, timeout_seconds=0)

    for _ in range(40):
        insert()
    restored = restore(make_table(capacity=1000), saved(table, insert))
    there = set(numbers(restored))
    for number in range(1, sequence + 1):
        columns = numbered(number, 1).columns()
        new = restored.insert_once(Origin(WRITER, number), columns, timeout_seconds=0)
        assert new == (number not in there)


def test_rows_stay_whole_while_threads_insert_and_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every column of an item holds the same number: a torn row would not."""
    monkeypatch.setattr(buffer_server.snapshots, "PIECE_ROWS", 1000)
    table = make_table("prioritized", 30_000)
    table.insert(numbered(0, 30_000))
    stop = threading.Event()

    def insert() -> None:
        first = 30_000
        while not stop.is_set():
            table.insert(numbered(first % 2**20, 50))
            first += 50

    def sample() -> None:
        while not stop.is_set():
            drawn = table.sample(64, timeout_seconds=LONG_SECONDS)
            table.update_priorities(drawn.keys, drawn.batch.reward)

    threads = [threading.Thread(target=target) for target in (insert, insert, sample)]
    for thread in threads:
        thread.start()
    try:
        states = [saved(table) for _ in range(3)]
    finally:
        stop.set()
        for thread in threads:
            thread.join(LONG_SECONDS)
    assert any(state.items > 0 for state in states)
    for state in states:
        columns = restore(make_table("prioritized", 30_000), state).arrays()
        expected = columns["storage/columns/reward"]
        for name in ("observation", "action", "discount", "next_observation", "policy_version"):
            column = columns[f"storage/columns/{name}"]
            np.testing.assert_array_equal(column.T, np.broadcast_to(expected, column.T.shape))


def stacked_table(capacity: int, first: TransitionBatch) -> Table:
    signature = stacked_signature(first, 4)
    items = Capacity.within(signature, capacity, None).items
    kind = lookup("sampler", "prioritized")
    return Table("replay", signature, items, kind(kind.Config(), items), RateLimiter(), 5)


def contents(table: Table) -> dict[str, np.ndarray]:
    """Every item as it would be sampled, oldest first."""
    keys = np.asarray(table._storage.live_keys, dtype=np.int64)
    columns = table._storage.gather(keys)
    return {
        name: column if isinstance(column, np.ndarray) else column.stacked()
        for name, column in columns.items()
    }


@pytest.mark.parametrize("insert_every", [0, 40])
@pytest.mark.parametrize("ending", [0.05, 1.0])  # of episodes; with 1.0 the frames run out first
def test_stacks_come_back_with_their_frames(insert_every: int, ending: float) -> None:
    rng = np.random.default_rng(1)
    envs = [PixelCopy(rng, stack=4, frame=(3, 4, 4), ending=ending) for _ in range(3)]
    batches = [collect(envs, 10) for _ in range(120)]
    table = stacked_table(500, batches[0])
    for batch in batches[:60]:
        table.insert(batch)
    before = contents(table)
    calls, coming = 0, iter(batches[60:])

    def insert() -> None:
        nonlocal calls
        calls += 1
        if insert_every and calls % insert_every == 0:
            batch = next(coming, None)
            if batch is not None:
                table.insert(batch)

    state = saved(table, insert)
    after = contents(restore(stacked_table(500, batches[0]), state))
    left = len(after["reward"])
    assert left == state.items > 0
    assert (left == len(before["reward"])) == (insert_every == 0)
    for name, column in after.items():
        np.testing.assert_array_equal(column, before[name][len(before["reward"]) - left :])


@pytest.mark.parametrize("capacity", [1, 1000, 2**20, 2**33 + 1])
def test_moved_keys_are_new_and_keep_their_slots(capacity: int) -> None:
    next_key = 5000
    seen = [next_key]
    while (moved := restored_next_key(seen[-1], capacity)) > seen[-1]:
        assert moved % capacity == seen[-1] % capacity
        assert moved >= seen[-1] + KEY_GAP
        assert moved + KEY_GAP <= KEY_LIMIT
        seen.append(moved)
        assert len(seen) < 2**16 + 1
    # Then they begin anew, with room for a full ring.
    assert moved % capacity == next_key % capacity
    assert capacity <= moved < 2 * capacity


def test_keys_from_before_the_crash_name_nothing() -> None:
    table = make_table("prioritized", 100)
    table.insert(numbered(0, 100))
    old = table.sample(50, timeout_seconds=0).keys
    restored = restore(make_table("prioritized", 100), saved(table))
    before = restored.arrays()["sampler/masses"]
    restored.update_priorities(old, np.full(50, 100.0))
    np.testing.assert_array_equal(restored.arrays()["sampler/masses"], before)


def test_columns_of_different_lengths_are_damaged() -> None:
    table = make_table()
    table.insert(numbered(0, 3))
    state = saved(table)
    broken = {**state.arrays, "storage/columns/reward": np.zeros(2, np.float32)}
    with pytest.raises(CheckpointError, match="do not fit together"):
        type(state)("replay", broken, 0)
