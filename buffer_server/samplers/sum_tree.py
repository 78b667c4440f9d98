"""A complete binary tree of sums over non-negative masses: draws in proportion, in O(log n).

Used by `Prioritized` (Schaul et al., 2016, appendix B.2.1). Node k has the children 2k and 2k + 1,
node 1 is the root; whole batches of indices climb or descend one level per step, all at once.
"""

from __future__ import annotations

import numpy as np

from repertory.errors import UsageError
from repertory.types import Array


class SumTree:
    """Masses of `capacity` leaves, all zero at first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._depth = (capacity - 1).bit_length()
        self._width = 1 << self._depth  # leaves, those beyond the capacity stay at zero
        self._sums = np.zeros(2 * self._width, dtype=np.float64)
        self._pairs = self._sums.reshape(self._width, 2)  # a view: both children of a node
        self._leaves = self._sums[self._width : self._width + capacity]  # a view

    @property
    def total(self) -> float:
        return float(self._sums[1])

    def get(self, indices: Array) -> Array:
        """[B] masses of these leaves."""
        masses: Array = self._leaves.take(indices)
        return masses

    def set(self, indices: Array, masses: Array) -> None:
        """Changes the masses of these leaves; of an index named twice, the last one counts."""
        # NumPy assigns repeated indices in order, and leaves behind the last value.
        self._leaves[indices] = masses
        width = self._width
        nodes = (indices + width) >> 1
        # Sums are formed anew from their children, never corrected by differences: rounding errors
        # do not pile up, and a node that several indices share gets the same value several times.
        while len(nodes) < (width := width >> 1):
            pairs = self._pairs.take(nodes, axis=0)
            self._sums[nodes] = pairs[:, 0] + pairs[:, 1]
            nodes >>= 1
        # A level with no more nodes than were named is summed as a whole, without indices.
        while width:
            pairs = self._pairs[width : 2 * width]
            np.add(pairs[:, 0], pairs[:, 1], out=self._sums[width : 2 * width])
            width >>= 1

    def find(self, prefixes: Array) -> Array:
        """[B] leaves i with sum(masses[:i]) <= prefix < sum(masses[:i + 1]), up to rounding.

        Never a leaf without mass: a prefix that rounding has put at or past the end of a subtree
        finds the last leaf there that has some.
        """
        if not self.total > 0:
            raise UsageError("nothing can be drawn: no leaf has any mass")
        rest = np.array(prefixes, dtype=np.float64)
        nodes = np.ones(len(rest), dtype=np.int64)
        for _ in range(self._depth):
            pairs = self._pairs.take(nodes, axis=0)
            left = pairs[:, 0]
            go_right = (rest >= left) & (pairs[:, 1] > 0)
            rest -= left * go_right
            nodes = 2 * nodes + go_right
        return nodes - self._width
