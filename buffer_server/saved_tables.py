"""A table as it is in a checkpoint: still on disk, read where it is looked at.

Items are counted from the first that is whole. Restored items get other keys: keys that learners
hold from before must name nothing. All of them are moved by the same multiple of the capacity, so
that every item keeps its slot and the samples go on as they would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from buffer_server.contents import CONSUMERS, LEDGER, LIMITER, SAMPLER, STORAGE, without
from buffer_server.frames import INDEX, Column, FrameStacks
from buffer_server.rate_limiter import Number
from buffer_server.storage import COLUMNS_PREFIX, FRAMES, NEXT_FRAME, NEXT_KEY
from repertory.errors import CheckpointError
from repertory.types import Array

# More than are inserted between a snapshot and the crash after it.
KEY_GAP = 2**32
# Who talks to several shards writes the shard's number above (`buffer_server.sharded`).
KEY_LIMIT = 2**48


def restored_next_key(next_key: int, capacity: int) -> int:
    """The key after the last one, once they are moved.

    After some 65,000 restarts the keys begin anew, in the same slots: nobody can still hold keys of
    so long ago.
    """
    moved = next_key + -(-KEY_GAP // capacity) * capacity
    if moved + KEY_GAP <= KEY_LIMIT:
        return moved
    return capacity + next_key % capacity


@dataclass(frozen=True, slots=True)
class SavedTable:
    """The arrays of `Table.arrays`, and which items of them are whole."""

    name: str
    arrays: Mapping[str, Array]
    first_whole_key: int

    def __post_init__(self) -> None:
        try:
            lengths = {len(column) for column in self._columns().values()}
            if len(lengths) != 1 or self.next_key < max(lengths):
                raise CheckpointError(f"the columns of table {self.name!r} do not fit together")
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"table {self.name!r} lacks {error}") from error

    @property
    def next_key(self) -> int:
        return int(self.arrays[STORAGE + NEXT_KEY])

    @property
    def items(self) -> int:
        """Those that are whole."""
        saved = len(next(iter(self._columns().values())))
        return max(0, min(saved, self.next_key - self.first_whole_key))

    @property
    def limiter(self) -> dict[str, Number]:
        return {name: array.item() for name, array in without(LIMITER, self.arrays).items()}

    @property
    def consumers(self) -> dict[str, Array]:
        """Empty where there was one count for all callers."""
        return without(CONSUMERS, self.arrays)

    @property
    def ledger(self) -> dict[str, Array]:
        return without(LEDGER, self.arrays)

    @property
    def sampler(self) -> dict[str, Array]:
        return without(SAMPLER, self.arrays)

    def moved(self, capacity: int) -> dict[str, Array]:
        """What `Table.load_arrays` takes: whole items only, under other keys."""
        next_key = restored_next_key(self.next_key, capacity)
        columns = {
            STORAGE + COLUMNS_PREFIX + name: newest(column, self.items)
            for name, column in self._columns().items()
        }
        counter = {STORAGE + NEXT_KEY: np.asarray(next_key, dtype=np.int64)}
        return {**self.arrays, **columns, **counter}

    def batch(self, places: slice, selectable: int, stacked: Sequence[str]) -> dict[str, Column]:
        """Some of the newest `selectable` items, by their places among these, to be appended."""
        columns: dict[str, Column] = {
            name: newest(column, selectable)[places] for name, column in self._columns().items()
        }
        if not stacked:
            return columns
        numbers = {name: np.asarray(columns[name]) for name in stacked}
        different = np.unique(np.concatenate([array.reshape(-1) for array in numbers.values()]))
        saved = self.arrays[STORAGE + FRAMES]
        first = int(self.arrays[STORAGE + NEXT_FRAME]) - len(saved)
        frames = saved.take(different - first, axis=0)
        stacks = {
            name: FrameStacks(frames, np.searchsorted(different, array).astype(INDEX))
            for name, array in numbers.items()
        }
        return {**columns, **stacks}

    def _columns(self) -> dict[str, Array]:
        return without(STORAGE + COLUMNS_PREFIX, self.arrays)


def newest(array: Array, count: int) -> Array:
    return array[len(array) - count :]
