"""Storage of stacked pixels: what goes in comes out, with every frame kept once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pixel_envs import PixelCopy, collect, stacked_signature

from buffer_server import frame_pool
from buffer_server import frames as frames_module
from buffer_server.capacity import Capacity
from buffer_server.frames import FrameStacks, share_frames, stacked
from buffer_server.storage import Storage
from repertory.errors import CheckpointError, UsageError
from repertory.types import TransitionBatch

FRAME = (1, 3, 3)
STACK = 3


def small_copies(count: int, seed: int, *, still: bool = False) -> list[PixelCopy]:
    rng = np.random.default_rng(seed)
    return [
        PixelCopy(rng, stack=STACK, frame=FRAME, ending=0.15, still=still) for _ in range(count)
    ]


SIGNATURE = stacked_signature(collect(small_copies(1, 0), 1), STACK)


def tight(capacity: int, frames: int) -> Storage:
    """Has room for fewer frames than it would choose, so that they run out."""
    storage = Storage(SIGNATURE, capacity)
    assert storage.frames is not None
    storage.frames = frame_pool.FramePool(storage.frames.frame, frames, max(1, frames // 2))
    return storage


def assert_holds(storage: Storage, inserted: TransitionBatch, keys: np.ndarray) -> None:
    gathered = storage.gather(keys)
    for name, column in inserted.columns().items():
        np.testing.assert_array_equal(stacked(gathered[name]), column[keys], err_msg=name)


@pytest.fixture(params=["hashes", "one hash"])
def hashing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All as it is, or every frame with the same hash: nothing may be mistaken for another."""
    if request.param == "one hash":
        for module in (frame_pool, frames_module):
            monkeypatch.setattr(module, "hash_words", lambda words: np.zeros(len(words), np.uint64))


