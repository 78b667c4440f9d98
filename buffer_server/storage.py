"""A ring of items in preallocated NumPy columns: where a table keeps its experience.

Every item gets a key, the number of its insertion; it lies in slot `key % capacity` until the item
`key + capacity` overwrites it. Keys are never used twice, so a key that a learner still holds
either names the same item or none. What an item is (a transition, a segment of T steps) is the
signature's business. The caller, `buffer_server.table`, holds the lock.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from buffer_server.frames import Column, stacked
from repertory.errors import CheckpointError, UsageError
from repertory.types import COLUMN_NAMES, Array, Signature

COLUMNS_PREFIX = "columns/"
NEXT_KEY = "next_key"


class Storage:
    """Columns of `capacity` items, filled in a circle."""

    def __init__(self, signature: Signature, capacity: int) -> None:
        if capacity < 1:
            raise UsageError(f"a capacity of {capacity} holds nothing: give at least 1 item")
        missing = [name for name in COLUMN_NAMES if name not in signature]
        if missing:
            raise UsageError(f"the signature lacks {', '.join(missing)}: every item has them")
        self.capacity = capacity
        self._expected = {
            name: (np.dtype(spec.dtype), tuple(spec.shape)) for name, spec in signature.items()
        }
        # Zeros, not empty: the system gives such pages only when they are first written.
        self._columns: dict[str, Array] = {
            name: np.zeros((capacity, *shape), dtype)
            for name, (dtype, shape) in self._expected.items()
        }
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
        """Bytes of all columns when the ring is full."""
        return sum(column.nbytes for column in self._columns.values())

    def check(self, columns: Mapping[str, Column]) -> int:
        """How many items these are; raises unless `append` would take them."""
        return self._check_append({name: stacked(column) for name, column in columns.items()})

    def append(self, columns: Mapping[str, Column]) -> Array:
        """Writes the items over the oldest ones; returns their keys [B]. Refuses before writing."""
        arrays = {name: stacked(column) for name, column in columns.items()}
        count = self._check_append(arrays)
        first, stop = self.next_key, self.next_key + count
        self._write(arrays, first, stop)
        self._live = range(max(self.first_key, stop - self.capacity), stop)
        return np.arange(first, stop, dtype=np.int64)

    def live(self, keys: Array) -> Array:
        """[B] bool: which keys name an item that was inserted and not yet overwritten."""
        mask: Array = (keys >= self.first_key) & (keys < self.next_key)
        return mask

    def gather(self, keys: Array) -> dict[str, Column]:
        """Copies of the items with these keys, in this order."""
        if not self.live(keys).all():
            raise UsageError(
                f"keys from {keys.min()} to {keys.max()} were asked for, but only those from "
                f"{self.first_key} up to, without, {self.next_key} are in the ring"
            )
        slots = keys % self.capacity
        return {name: column.take(slots, axis=0) for name, column in self._columns.items()}

    def arrays(self) -> dict[str, Array]:
        """Copies of the filled part, oldest item first, and the counter of keys."""
        slots = self._slots(self.first_key, self.next_key)
        arrays: dict[str, Array] = {
            COLUMNS_PREFIX + name: np.concatenate([column[part] for part in slots])
            for name, column in self._columns.items()
        }
        arrays[NEXT_KEY] = np.asarray(self.next_key, dtype=np.int64)
        return arrays

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Takes the place of what is here; where the ring is smaller, only the newest items do."""
        if NEXT_KEY not in arrays:
            raise CheckpointError(f"the saved storage lacks {NEXT_KEY}: the checkpoint is damaged")
        columns = {
            name.removeprefix(COLUMNS_PREFIX): column
            for name, column in arrays.items()
            if name.startswith(COLUMNS_PREFIX)
        }
        saved = self._check_columns(columns)
        next_key = int(arrays[NEXT_KEY])
        if saved > next_key:
            raise CheckpointError(
                f"{saved} items were saved, but only {next_key} ever inserted: "
                "the checkpoint is damaged"
            )
        kept = min(saved, self.capacity)
        newest = {name: column[saved - kept :] for name, column in columns.items()}
        self._write(newest, next_key - kept, next_key)
        self._live = range(next_key - kept, next_key)

    def _slots(self, first: int, stop: int) -> list[slice]:
        """Where the keys from `first` up to `stop` lie: at most two slices, in the keys' order."""
        count, begin = stop - first, first % self.capacity
        if begin + count <= self.capacity:
            return [slice(begin, begin + count)]
        return [slice(begin, self.capacity), slice(0, begin + count - self.capacity)]

    def _write(self, columns: Mapping[str, Array], first: int, stop: int) -> None:
        done = 0
        for slots in self._slots(first, stop):
            upto = done + slots.stop - slots.start
            for name, column in self._columns.items():
                column[slots] = columns[name][done:upto]
            done = upto

    def _check_append(self, columns: Mapping[str, Array]) -> int:
        count = self._check_columns(columns)
        if count > self.capacity:
            raise UsageError(
                f"a batch of {count} items does not fit into a capacity of {self.capacity}: "
                "insert smaller batches or raise the capacity"
            )
        return count

    def _check_columns(self, columns: Mapping[str, Array]) -> int:
        """The number of items, if the columns are those of the signature."""
        if columns.keys() != self._expected.keys():
            missing = sorted(self._expected.keys() - columns.keys())
            unknown = sorted(columns.keys() - self._expected.keys())
            raise UsageError(
                "the batch's columns are not the signature's: "
                f"missing {', '.join(missing) or 'none'}, unknown {', '.join(unknown) or 'none'}"
            )
        count = len(columns["reward"])
        for name, (dtype, shape) in self._expected.items():
            column = columns[name]
            # Nothing is cast: a column that comes as float64 is a mistake where it was made.
            if column.dtype != dtype or column.shape != (count, *shape):
                raise UsageError(
                    f"column {name} came as {column.dtype} {list(column.shape)}, "
                    f"but {dtype} {[count, *shape]} was expected"
                )
        return count
