"""The ring of items, against a plain list."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer_server.storage import Storage
from repertory.errors import CheckpointError, UsageError
from repertory.types import TransitionBatch


def numbered(first: int, count: int) -> TransitionBatch:
    """Items that carry their own number in every column, so that a torn row shows."""
    number = np.arange(first, first + count)
    return TransitionBatch(
        observation=np.repeat(number[:, None], 3, axis=1).astype(np.float32),
        action=np.repeat(number[:, None], 2, axis=1).astype(np.float32),
        reward=number.astype(np.float32),
        discount=number.astype(np.float32),
        next_observation=np.repeat(number[:, None], 3, axis=1).astype(np.float32),
        policy_id=number.astype(np.int32),
        policy_version=number.astype(np.int64),
        extras={"log_prob": number.astype(np.float32)},
    )


SIGNATURE = numbered(0, 1).signature()


def assert_holds(batch: TransitionBatch, numbers: list[int]) -> None:
    for column in batch.columns().values():
        flat = column.reshape(len(column), -1)
        np.testing.assert_array_equal(flat, np.array(numbers)[:, None].repeat(flat.shape[1], 1))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), capacity=st.integers(1, 9))
def test_any_sequence_of_appends_keeps_the_newest_items(data: st.DataObject, capacity: int) -> None:
    storage, model = Storage(SIGNATURE, capacity), list[int]()
    for count in data.draw(st.lists(st.integers(0, capacity), max_size=12)):
        evicted = storage.append(numbered(len(model), count).columns())
        assert not evicted  # without frames an item goes by being overwritten
        model += range(len(model), len(model) + count)
        kept = model[-capacity:]
        assert list(storage.live_keys) == kept
        assert (storage.size, storage.next_key) == (len(kept), len(model))
        if kept:
            wanted = data.draw(st.lists(st.sampled_from(kept), min_size=1, max_size=20))
            assert_holds(TransitionBatch.from_columns(storage.gather(np.array(wanted))), wanted)


def test_live_is_inserted_and_not_yet_overwritten() -> None:
    storage = Storage(SIGNATURE, 4)
    storage.append(numbered(0, 4).columns())
    storage.append(numbered(4, 2).columns())
    assert storage.live(np.array([-1, 0, 1, 2, 5, 6])).tolist() == [
        False, False, False, True, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize("key", [0, 6, -1])
def test_a_key_without_item_is_refused(key: int) -> None:
    storage = Storage(SIGNATURE, 4)
    storage.append(numbered(0, 4).columns())
    storage.append(numbered(4, 2).columns())
    with pytest.raises(UsageError, match="from 2 up to, without, 6"):
        TransitionBatch.from_columns(storage.gather(np.array([3, key])))


def test_gather_copies() -> None:
    storage = Storage(SIGNATURE, 2)
    storage.append(numbered(0, 2).columns())
    batch = TransitionBatch.from_columns(storage.gather(np.array([0, 1])))
    storage.append(numbered(2, 2).columns())
    assert_holds(batch, [0, 1])


def test_append_copies() -> None:
    storage, batch = Storage(SIGNATURE, 2), numbered(0, 2)
    storage.append(batch.columns())
    batch.observation[:] = 9
    assert_holds(TransitionBatch.from_columns(storage.gather(np.array([0, 1]))), [0, 1])


def test_a_batch_larger_than_the_capacity_is_refused_with_both_sizes() -> None:
    storage = Storage(SIGNATURE, 4)
    with pytest.raises(UsageError, match=r"batch of 5 items .* capacity of 4"):
        storage.append(numbered(0, 5).columns())


GOOD = numbered(7, 2)
BAD_BATCHES = {
    "dtype": (
        dataclasses.replace(GOOD, reward=GOOD.reward.astype(np.float64)),
        r"column reward came as float64 \[2\], but float32 \[2\] was expected",
    ),
    "shape": (
        dataclasses.replace(GOOD, policy_id=GOOD.policy_id[:, None]),
        r"column policy_id came as int32 \[2, 1\], but int32 \[2\] was expected",
    ),
    "length": (
        dataclasses.replace(GOOD, extras={"log_prob": np.zeros(3, np.float32)}),
        r"column extras/log_prob came as float32 \[3\], but float32 \[2\]",
    ),
    "missing": (dataclasses.replace(GOOD, extras={}), "missing extras/log_prob, unknown none"),
    "unknown": (
        dataclasses.replace(GOOD, extras={**GOOD.extras, "value": np.zeros(2, np.float32)}),
        "missing none, unknown extras/value",
    ),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_a_batch_unlike_the_signature_is_refused_before_anything_is_written(case: str) -> None:
    batch, message = BAD_BATCHES[case]
    storage = Storage(SIGNATURE, 2)
    storage.append(numbered(0, 2).columns())
    with pytest.raises(UsageError, match=message):
        storage.append(batch.columns())
    assert storage.live_keys == range(2)
    assert_holds(TransitionBatch.from_columns(storage.gather(np.array([0, 1]))), [0, 1])


def test_a_signature_without_a_required_column_is_refused() -> None:
    signature = {name: spec for name, spec in SIGNATURE.items() if name != "discount"}
    with pytest.raises(UsageError, match="lacks discount"):
        Storage(signature, 4)


def test_no_capacity_is_refused() -> None:
    with pytest.raises(UsageError, match="capacity of 0"):
        Storage(SIGNATURE, 0)


def test_items_may_be_segments_of_steps() -> None:
    segments = TransitionBatch.from_columns(
        {
            name: np.repeat(column[:, None], 5, axis=1)  # [B, T, ...]
            for name, column in numbered(0, 3).columns().items()
        }
    )
    storage = Storage(segments.signature(), 2)
    storage.append(segments.select(slice(0, 2)).columns())
    storage.append(segments.select(slice(2, 3)).columns())
    batch = TransitionBatch.from_columns(storage.gather(np.array([2, 1])))
    assert batch.observation.shape == (2, 5, 3)
    assert_holds(batch, [2, 1])


def test_nbytes_counts_every_column_at_full_capacity() -> None:
    # Per item: 3 + 2 + 1 + 1 + 3 float32, int32, int64, and one float32 of extras.
    assert Storage(SIGNATURE, 10).nbytes == 10 * (10 * 4 + 4 + 8 + 4)


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(0, 5), max_size=5), capacity=st.integers(1, 12))
def test_a_snapshot_goes_into_any_capacity_and_keeps_the_newest(
    counts: list[int], capacity: int
) -> None:
    saved = Storage(SIGNATURE, 5)
    for count in counts:
        saved.append(numbered(saved.next_key, count).columns())
    restored = Storage(SIGNATURE, capacity)
    restored.load_arrays(saved.arrays())
    expected = list(saved.live_keys)[-capacity:]
    assert list(restored.live_keys) == expected
    assert restored.next_key == sum(counts)
    if expected:
        assert_holds(TransitionBatch.from_columns(restored.gather(np.array(expected))), expected)
    # The restored ring also goes on as a ring.
    restored.append(numbered(restored.next_key, 1).columns())
    expected = [*expected, restored.next_key - 1][-capacity:]
    assert list(restored.live_keys) == expected
    assert_holds(TransitionBatch.from_columns(restored.gather(np.array(expected))), expected)


def test_a_snapshot_holds_the_filled_part_only() -> None:
    storage = Storage(SIGNATURE, 1000)
    storage.append(numbered(0, 3).columns())
    assert len(storage.arrays()["columns/observation"]) == 3


def test_a_snapshot_does_not_change_with_the_storage() -> None:
    storage = Storage(SIGNATURE, 2)
    storage.append(numbered(0, 2).columns())
    arrays = storage.arrays()
    storage.append(numbered(2, 2).columns())
    assert arrays["columns/reward"].tolist() == [0, 1]


def test_a_snapshot_with_another_signature_is_refused_and_changes_nothing() -> None:
    saved = Storage({**SIGNATURE, "extras/log_prob": SIGNATURE["policy_id"]}, 2).arrays()
    storage = Storage(SIGNATURE, 2)
    storage.append(numbered(0, 2).columns())
    with pytest.raises(UsageError, match="extras/log_prob"):
        storage.load_arrays(saved)
    assert_holds(TransitionBatch.from_columns(storage.gather(np.array([0, 1]))), [0, 1])


def test_a_snapshot_without_its_counter_is_refused() -> None:
    arrays = Storage(SIGNATURE, 2).arrays()
    del arrays["next_key"]
    with pytest.raises(CheckpointError, match="next_key"):
        Storage(SIGNATURE, 2).load_arrays(arrays)