@pytest.mark.usefixtures("hashing")
@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    copies=st.integers(1, 4),
    capacity=st.integers(1, 24),
    frames=st.integers(2 * STACK, 40),
    still=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_sequence_of_batches_comes_out_as_it_went_in(
    data: st.DataObject, copies: int, capacity: int, frames: int, still: bool, seed: int
) -> None:
    storage, envs = tight(capacity, frames), small_copies(copies, seed, still=still)
    batches: list[TransitionBatch] = []
    first = 0
    for _ in range(data.draw(st.integers(1, 12))):
        count = data.draw(st.integers(1, min(capacity, frames // (2 * STACK))))
        batches.append(collect(envs, count))
        columns = batches[-1].columns()
        if data.draw(st.booleans()):  # as it comes from the wire
            columns = share_frames(columns, SIGNATURE)
        evicted = storage.append(columns)
        inserted = TransitionBatch.concatenate(batches)
        live = storage.live_keys
        # Reported is what is gone and was not overwritten; what lives is the newest, without gaps.
        overwritten = max(first, len(inserted) - capacity)
        assert evicted == range(overwritten, live.start)
        assert live.stop == len(inserted)
        assert len(live) >= count
        first = live.start
        assert_holds(storage, inserted, np.array(live))
        wanted = data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=9))
        assert_holds(storage, inserted, np.array(wanted))


def test_items_whose_frames_are_overwritten_are_gone_and_no_others() -> None:
    storage = tight(100, 20)  # shares what is among the newest 10
    envs = small_copies(1, 0)
    evicted: list[int] = []
    shown = []  # by key, the numbers of the frames
    for key in range(60):
        evicted += storage.append(collect(envs, 1).columns())
        numbers = [storage.read(name, key, key + 1) for name in ("observation", "next_observation")]
        shown.append(np.concatenate(numbers, axis=None).min())
        assert storage.frames is not None
        whole = [k for k in range(key + 1) if shown[k] >= storage.frames.first_number]
        assert list(storage.live_keys) == whole
    assert evicted == list(range(storage.first_key))


def test_stacks_of_a_sample_share_one_set_of_frames_each_there_once() -> None:
    storage = Storage(SIGNATURE, 50)
    inserted = collect(small_copies(2, 0), 40)
    storage.append(inserted.columns())
    keys = np.array([4, 6, 4, 8, 30])
    gathered = storage.gather(keys)
    observation, following = gathered["observation"], gathered["next_observation"]
    assert isinstance(observation, FrameStacks)
    assert isinstance(following, FrameStacks)
    assert observation.frames is following.frames
    both = np.concatenate([inserted.observation[keys], inserted.next_observation[keys]])
    different = np.unique(both.reshape(-1, 9), axis=0)
    assert len(observation.frames) == len(different)


def test_stacks_never_reach_into_another_episode() -> None:
    storage = Storage(SIGNATURE, 50)
    for count in (7, 1, 30, 12, 25):
        storage.append(collect(small_copies(3, count), count).columns())
        gathered = storage.gather(np.array(storage.live_keys))
        for name in ("observation", "next_observation"):
            episodes = stacked(gathered[name])[:, :, 0, 0]  # the first pixel of each frame
            assert (episodes == stacked(gathered["reward"])[:, None]).all()


def test_a_padded_stack_keeps_its_frame_once() -> None:
    storage = Storage(SIGNATURE, 50)
    storage.append(collect(small_copies(1, 0), 1).columns())
    assert storage.frames is not None
    assert storage.frames.next_number == 2  # the first frame, three times, and the next


@pytest.mark.parametrize(("copies", "batch"), [(8, 64), (1, 4), (1, 1)])
def test_a_transition_of_four_stacked_frames_costs_little_more_than_one_frame(
    copies: int, batch: int
) -> None:
    rng = np.random.default_rng(0)
    envs = [PixelCopy(rng, ending=1 / 200) for _ in range(copies)]
    storage = Storage(stacked_signature(collect(envs[:1], 1), 4), 1500)
    for _ in range(1600 // batch):
        storage.append(collect(envs, batch).columns())
    assert storage.size == 1500
    assert 7056 < storage.size_nbytes / storage.size < 7600


def test_an_environment_that_begins_with_the_same_frame_each_time_evicts_nothing_early() -> None:
    storage = Storage(SIGNATURE, 400)
    rng = np.random.default_rng(0)
    envs = [PixelCopy(rng, stack=STACK, frame=FRAME, ending=0.02, still=True) for _ in range(3)]
    for _ in range(300):
        assert not storage.append(collect(envs, 6).columns())
    assert storage.size == 400


def test_a_batch_whose_frames_do_not_fit_is_refused_before_anything_is_written() -> None:
    storage = tight(20, 8)
    before = collect(small_copies(1, 0), 2)
    storage.append(before.columns())
    with pytest.raises(UsageError, match="frames does not fit into a pool of 8"):
        storage.append(collect(small_copies(4, 1), 8).columns())
    assert storage.live_keys == range(2)
    assert_holds(storage, before, np.array([0, 1]))


def test_sizes_are_those_of_the_items_and_frames_that_are_there() -> None:
    storage = Storage(SIGNATURE, 50)
    assert storage.size_nbytes == 0
    storage.append(collect(small_copies(1, 0), 1).columns())
    # int64, float32 twice, int32, int64; six frame numbers and the oldest; two frames.
    assert storage.size_nbytes == (8 + 4 + 4 + 4 + 8) + 7 * 8 + 2 * 9


def test_nbytes_are_those_of_all_arrays() -> None:
    storage = Storage(SIGNATURE, 50)
    assert storage.frames is not None
    columns = sum(column.nbytes for column in storage._columns.values())
    assert storage.nbytes == columns + storage._oldest_frames.nbytes + storage.frames.nbytes


# A capacity in bytes


def test_plain_items_fill_the_bytes_they_may() -> None:
    plain = collect(small_copies(1, 0), 1).signature()  # 27 + 8 + 4 + 4 + 27 + 4 + 8 bytes
    assert Storage(plain, 100, 82 * 7 + 81).capacity == 7
    assert Storage(plain, 5, 82 * 7).capacity == 5
    with pytest.raises(UsageError, match="81 bytes holds nothing: one item takes 82 bytes"):
        Storage(plain, 100, 81)


@given(st.integers(1, 3000), st.integers(1, 400_000))
def test_no_more_than_the_given_bytes_and_no_less_than_fit(items: int, nbytes: int) -> None:
    if nbytes < Capacity.of(SIGNATURE, 1).nbytes:
        with pytest.raises(UsageError, match="holds nothing"):
            Capacity.within(SIGNATURE, items, nbytes)
        return
    room = Capacity.within(SIGNATURE, items, nbytes)
    assert room.nbytes <= nbytes
    assert room.items <= items
    assert room.items == items or Capacity.of(SIGNATURE, room.items + 1).nbytes > nbytes
    assert Capacity.within(SIGNATURE, room.items, nbytes) == room


def test_a_million_items_of_atari_take_less_than_eight_gigabytes() -> None:
    atari = stacked_signature(collect([PixelCopy(np.random.default_rng(0))], 1), 4)
    assert 7.0e9 < Capacity.of(atari, 1_000_000).nbytes < 7.7e9
    plain = {name: replace(column, stack=1) for name, column in atari.items()}
    assert Capacity.of(plain, 1_000_000).nbytes > 56e9


# Snapshots


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), max_size=12),
    room=st.tuples(st.integers(1, 30), st.integers(24, 40)),
    seed=st.integers(0, 99),
)
def test_a_snapshot_goes_into_any_capacity_and_keeps_the_newest(
    counts: list[int], room: tuple[int, int], seed: int
) -> None:
    saved, envs = tight(20, 30), small_copies(2, seed)
    batches = [collect(envs, count) for count in counts]
    for batch in batches:
        saved.append(batch.columns())
    restored = tight(*room)
    restored.append(collect(small_copies(1, 5), 1).columns())  # is replaced
    restored.load_arrays(saved.arrays())
    assert restored.next_key == saved.next_key
    assert restored.size <= min(room[0], saved.size)
    if room[1] >= 30:  # the frames fit too
        assert restored.size == min(room[0], saved.size)
    # The restored ring also goes on as a ring.
    batches.append(collect(envs, 1))
    restored.append(batches[-1].columns())
    assert_holds(restored, TransitionBatch.concatenate(batches), np.array(restored.live_keys))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 4), max_size=10), st.integers(0, 99))
