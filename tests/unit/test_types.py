"""The columns that travel between processes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from repertory.types import COLUMN_NAMES, ColumnSpec, TransitionBatch, WeightSnapshot


def make_batch(size: int, first: int = 0, **extras: np.ndarray) -> TransitionBatch:
    count = np.arange(first, first + size)
    return TransitionBatch(
        observation=np.stack([count, -count], 1).astype(np.float32),
        action=count.astype(np.int64),
        reward=count.astype(np.float32),
        discount=np.full(size, 0.9, np.float32),
        next_observation=np.stack([count + 1, -count - 1], 1).astype(np.float32),
        policy_id=np.zeros(size, np.int32),
        policy_version=count.astype(np.int64),
        extras=extras,
    )


def assert_same_columns(one: TransitionBatch, other: TransitionBatch) -> None:
    assert one.columns().keys() == other.columns().keys()
    for name, column in one.columns().items():
        np.testing.assert_array_equal(column, other.columns()[name], err_msg=name)


def test_length_is_the_number_of_items():
    assert len(make_batch(5)) == 5


def test_columns_carry_extras_under_a_prefix():
    batch = make_batch(2, log_prob=np.zeros(2, np.float32))
    assert set(batch.columns()) == {*COLUMN_NAMES, "extras/log_prob"}


def test_columns_and_back_is_the_same_batch():
    batch = make_batch(4, log_prob=np.arange(4.0), boundary=np.ones(4, bool))
    again = TransitionBatch.from_columns(batch.columns())
    assert set(again.extras) == {"log_prob", "boundary"}
    assert_same_columns(batch, again)


def test_from_columns_without_a_column_is_an_error():
    columns = make_batch(2).columns()
    del columns["discount"]
    with pytest.raises(KeyError, match="discount"):
        TransitionBatch.from_columns(columns)


def test_select_by_index_takes_items_and_extras_in_that_order():
    chosen = make_batch(5, mark=np.arange(5) * 10).select(np.array([3, 0, 3]))
    np.testing.assert_array_equal(chosen.reward, [3, 0, 3])
    np.testing.assert_array_equal(chosen.extras["mark"], [30, 0, 30])


def test_select_by_index_copies_and_by_slice_does_not():
    batch = make_batch(5)
    assert not np.shares_memory(batch.select(np.array([1, 2])).observation, batch.observation)
    assert np.shares_memory(batch.select(slice(1, 3)).observation, batch.observation)


def test_signature_leaves_the_axis_of_items_out():
    signature = make_batch(3, mark=np.zeros((3, 4), np.uint8)).signature()
    assert signature["observation"] == ColumnSpec("<f4", (2,))
    assert signature["reward"] == ColumnSpec("<f4", ())
    assert signature["policy_version"] == ColumnSpec("<i8", ())
    assert signature["extras/mark"] == ColumnSpec("|u1", (4,))


def test_column_bytes_are_those_of_one_item():
    assert ColumnSpec("|u1", (4, 84, 84)).nbytes == 4 * 84 * 84
    assert ColumnSpec("<f4", ()).nbytes == 4


def test_concatenate_puts_batches_after_each_other():
    parts = [make_batch(2, 0, mark=np.arange(2)), make_batch(3, 2, mark=np.arange(2, 5))]
    assert_same_columns(TransitionBatch.concatenate(parts), make_batch(5, 0, mark=np.arange(5)))


def test_concatenate_of_one_batch_is_that_batch():
    batch = make_batch(2)
    assert TransitionBatch.concatenate([batch]) is batch


def test_batches_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_batch(1).reward = np.zeros(1)  # type: ignore[misc]


def test_checksum_does_not_depend_on_the_order_of_arrays():
    a, b = np.arange(3.0), np.ones(2)
    one = WeightSnapshot("pi", 1, {"a": a, "b": b})
    assert one.checksum == WeightSnapshot("pi", 1, {"b": b, "a": a}).checksum


@pytest.mark.parametrize(
    "arrays",
    [
        {"a": np.array([0.0, 1.0, 2.0000001]), "b": np.ones(2)},
        {"a": np.arange(3.0), "c": np.ones(2)},
        {"a": np.arange(3.0)},
    ],
    ids=["a value", "a name", "an array less"],
)
def test_checksum_changes_with(arrays):
    before = WeightSnapshot("pi", 1, {"a": np.arange(3.0), "b": np.ones(2)})
    assert WeightSnapshot("pi", 1, arrays).checksum != before.checksum


def test_checksum_of_a_view_is_that_of_its_copy():
    matrix = np.arange(6.0).reshape(2, 3).T  # not contiguous
    one = WeightSnapshot("pi", 1, {"a": matrix})
    assert one.checksum == WeightSnapshot("pi", 1, {"a": matrix.copy()}).checksum
