"""A ring of items in preallocated NumPy columns: where a table keeps its experience.

Every item gets a key, the number of its insertion; it lies in slot `key % capacity` until the item
`key + capacity` overwrites it. Keys are never used twice, so a key that a learner still holds
either names the same item or none. What an item is (a transition, a segment of T steps) is the
signature's business. The caller, `buffer_server.table`, holds the lock.

Of a stacked column only the numbers of its frames are kept here; the frames are in a pool, each
once. Where the pool runs out before the ring does, the oldest items go, so that live keys always
follow each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping

import numpy as np

from buffer_server.capacity import Capacity
from buffer_server.frame_pool import FramePool
from buffer_server.frames import (
    INDEX,
    Column,
    FrameStacks,
    check_column,
    frame_spec,
    share_frames,
    stacked_names,
)
from buffer_server.ring import ring_slices
from repertory.errors import CheckpointError, UsageError
from repertory.types import COLUMN_NAMES, Array, ColumnSpec, Signature

COLUMNS_PREFIX = "columns/"
NEXT_KEY = "next_key"
FRAMES = "frames"
NEXT_FRAME = "next_frame"


class Storage:
    """Columns of items, filled in a circle; `capacity_nbytes` may allow fewer than `capacity`."""

    def __init__(
        self, signature: Signature, capacity: int, capacity_nbytes: int | None = None
    ) -> None:
        missing = [name for name in COLUMN_NAMES if name not in signature]
        if missing:
            raise UsageError(f"the signature lacks {', '.join(missing)}: every item has them")
        self._signature = dict(signature)
        self._room = Capacity.within(signature, capacity, capacity_nbytes)
        self.capacity = self._room.items
        self._stacked = stacked_names(signature)
        # What one item of a column looks like here: a stack is the numbers of its frames.
        self.stored = {
            name: ColumnSpec("<i8", (spec.stack,)) if spec.stack > 1 else spec
            for name, spec in signature.items()
        }
        # Zeros, not empty: the system gives such pages only when they are first written.
        self._columns: dict[str, Array] = {
            name: np.zeros((self.capacity, *spec.shape), spec.dtype)
            for name, spec in self.stored.items()
        }
        frame = frame_spec(signature)
        self.frames = (
            None if frame is None else FramePool(frame, self._room.frames, self._room.reach)
        )
        # By slot, the oldest frame that this item or any after it needs: never falls with the key.
        self._oldest_frames = np.zeros(0 if frame is None else self.capacity, dtype=np.int64)
        self._live = range(0)

    @property
    def live_keys(self) -> range:
        """The keys that name an item now."""
        return self._live

    @property
    def first_key(self) -> int:
        return self._live.start

    @property
    def next_key(self) -> int:
        return self._live.stop

    @property
    def size(self) -> int:
        return len(self._live)

    @property
    def nbytes(self) -> int:
        """Bytes of everything when it is full."""
        return self._room.nbytes

    @property
    def size_nbytes(self) -> int:
        """Bytes of the items that are here, and of their frames."""
        frames = self._frames_in_use()
        return self.size * self._room.item_nbytes + len(frames) * self._room.frame_nbytes

    def prepare(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        """The columns as `write` takes them: checked, and with every frame there once.

        It looks at nothing that changes: whoever inserts need not hold the lock for it.
        """
        count = _check(columns, self._signature)
        if count > self.capacity:
            raise UsageError(
                f"a batch of {count} items does not fit into a capacity of {self.capacity}: "
                "insert smaller batches or raise the capacity"
            )
        if self.frames is None:
            return dict(columns)
        prepared = share_frames(columns, self._signature)
        self.frames.check(len(_frames_of(prepared)))
        return prepared

    def append(self, columns: Mapping[str, Column]) -> range:
        """Prepares and writes. Refuses before writing."""
        return self.write(self.prepare(columns))

    def write(self, prepared: Mapping[str, Column]) -> range:
        """Over the oldest items, under the keys from `next_key` on.

        Returns the keys that are gone though nothing was written over them: their frames were.
        """
        arrays = {
            name: column for name, column in prepared.items() if isinstance(column, np.ndarray)
        }
        if self.frames is not None:
            numbers = self.frames.add(_frames_of(prepared))
            for name in self._stacked:
                stacks = prepared[name]
                assert isinstance(stacks, FrameStacks)
                arrays[name] = numbers[stacks.index]
        first, stop = self.next_key, self.next_key + len(arrays["reward"])
        self._put(arrays, first, stop)
        overwritten = max(self.first_key, stop - self.capacity)
        self._live = range(overwritten, stop)
        if self.frames is None:
            return range(0)
        self._note_oldest_frames(arrays, first, stop)
        self._live = range(self._first_with_frames(), stop)
        return range(overwritten, self.first_key)

    def clear(self, next_key: int) -> None:
        """Nothing is here any more, and keys go on from this one."""
        self._live = range(next_key, next_key)

    def live(self, keys: Array) -> Array:
        """[B] bool: which keys name an item that was inserted and is not gone yet."""
        mask: Array = (keys >= self.first_key) & (keys < self.next_key)
        return mask

    def gather(self, keys: Array) -> dict[str, Column]:
        """Copies of the items with these keys, in this order; stacks share their frames."""
        if not self.live(keys).all():
            raise UsageError(
                f"keys from {keys.min()} to {keys.max()} were asked for, but only those from "
                f"{self.first_key} up to, without, {self.next_key} are in the ring"
            )
        slots = keys % self.capacity
        taken = {name: column.take(slots, axis=0) for name, column in self._columns.items()}
        if self.frames is None:
            return {**taken}
        numbers = np.concatenate([taken[name] for name in self._stacked], axis=1)  # [B, all S]
        different, places = np.unique(numbers, return_inverse=True)
        frames = self.frames.take(different)
        ends = np.cumsum([self._signature[name].stack for name in self._stacked])[:-1]
        parts = np.split(places.astype(INDEX).reshape(numbers.shape), ends, axis=1)
        stacks = zip(self._stacked, parts, strict=True)
        return {**taken, **{name: FrameStacks(frames, index) for name, index in stacks}}

    def read(self, name: str, first: int, stop: int) -> Array:
        """A copy of one column, as it is stored, of the keys from `first` up to, without, `stop`.

        With `frames.read` and the two counters: what `load_arrays` takes, in parts of any size.
        """
        if not self.first_key <= first <= stop <= self.next_key:
            raise UsageError(
                f"the items from {first} up to {stop} were asked for, but only those from "
                f"{self.first_key} up to {self.next_key} are in the ring"
            )
        column = self._columns[name]
        slices = ring_slices(first, stop, self.capacity)
        return np.concatenate([column[slots] for slots in slices])

    def arrays(self) -> dict[str, Array]:
        """Copies of the filled part, oldest item and frame first, and the counters of both."""
        arrays = {
            COLUMNS_PREFIX + name: self.read(name, self.first_key, self.next_key)
            for name in self._columns
        }
        arrays[NEXT_KEY] = np.asarray(self.next_key, dtype=np.int64)
        if self.frames is not None:
            saved = self.frames_to_save()
            arrays[FRAMES] = self.frames.read(saved.start, saved.stop)
            arrays[NEXT_FRAME] = np.asarray(saved.stop, dtype=np.int64)
        return arrays

    def frames_to_save(self) -> range:
        """Those in use, and those within reach: what a restored pool shares must be the same."""
        assert self.frames is not None
        next_number = self.frames.next_number
        first = min(self._frames_in_use().start, next_number - self.frames.reach)
        return range(max(self.frames.first_number, first), next_number)

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Takes the place of what is here; where there is less room, only the newest items do.

        So it is with frames: an item whose frames are not there is left out, with all before it.
        """
        counters = [NEXT_KEY] if self.frames is None else [NEXT_KEY, NEXT_FRAME, FRAMES]
        for counter in counters:
            if counter not in arrays:
                raise CheckpointError(
                    f"the saved storage lacks {counter}: the checkpoint is damaged"
                )
        columns = {
            name.removeprefix(COLUMNS_PREFIX): column
            for name, column in arrays.items()
            if name.startswith(COLUMNS_PREFIX)
        }
        saved = _check(columns, self.stored)
        next_key = int(arrays[NEXT_KEY])
        if saved > next_key:
            raise CheckpointError(
                f"{saved} items were saved, but only {next_key} ever inserted: "
                "the checkpoint is damaged"
            )
        if self.frames is not None:
            self._load_frames(columns, arrays[FRAMES], int(arrays[NEXT_FRAME]))
        kept = min(saved, self.capacity)
        newest = {name: column[saved - kept :] for name, column in columns.items()}
        self._put(newest, next_key - kept, next_key)
        self._live = range(next_key - kept, next_key)
        if self.frames is not None:
            self._note_oldest_frames(newest, self.first_key, next_key)
            self._live = range(self._first_with_frames(), next_key)

    def _load_frames(self, columns: Mapping[str, Array], frames: Array, next_frame: int) -> None:
        assert self.frames is not None
        check_column(FRAMES, frames, self.frames.frame, len(frames))
        newest = max((int(columns[name].max(initial=-1)) for name in self._stacked), default=-1)
        if newest >= next_frame or len(frames) > next_frame:
            raise CheckpointError(
                f"items show frame {newest} and {len(frames)} frames were saved, but only "
                f"{next_frame} ever came: the checkpoint is damaged"
            )
        self.frames.load(frames, next_frame)

    def _frames_in_use(self) -> range:
        """The numbers from the oldest that an item needs."""
        if self.frames is None:
            return range(0)
        stop = self.frames.next_number
        return range(self._oldest_frame(self.first_key) if self.size else stop, stop)

    def _note_oldest_frames(self, numbers: Mapping[str, Array], first: int, stop: int) -> None:
        """These items are new: no item before them can outlive a frame that they show."""
        if first == stop:
            return
        oldest = np.minimum.reduce([numbers[name].min(axis=1) for name in self._stacked])
        needed = np.minimum.accumulate(oldest[::-1])[::-1]  # by the item itself or any after it
        earlier = range(self.first_key, first)
        lowered = earlier[bisect_right(earlier, int(needed[0]), key=self._oldest_frame) :]
        if lowered:
            for slots in ring_slices(lowered.start, lowered.stop, self.capacity):
                self._oldest_frames[slots] = needed[0]
        self._oldest_frames[np.arange(first, stop) % self.capacity] = needed

    def _first_with_frames(self) -> int:
        """The first live key of which, and after which, no item lacks a frame."""
        assert self.frames is not None
        live, first_frame = self._live, self.frames.first_number
        return live.start + bisect_left(live, first_frame, key=self._oldest_frame)

    def _oldest_frame(self, key: int) -> int:
        return int(self._oldest_frames[key % self.capacity])

    def _put(self, columns: Mapping[str, Array], first: int, stop: int) -> None:
        done = 0
        for slots in ring_slices(first, stop, self.capacity):
            upto = done + slots.stop - slots.start
            for name, column in self._columns.items():
                column[slots] = columns[name][done:upto]
            done = upto


def _check(columns: Mapping[str, Column], expected: Signature) -> int:
    """The number of items, if the columns are those of the signature."""
    if columns.keys() != expected.keys():
        missing = sorted(expected.keys() - columns.keys())
        unknown = sorted(columns.keys() - expected.keys())
        raise UsageError(
            "the batch's columns are not the signature's: "
            f"missing {', '.join(missing) or 'none'}, unknown {', '.join(unknown) or 'none'}"
        )
    count = len(columns["reward"])
    for name, spec in expected.items():
        check_column(name, columns[name], spec, count)
    return count


def _frames_of(columns: Mapping[str, Column]) -> Array:
    """Of prepared columns, the frames that all stacks share."""
    stacks = next(column for column in columns.values() if isinstance(column, FrameStacks))
    return stacks.frames