def test_a_restored_storage_goes_on_exactly_as_the_saved_one(counts: list[int], seed: int) -> None:
    saved, restored, envs = tight(12, 24), tight(12, 24), small_copies(2, seed)
    for count in counts:
        saved.append(collect(envs, count).columns())
    restored.load_arrays(saved.arrays())
    for _ in range(12):
        batch = collect(envs, 3).columns()
        assert saved.append(batch) == restored.append(batch)
        assert saved.live_keys == restored.live_keys
        keys = np.array(saved.live_keys)
        one, other = saved.gather(keys), restored.gather(keys)
        for name in one:
            np.testing.assert_array_equal(stacked(one[name]), stacked(other[name]))


def test_a_snapshot_keeps_every_frame_once() -> None:
    storage = Storage(SIGNATURE, 200)
    storage.append(collect(small_copies(1, 0), 100).columns())
    arrays = storage.arrays()
    assert arrays["columns/observation"].shape == (100, STACK)
    assert len(np.unique(arrays["frames"].reshape(-1, 9), axis=0)) == len(arrays["frames"])


def test_a_snapshot_can_be_read_in_parts() -> None:
    storage = tight(20, 30)
    for _ in range(15):
        storage.append(collect(small_copies(1, 7), 3).columns())
    arrays = storage.arrays()
    keys, frames = storage.live_keys, storage.frames_to_save()
    for name, spec in storage.stored.items():
        parts = [storage.read(name, key, min(key + 4, keys.stop)) for key in keys[::4]]
        np.testing.assert_array_equal(np.concatenate(parts), arrays[f"columns/{name}"])
        assert parts[0].dtype == np.dtype(spec.dtype)
        assert parts[0].shape[1:] == spec.shape
    assert storage.frames is not None
    parts = [storage.frames.read(n, min(n + 4, frames.stop)) for n in frames[::4]]
    np.testing.assert_array_equal(np.concatenate(parts), arrays["frames"])


@pytest.mark.parametrize(("first", "stop"), [(-1, 3), (2, 4), (3, 2)])
def test_items_that_are_not_there_are_not_read(first: int, stop: int) -> None:
    storage = Storage(SIGNATURE, 50)
    storage.append(collect(small_copies(1, 0), 3).columns())
    with pytest.raises(UsageError, match="only those from 0 up to 3"):
        storage.read("reward", first, stop)


@pytest.mark.parametrize("missing", ["frames", "next_frame"])
def test_a_snapshot_without_its_frames_is_refused(missing: str) -> None:
    arrays = Storage(SIGNATURE, 2).arrays()
    del arrays[missing]
    with pytest.raises(CheckpointError, match=missing):
        Storage(SIGNATURE, 2).load_arrays(arrays)


@pytest.mark.parametrize(
    ("name", "damaged"),
    [("columns/observation", np.full((2, STACK), 99)), ("next_frame", np.asarray(1))],
)
def test_a_snapshot_of_frames_that_never_came_is_refused(name: str, damaged: np.ndarray) -> None:
    saved, storage = Storage(SIGNATURE, 9), Storage(SIGNATURE, 9)
    saved.append(collect(small_copies(1, 0), 2).columns())
    with pytest.raises(CheckpointError, match="damaged"):
        storage.load_arrays({**saved.arrays(), name: damaged})
    assert storage.size == 0


def test_items_whose_frames_were_not_saved_are_left_out_with_all_before_them() -> None:
    saved, restored = Storage(SIGNATURE, 50), Storage(SIGNATURE, 50)
    inserted = collect(small_copies(1, 3), 12)
    saved.append(inserted.columns())
    arrays = saved.arrays()
    arrays["frames"] = arrays["frames"][-6:]
    restored.load_arrays(arrays)
    assert 0 < restored.size < 12
    assert restored.next_key == 12
    assert_holds(restored, inserted, np.array(restored.live_keys))


def test_a_cleared_storage_counts_on_from_the_key_it_is_given() -> None:
    storage = Storage(SIGNATURE, 50)
    storage.append(collect(small_copies(1, 0), 2).columns())
    storage.clear(10)
    assert (storage.size, storage.size_nbytes, storage.next_key) == (0, 0, 10)
    batch = collect(small_copies(1, 1), 2)
    storage.append(batch.columns())
    assert storage.live_keys == range(10, 12)
    np.testing.assert_array_equal(
        stacked(storage.gather(np.array([11]))["observation"]), batch.observation[1:]
    )
