"""A ring of single frames, each stored once however many stacks show it.

Every frame gets a number, that of its arrival; it lies in slot `number % capacity` until the frame
`number + capacity` overwrites it. Numbers are never used twice. `Storage` keeps for each stack the
numbers of its frames, and drops the items whose frames are overwritten.

A frame that comes again is found by what it holds. How it comes (the next step of the same episode
in another message, between those of a hundred other copies) makes no difference, as long as it is
among the `reach` newest: one that comes again and again would else be kept at its first number, and
take all items that show it along when that is overwritten.
"""

from __future__ import annotations

import numpy as np

from buffer_server.frames import as_words, equal_rows, hash_words
from buffer_server.ring import ring_slices
from repertory.errors import UsageError
from repertory.types import Array, ColumnSpec

BUCKETS_PER_FRAME = 16  # within reach: about one frame in thirty is then forgotten too early


def pool_nbytes(frame: ColumnSpec, capacity: int, reach: int) -> int:
    """What `FramePool` takes."""
    return capacity * frame.nbytes + 8 * (reach + _bucket_count(reach))


class FramePool:
    """The newest `capacity` frames."""

    def __init__(self, frame: ColumnSpec, capacity: int, reach: int) -> None:
        if not 1 <= reach <= capacity:
            raise UsageError(f"a reach of {reach} frames in a pool of {capacity}: give 1 to that")
        self.frame = frame
        self.capacity = capacity
        self.reach = reach
        # Zeros, not empty: the system gives such pages only when they are first written.
        self._frames = np.zeros((capacity, *frame.shape), frame.dtype)
        self._words = as_words(self._frames)  # a view
        self._hashes = np.zeros(reach, dtype=np.uint64)  # of frame n at n % reach
        # By the upper bits of its hash, the newest frame that fell there: one look finds a frame.
        # Where two fall together the older is forgotten, and stored again should it come again.
        buckets = _bucket_count(reach)
        self._newest = np.full(buckets, -1, dtype=np.int64)
        self._shift = np.uint64(64 - (buckets.bit_length() - 1))
        self._first_number = 0
        self._next_number = 0

    @property
    def next_number(self) -> int:
        return self._next_number

    @property
    def first_number(self) -> int:
        """Frames before it are gone."""
        return self._first_number

    @property
    def nbytes(self) -> int:
        return pool_nbytes(self.frame, self.capacity, self.reach)

    def check(self, count: int) -> None:
        """Raises unless so many frames can be added at once."""
        if count > self.capacity:
            raise UsageError(
                f"a batch of {count} frames does not fit into a pool of {self.capacity}: "
                "insert smaller batches or raise the capacity"
            )

    def add(self, frames: Array) -> Array:
        """[F] int64 numbers of these frames [F, ...].

        They are stored over the oldest ones, but for those that are found within reach.
        """
        self.check(len(frames))
        words = as_words(np.ascontiguousarray(frames))
        hashes = hash_words(words)
        numbers = self._find(words, hashes)
        new = np.flatnonzero(numbers < 0)
        first = self._next_number
        numbers[new] = np.arange(first, first + len(new))
        self._next_number += len(new)
        self._first_number = max(self._first_number, self._next_number - self.capacity)
        done = 0
        for slots in ring_slices(first, self._next_number, self.capacity):
            upto = done + slots.stop - slots.start
            # With the mode "raise" NumPy would copy twice, to leave `out` alone if it did.
            words.take(new[done:upto], axis=0, out=self._words[slots], mode="clip")
            done = upto
        self._remember(numbers[new], hashes[new])
        return numbers

    def take(self, numbers: Array) -> Array:
        """Copies of these frames."""
        taken: Array = self._frames.take(numbers % self.capacity, axis=0)
        return taken

    def read(self, first: int, stop: int) -> Array:
        """Copies of the frames from `first` up to, without, `stop`."""
        if not self.first_number <= first <= stop <= self._next_number:
            raise UsageError(
                f"the frames from {first} up to {stop} were asked for, but only those from "
                f"{self.first_number} up to {self._next_number} are in the ring"
            )
        slices = ring_slices(first, stop, self.capacity)
        return np.concatenate([self._frames[slots] for slots in slices])

    def load(self, frames: Array, next_number: int) -> None:
        """Takes the place of what is here: the newest of these frames, up to `next_number`."""
        kept = min(len(frames), self.capacity)
        frames = frames[len(frames) - kept :]
        self._first_number, self._next_number = next_number - kept, next_number
        done = 0
        for slots in ring_slices(next_number - kept, next_number, self.capacity):
            upto = done + slots.stop - slots.start
            self._frames[slots] = frames[done:upto]
            done = upto
        self._newest.fill(-1)
        known = min(kept, self.reach)
        self._remember(
            np.arange(next_number - known, next_number),
            hash_words(as_words(np.ascontiguousarray(frames[kept - known :]))),
        )

    def _find(self, words: Array, hashes: Array) -> Array:
        """[F]: the number under which each is here already, or -1."""
        numbers: Array = self._newest[hashes >> self._shift]
        # What these frames themselves may overwrite is of no use.
        oldest = self._next_number - min(self.reach, self.capacity - len(words))
        known = (numbers >= max(self._first_number, oldest)) & (
            self._hashes[numbers % self.reach] == hashes
        )
        rows = np.flatnonzero(known)
        known[rows] = equal_rows(words, rows, self._words, numbers[rows] % self.capacity)
        numbers[~known] = -1
        return numbers

    def _remember(self, numbers: Array, hashes: Array) -> None:
        newest = slice(max(0, len(numbers) - self.reach), None)
        self._hashes[numbers[newest] % self.reach] = hashes[newest]
        self._newest[hashes >> self._shift] = numbers


def _bucket_count(reach: int) -> int:
    """A power of two."""
    return 1 << (BUCKETS_PER_FRAME * reach - 1).bit_length()
