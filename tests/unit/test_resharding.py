"""Into another number of shards: every item once, with its priority, and no insert forgotten."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pixel_envs import PixelCopy, collect, stacked_signature
from replay_shards import make_table, numbered
from saved_states import numbers, saved

from buffer_server.rate_limiter import RateLimiter
from buffer_server.resharding import (
    ShardPlace,
    deal,
    inheritance,
    split_consumers,
    split_limiter,
)
from buffer_server.saved_tables import KEY_GAP, SavedTable
from buffer_server.table import Table
from buffer_server.writer_ledger import WINDOW, Origin, WriterLedger
from repertory.errors import CheckpointError, UsageError
from repertory.parts import lookup

CHANGES = [(3, 2), (2, 3), (1, 4), (4, 1)]


@given(st.lists(st.integers(0, 40_000), min_size=1, max_size=5), st.integers(1, 6))
def test_every_item_is_dealt_once_and_shards_are_equal(sizes: list[int], shards: int) -> None:
    hands = deal(sizes, shards)
    assert len(hands) == shards
    dealt: dict[int, list[tuple[int, int]]] = {source: [] for source in range(len(sizes))}
    for hand in hands:
        for block in hand:
            dealt[block.source].append((block.start, block.stop))
    for source, size in enumerate(sizes):
        place = 0
        for start, stop in sorted(dealt[source]):
            assert start == place < stop
            place = stop
        assert place == size
    counts = [sum(len(block) for block in hand) for hand in hands]
    assert max(counts) - min(counts) <= max(1, 0.02 * sum(sizes) / shards)


def test_old_items_of_every_source_come_before_new_ones() -> None:
    sizes = [1000, 3000]
    for hand in deal(sizes, 2):
        ages = [block.start / sizes[block.source] for block in hand]
        assert ages == sorted(ages)
        of_the_first = sum(len(block) for block in hand if block.source == 0)
        assert of_the_first / sum(map(len, hand)) == pytest.approx(0.25, abs=0.1)


def fill(sources: int, sampler: str, capacity: int = 100, **config: Any) -> list[Table]:
    """Source k has the numbers from 60 k on; the first ones of each were overwritten."""
    tables = []
    for source in range(sources):
        table = make_table(sampler, capacity, seed=source, **config)
        first = 60 * source
        for number in range(first, first + 40 + 5 * source):
            origin = Origin(bytes([source]) * 16, 1 + number - first)
            table.insert_once(origin, numbered(number, 1).columns(), timeout_seconds=0)
        tables.append(table)
    return tables


def reshard(
    states: list[SavedTable], shards: int, sampler: str, capacity: int = 400, **config: Any
) -> list[Table]:
    tables = [make_table(sampler, capacity, **config) for _ in range(shards)]
    for index, table in enumerate(tables):
        table.inherit(inheritance(table, states, ShardPlace(index, shards)))
    return tables


def all_numbers(tables: list[Table]) -> list[int]:
    return sorted(number for table in tables for number in numbers(table))


@pytest.mark.parametrize("sampler", ["uniform", "prioritized", "mixture"])
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_every_item_is_in_one_of_the_new_shards(before: int, after: int, sampler: str) -> None:
    old = fill(before, sampler)
    new = reshard([saved(table) for table in old], after, sampler)
    assert all_numbers(new) == all_numbers(old)
    sizes = [table.size for table in new]
    assert max(sizes) - min(sizes) <= 2


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_every_item_keeps_its_priority(before: int, after: int) -> None:
    old = fill(before, "prioritized")
    expected = {}
    for table in old:
        keys = np.asarray(table._storage.live_keys)
        table.update_priorities(keys, np.array(numbers(table)) + 0.5)
        expected |= dict(zip(numbers(table), table.arrays()["sampler/masses"], strict=True))
    new = reshard([saved(table) for table in old], after, "prioritized")
    for table in new:
        arrays = table.arrays()
        assert arrays["sampler/max_priority"] == max(expected) + 0.5
        for number, mass in zip(numbers(table), arrays["sampler/masses"], strict=True):
            assert mass == expected[number]
        drawn = table.sample(50, timeout_seconds=0)
        np.testing.assert_array_equal(drawn.batch.policy_version, drawn.batch.reward)


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_repeated_insert_is_recognised_in_every_new_shard(before: int, after: int) -> None:
    old = fill(before, "uniform")
    new = reshard([saved(table) for table in old], after, "uniform")
    for table in new:
        size = table.size
        for source in range(before):
            for sequence in (1, 40):
                origin = Origin(bytes([source]) * 16, sequence)
                columns = numbered(0, 1).columns()
                assert not table.insert_once(origin, columns, timeout_seconds=0)
        assert table.size == size


def test_a_writer_that_went_to_several_shards_is_remembered_with_all_it_did() -> None:
    old, writer = [make_table(), make_table()], b"w" * 16
    for sequence in range(1, 21):
        columns = numbered(sequence, 1).columns()
        old[sequence % 2].insert_once(Origin(writer, sequence), columns, timeout_seconds=0)
    (new,) = reshard([saved(table) for table in old], 1, "uniform")
    for sequence in range(1, 23):
        columns = numbered(sequence, 1).columns()
        done = not new.insert_once(Origin(writer, sequence), columns, timeout_seconds=0)
        assert done == (sequence <= 20)


@given(st.lists(st.lists(st.integers(1, 2 * WINDOW), max_size=20), min_size=1, max_size=4))
def test_merged_ledgers_know_what_any_of_them_knew(done: list[list[int]]) -> None:
    writer, merged = b"w" * 16, WriterLedger()
    for sequences in done:
        ledger = WriterLedger()
        for sequence in sorted(sequences):
            ledger.note(Origin(writer, sequence))
        merged.merge_arrays(ledger.arrays())
    everything = {sequence for sequences in done for sequence in sequences}
    newest = max(everything, default=0)
    for sequence in range(max(1, newest - WINDOW + 1), newest + 3):
        assert merged.contains(Origin(writer, sequence)) == (sequence in everything)


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_queues_keep_their_order_and_drop_what_is_used_up(before: int, after: int) -> None:
    old = fill(before, "fifo")
    for table in old:
        table.sample(10, timeout_seconds=0)
    expected = [number for table in old for number in numbers(table)[10:]]
    new = reshard([saved(table) for table in old], after, "fifo")
    assert all_numbers(new) == sorted(expected)
    for table in new:
        drawn = table.sample(table.size, timeout_seconds=0).batch.reward
        for source in range(before):
            own = [number for number in drawn if 60 * source <= number < 60 * source + 60]
            assert own == sorted(own)


def test_an_item_that_may_come_twice_comes_no_more_often_than_its_queue_allows() -> None:
    old = fill(2, "fifo", max_times_sampled=2)
    for table in old:
        table.sample(20, timeout_seconds=0)
    (new,) = reshard([saved(table) for table in old], 1, "fifo", max_times_sampled=2)
    times: dict[float, int] = {}
    while new._available():
        for number in new.sample(1, timeout_seconds=0).batch.reward:
            times[float(number)] = times.get(float(number), 0) + 1
    assert times.keys() == set(map(float, all_numbers(old)))
    assert max(times.values()) == 2


def test_provenance_goes_with_the_items() -> None:
    old = fill(2, "mixture")
    new = reshard([saved(table) for table in old], 3, "mixture")
    shares: dict[int, tuple[int, int]] = {}
    for table in new:
        for share in table.statistics().policies:
            shares[share.policy_id] = (share.items, share.newest_version)
    # Every numbered item is its own policy's, with its number as version.
    assert shares == {number: (1, number) for number in all_numbers(old)}


def test_items_lost_to_a_snapshot_are_lost_to_the_new_shards() -> None:
    table = make_table("prioritized", 30)
    table.insert(numbered(0, 30))
    state = SavedTable("replay", saved(table).arrays, first_whole_key=12)
    new = reshard([state], 2, "prioritized")
    assert all_numbers(new) == list(range(12, 30))


def test_old_keys_name_nothing_in_new_shards() -> None:
    old = fill(3, "uniform")
    for table in reshard([saved(table) for table in old], 2, "uniform"):
        assert table._storage.first_key >= KEY_GAP


def test_with_less_room_the_newest_stay() -> None:
    old = fill(1, "prioritized")
    (new,) = reshard([saved(old[0])], 1, "prioritized", capacity=10)
    assert numbers(new) == list(range(30, 40))
    assert len(new.arrays()["sampler/masses"]) == 10


@given(
    st.lists(st.tuples(*(st.integers(0, 10**9) for _ in range(4))), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_limiter_counts_add_up_again(counts: list[tuple[int, ...]], shards: int) -> None:
    names = ("inserted", "sampled", "inserted_origin", "sampled_origin")
    settings_ = {"min_size": 10, "samples_per_insert": 4.0}
    states = [{**dict(zip(names, row, strict=True)), **settings_} for row in counts]
    parts = [split_limiter(states, ShardPlace(index, shards)) for index in range(shards)]
    for name in names:
        values = [part[name] for part in parts]
        assert sum(values) == sum(state[name] for state in states)
        assert max(values) - min(values) <= 1
    assert all(part["min_size"] == 10 for part in parts)


def test_the_surplus_is_shared_out() -> None:
    def limited() -> RateLimiter:
        return RateLimiter(min_size=1, samples_per_insert=2.0, error_buffer=200.0)

    old = make_table(limiter=limited())
    old.insert(numbered(0, 41))
    assert old.statistics().surplus == 80.0
    new = [make_table(limiter=limited()) for _ in range(4)]
    for index, table in enumerate(new):
        table.inherit(inheritance(table, [saved(old)], ShardPlace(index, 4)))
    assert sum(table.statistics().surplus for table in new) == 80.0
    assert sum(table.insert_count for table in new) == 41


def shared_limiter(min_size: int = 1) -> RateLimiter:
    return RateLimiter(min_size=min_size, consumers={0: 4.0, 1: 0.5}, consumer_buffer_items=50)


def test_what_each_consumer_owes_is_shared_out() -> None:
    old = [make_table(limiter=shared_limiter()) for _ in range(2)]
    for table, items in zip(old, (41, 31), strict=True):
        table.insert(numbered(0, items))
    old[0].sample(11, timeout_seconds=0, consumer=1)
    old[1].configure_consumers({0: 3.0, 7: 1.0})
    old[1].insert(numbered(0, 5))
    new = [make_table(limiter=shared_limiter()) for _ in range(3)]
    states = [saved(table) for table in old]
    for index, table in enumerate(new):
        table.inherit(inheritance(table, states, ShardPlace(index, 3)))
    found = [table.statistics().consumers for table in new]
    assert [[one.consumer for one in each] for each in found] == [[0, 1, 7]] * 3
    assert [sum(each[place].sampled for each in found) for place in range(3)] == [0, 11, 0]
    # 4 * 40 and 4 * 30 + 3 * 5; 0.5 * 40 - 11 and 0.5 * 35; 1 * 5. Shards cut less than a sample.
    for place, owed in enumerate((295, 26.5, 5)):
        assert owed - 3 < sum(each[place].surplus for each in found) <= owed
    assert [one.samples_per_insert for one in found[0]] == [4.0, 0.5, 1.0]


def test_a_source_without_consumers_counts_as_nothing() -> None:
    old = make_table(limiter=shared_limiter())
    old.insert(numbered(0, 21))
    with_, without = saved(old).consumers, saved(make_table()).consumers
    assert without == {}
    assert split_consumers([without, without], ShardPlace(0, 2)) == {}
    split = split_consumers([without, with_], ShardPlace(1, 2))
    assert split["consumer"].tolist() == [0, 1]
    assert split["surplus"].tolist() == [40, 5]


def test_new_shards_below_min_size_owe_nothing_and_take_inserts() -> None:
    old = make_table(limiter=shared_limiter(min_size=40))
    for items in (40, 50):
        old.insert(numbered(0, items))
    assert old.statistics().surplus == 200  # as much as can be owed
    new = [make_table(limiter=shared_limiter(min_size=40)) for _ in range(3)]
    for index, table in enumerate(new):
        table.inherit(inheritance(table, [saved(old)], ShardPlace(index, 3)))
        assert table.insert_count == 30
        table.insert(numbered(0, 50), timeout_seconds=0)
        assert [one.surplus for one in table.statistics().consumers] == [160, 20]


def test_sources_under_different_ratios_start_the_balance_anew() -> None:
    states = [
        {"inserted": 10, "sampled": 0, "inserted_origin": 1, "sampled_origin": 0, **ratio}
        for ratio in (
            {"min_size": 1, "samples_per_insert": 2.0},
            {"min_size": 1, "samples_per_insert": 3.0},
        )
    ]
    limiter = RateLimiter(min_size=1, samples_per_insert=2.0, error_buffer=20.0)
    limiter.load_state(split_limiter(states, ShardPlace(0, 1)))
    assert limiter.surplus == 0.0
    assert limiter.insert_count == 20


def test_another_sampler_is_refused() -> None:
    state = saved(fill(1, "uniform")[0])
    table = make_table("prioritized")
    with pytest.raises(CheckpointError, match="another sampler"):
        table.inherit(inheritance(table, [state], ShardPlace(0, 1)))


@pytest.mark.parametrize(("index", "count"), [(1, 1), (-1, 2), (0, 0)])
def test_a_place_that_there_is_not_is_refused(index: int, count: int) -> None:
    with pytest.raises(UsageError, match="counted from 0"):
        ShardPlace(index, count)


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 3))
def test_stacks_are_dealt_with_their_frames(shards: int) -> None:
    rng = np.random.default_rng(1)
    kind = lookup("sampler", "uniform")

    def stacked() -> Table:
        return Table("replay", signature, 400, kind(kind.Config(), 400), RateLimiter(), 5)

    old, expected = [], []
    for source in range(2):
        envs = [PixelCopy(rng, stack=4, frame=(3, 4, 4), ending=0.1) for _ in range(2)]
        batch = collect(envs, 100 + 20 * source)
        signature = stacked_signature(batch, 4)
        old.append(stacked())
        old[-1].insert(batch)
        expected += rows(batch.observation, batch.next_observation)
    new = [stacked() for _ in range(shards)]
    found = []
    for index, table in enumerate(new):
        states = [saved(source) for source in old]
        table.inherit(inheritance(table, states, ShardPlace(index, shards)))
        keys = np.asarray(table._storage.live_keys, dtype=np.int64)
        columns = table._storage.gather(keys)
        found += rows(columns["observation"].stacked(), columns["next_observation"].stacked())
    assert sorted(found) == sorted(expected)


def rows(*columns: np.ndarray) -> list[bytes]:
    return [b"".join(row.tobytes() for row in item) for item in zip(*columns, strict=True)]
