"""Stacks as frames: the same bit for bit, and every frame once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pixel_envs import PixelCopy, collect, stacked_signature

from buffer_server import frames as frames_module
from buffer_server.frames import (
    FrameStacks,
    check_column,
    frame_spec,
    hash_words,
    share_frames,
    stacked,
    unique_frames,
)
from repertory.errors import UsageError
from repertory.types import ColumnSpec

# Few different values, so that frames repeat; odd sizes too, which no wide word divides.
STACKS = st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(1, 5)).flatmap(
    lambda shape: st.lists(
        hnp.arrays(np.uint8, shape, elements=st.integers(0, 1)), min_size=1, max_size=3
    )
)


def distinct(stacks: list[np.ndarray]) -> list[bytes]:
    """In the order of their first appearance, by Python's own dictionary."""
    found: dict[bytes, None] = {}
    for stack in stacks:
        for frame in stack.reshape(-1, *stack.shape[2:]):
            found.setdefault(frame.tobytes())
    return list(found)


def assert_rebuilt(stacks: list[np.ndarray]) -> np.ndarray:
    frames, indices = unique_frames(stacks)
    for stack, index in zip(stacks, indices, strict=True):
        assert index.dtype == np.int32
        np.testing.assert_array_equal(frames[index], stack)
    return frames


@given(STACKS)
def test_unique_frames_are_those_that_differ_in_the_order_they_came(
    stacks: list[np.ndarray],
) -> None:
    frames = assert_rebuilt(stacks)
    assert [frame.tobytes() for frame in frames] == distinct(stacks)


@given(STACKS)
def test_frames_with_the_same_hash_are_kept_apart(stacks: list[np.ndarray]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames_module, "hash_words", lambda words: np.zeros(len(words), np.uint64))
        assert_rebuilt(stacks)


@pytest.mark.parametrize("dtype", ["|u1", "<i2", "<f4", "<f8", "|b1"])
def test_any_dtype_is_compared_by_its_bytes(dtype: str) -> None:
    zeros = np.zeros((2, 3, 5), dtype)
    assert len(assert_rebuilt([zeros])) == 1
    zeros[1, 2, 4] = 1
    assert len(assert_rebuilt([zeros])) == 2


def test_minus_zero_and_zero_are_different_frames() -> None:
    frames, _ = unique_frames([np.array([[[0.0], [-0.0]]], np.float32)])
    assert np.signbit(frames).ravel().tolist() == [False, True]


@pytest.mark.parametrize("place", [0, 1, 881, 7055])
def test_a_single_pixel_makes_another_frame(place: int) -> None:
    frame = np.zeros(7056, np.uint8)
    other = frame.copy()
    other[place] = 1
    assert len(unique_frames([np.stack([frame, other])[None]])[0]) == 2


def test_the_hash_is_the_sum_of_words_times_odd_numbers() -> None:
    # One word at a time shows its multiplier.
    multipliers = hash_words(np.eye(5, dtype=np.uint64))
    assert (multipliers % 2 == 1).all()
    assert len(set(multipliers.tolist())) == 5
    words = np.random.default_rng(0).integers(0, 2**64, (3, 5), dtype=np.uint64)
    expected = [
        sum(int(word) * int(factor) for word, factor in zip(row, multipliers, strict=True)) % 2**64
        for row in words
    ]
    assert hash_words(words).tolist() == expected


def test_stacks_out_of_c_order_come_back() -> None:
    stacks = np.arange(48, dtype=np.uint8).reshape(4, 2, 3, 2).transpose(1, 3, 0, 2)
    assert_rebuilt([stacks])


def test_stacked_joins_the_frames_along_the_first_axis() -> None:
    frames = np.arange(12, dtype=np.uint8).reshape(3, 2, 1, 2)  # three RGB-like frames [2, 1, 2]
    column = FrameStacks(frames, np.array([[2, 0], [1, 1]], np.int32)).stacked()
    assert column.shape == (2, 4, 1, 2)
    assert column[0].ravel().tolist() == [8, 9, 10, 11, 0, 1, 2, 3]
    assert column[1].ravel().tolist() == [4, 5, 6, 7, 4, 5, 6, 7]
    column[:] = 0
    assert frames.any()


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (np.array([[0, 3]], np.int32), "frames 0 to 3, but 3 are there"),
        (np.array([[-1, 0]], np.int32), "frames -1 to 0, but 3"),
        (np.array([[0, 1]], np.int64), "by int64"),
        (np.array([0, 1], np.int32), r"by int32 \[2\]"),
    ],
)
def test_stacks_that_name_no_frame_cannot_be_made(index: np.ndarray, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FrameStacks(np.zeros((3, 1, 2, 2), np.uint8), index)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 12), st.integers(1, 3), st.integers(1, 4), st.integers(2, 4))
def test_shared_columns_are_the_columns(count: int, copies: int, channels: int, stack: int) -> None:
    rng = np.random.default_rng(count)
    envs = [PixelCopy(rng, stack=stack, frame=(channels, 3, 3), ending=0.3) for _ in range(copies)]
    whole = collect(envs, 12)
    batch, signature = whole.select(slice(0, count)), stacked_signature(whole, stack)
    shared = share_frames(batch.columns(), signature)
    observation, following = shared["observation"], shared["next_observation"]
    assert isinstance(observation, FrameStacks)
    assert isinstance(following, FrameStacks)
    assert observation.frames is following.frames
    for name, column in batch.columns().items():
        np.testing.assert_array_equal(stacked(shared[name]), column)


