"""The ring of frames, against a plain list of all that were ever stored."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer_server import frame_pool
from buffer_server.frame_pool import FramePool, pool_nbytes
from repertory.errors import UsageError
from repertory.types import ColumnSpec

FRAME = ColumnSpec("|u1", (1, 3, 3))


def shown(numbers: list[int]) -> np.ndarray:
    """Frames of which each is filled with its number."""
    return np.array(numbers, np.uint8)[:, None, None, None].repeat(3, 2).repeat(3, 3)


def values(frames: np.ndarray) -> list[int]:
    assert (frames == frames[:, :, :1, :1]).all()
    return frames[:, 0, 0, 0].tolist()


@settings(deadline=None)
@given(st.data(), st.integers(1, 12), st.booleans())
def test_any_sequence_of_frames_is_kept_exactly(
    data: st.DataObject, capacity: int, collide: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if collide:
            patch.setattr(frame_pool, "hash_words", lambda words: np.zeros(len(words), np.uint64))
        pool = FramePool(FRAME, capacity, data.draw(st.integers(1, capacity)))
        stored: list[int] = []  # by number, what each frame shows
        for _ in range(data.draw(st.integers(0, 8))):
            count = data.draw(st.integers(0, capacity))
            came = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
            reusable = pool.next_number - pool.reach
            numbers = pool.add(shown(came)).tolist()
            new = [
                value for number, value in zip(numbers, came, strict=True) if number >= len(stored)
            ]
            assert pool.next_number == len(stored) + len(new)
            stored += new
            assert [stored[number] for number in numbers] == came
            assert all(number >= max(reusable, pool.first_number) for number in numbers)
            assert pool.first_number == max(0, len(stored) - capacity)
            kept = list(range(pool.first_number, len(stored)))
            assert values(pool.take(np.array(kept, np.int64))) == stored[pool.first_number :]
            assert values(pool.read(pool.first_number, len(stored))) == stored[pool.first_number :]


def test_a_frame_that_comes_again_is_not_stored_again() -> None:
    pool = FramePool(FRAME, 8, 8)
    assert pool.add(shown([5, 6, 7])).tolist() == [0, 1, 2]
    assert pool.add(shown([7, 8, 6])).tolist() == [2, 3, 1]
    assert pool.next_number == 4


def test_a_frame_out_of_reach_is_stored_again() -> None:
    pool = FramePool(FRAME, 8, 2)
    pool.add(shown([5, 6, 7]))
    assert pool.add(shown([5])).tolist() == [3]
    assert pool.add(shown([7])).tolist() == [2]  # the second newest


def test_a_frame_that_its_own_batch_may_overwrite_is_stored_again() -> None:
    pool = FramePool(FRAME, 4, 4)
    pool.add(shown([1, 2, 3]))
    numbers = pool.add(shown([4, 5, 6, 1]))
    assert values(pool.take(numbers)) == [4, 5, 6, 1]


def test_more_frames_than_fit_are_refused_and_change_nothing() -> None:
    pool = FramePool(FRAME, 4, 4)
    pool.add(shown([1]))
    with pytest.raises(UsageError, match="5 frames does not fit into a pool of 4"):
        pool.add(shown([2, 3, 4, 5, 6]))
    assert pool.next_number == 1
    assert values(pool.read(0, 1)) == [1]


@pytest.mark.parametrize(("first", "stop"), [(1, 4), (2, 7), (5, 4)])
def test_frames_that_are_not_there_are_not_read(first: int, stop: int) -> None:
    pool = FramePool(FRAME, 4, 2)
    pool.add(shown([1, 2]))
    pool.add(shown([3, 4, 5, 6]))
    with pytest.raises(UsageError, match=r"only those from 2 up to 6"):
        pool.read(first, stop)


def test_taken_frames_are_copies() -> None:
    pool = FramePool(FRAME, 2, 1)
    taken, read = pool.take(pool.add(shown([1]))), pool.read(0, 1)
    pool.add(shown([2, 3]))
    assert values(taken) == values(read) == [1]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=5),
    st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=5),
    st.integers(1, 6),
)
def test_a_loaded_pool_goes_on_as_the_saved_one_would(
    before: list[list[int]], after: list[list[int]], reach: int
) -> None:
    saved, loaded = FramePool(FRAME, 6, reach), FramePool(FRAME, 6, reach)
    loaded.add(shown([9, 8]))  # is replaced
    for came in before:
        saved.add(shown(came))
    loaded.load(saved.read(saved.first_number, saved.next_number), saved.next_number)
    for came in after:
        assert saved.add(shown(came)).tolist() == loaded.add(shown(came)).tolist()


@pytest.mark.parametrize("capacity", [2, 3, 9])
def test_another_capacity_keeps_the_newest_frames(capacity: int) -> None:
    saved, loaded = FramePool(FRAME, 5, 5), FramePool(FRAME, capacity, 2)
    saved.add(shown([0, 1, 2, 3]))
    saved.add(shown([4, 5, 6]))
    loaded.load(saved.read(2, 7), 7)
    assert loaded.first_number == max(2, 7 - capacity)
    assert values(loaded.read(loaded.first_number, 7)) == list(range(loaded.first_number, 7))


@pytest.mark.parametrize("reach", [0, 5])
def test_a_reach_beyond_the_pool_is_refused(reach: int) -> None:
    with pytest.raises(UsageError, match=f"reach of {reach} frames in a pool of 4"):
        FramePool(FRAME, 4, reach)


def test_nbytes_are_those_of_all_its_arrays() -> None:
    pool = FramePool(ColumnSpec("<f4", (3, 5)), 100, 10)
    arrays = (pool._frames, pool._hashes, pool._newest)
    assert pool.nbytes == sum(array.nbytes for array in arrays)
    assert pool_nbytes(pool.frame, 100, 10) == 100 * 60 + 10 * 8 + 256 * 8  # 256 >= 16 * 10