def test_columns_that_share_their_frames_already_stay_as_they_are() -> None:
    batch = collect([PixelCopy(np.random.default_rng(0), frame=(1, 4, 4))], 3)
    shared = share_frames(batch.columns(), stacked_signature(batch, 4))
    again = share_frames(shared, stacked_signature(batch, 4))
    assert again == shared


def test_columns_with_frames_of_their_own_are_brought_together() -> None:
    batch = collect([PixelCopy(np.random.default_rng(0), frame=(1, 4, 4))], 3)
    signature = stacked_signature(batch, 4)
    apart = {
        name: share_frames({name: column}, signature)[name]
        for name, column in batch.columns().items()
    }
    shared = share_frames(apart, signature)
    assert shared["observation"].frames is shared["next_observation"].frames
    np.testing.assert_array_equal(stacked(shared["observation"]), batch.observation)


def test_a_column_of_another_shape_is_refused_by_name() -> None:
    batch = collect([PixelCopy(np.random.default_rng(0), frame=(1, 4, 4))], 3)
    columns = {**batch.columns(), "observation": batch.observation[:, :3]}
    with pytest.raises(UsageError, match=r"observation came as uint8 \[3, 3, 4, 4\], but uint8"):
        share_frames(columns, stacked_signature(batch, 4))


@pytest.mark.parametrize(
    ("frames", "stack", "message"),
    [
        ((5, 1, 4, 4), 4, None),
        ((5, 1, 4, 5), 4, r"came as uint8 \[5, 1, 4, 5\], but uint8 \[5, 1, 4, 4\]"),
        ((5, 1, 4, 4), 3, r"came as int32 \[2, 3\]"),
    ],
)
def test_stacks_are_checked_like_arrays(
    frames: tuple[int, ...], stack: int, message: str | None
) -> None:
    column = FrameStacks(np.zeros(frames, np.uint8), np.zeros((2, stack), np.int32))
    spec = ColumnSpec("|u1", (4, 4, 4), stack=4)
    if message is None:
        check_column("x", column, spec, 2)
        return
    with pytest.raises(UsageError, match=message):
        check_column("x", column, spec, 2)


def test_stacks_where_none_are_expected_are_refused() -> None:
    column = FrameStacks(np.zeros((1, 4), np.uint8), np.zeros((2, 1), np.int32))
    with pytest.raises(UsageError, match="x came as int32"):
        check_column("x", column, ColumnSpec("|u1", (4,)), 2)


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ({"a": ColumnSpec("|u1", (8, 5, 6), 4)}, ColumnSpec("|u1", (2, 5, 6))),
        ({"a": ColumnSpec("<f4", (6,), 3), "b": ColumnSpec("<i8", ())}, ColumnSpec("<f4", (2,))),
        ({"a": ColumnSpec("<f4", (6,))}, None),
    ],
)
def test_the_frame_of_a_signature(
    signature: dict[str, ColumnSpec], expected: ColumnSpec | None
) -> None:
    assert frame_spec(signature) == expected


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ({"a": ColumnSpec("|u1", (7, 5), 4)}, r"a \[7, 5\] is no stack of 4 frames"),
        ({"a": ColumnSpec("|u1", (), 4)}, r"a \[\] is no stack"),
        ({"a": ColumnSpec("|u1", (4, 0), 4)}, r"no axis 0"),
        (
            {"a": ColumnSpec("|u1", (4, 5), 4), "b": ColumnSpec("|u1", (4, 6), 4)},
            r"alike: a \|u1 \[1, 5\], b \|u1 \[1, 6\]",
        ),
    ],
)
def test_stacks_of_no_common_frame_are_refused(
    signature: dict[str, ColumnSpec], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        frame_spec(signature)
