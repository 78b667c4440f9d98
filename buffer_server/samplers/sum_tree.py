"""A tree of sums over non-negative masses: draws in proportion, in O(log n).

Used by `Prioritized` (Schaul et al., 2016, appendix B.2.1), whose tree is binary. NumPy's cost is
by the call, so ours is wide: whole batches of indices take one step per level, a node has 16
children, and the levels above 4096 nodes are one running sum. A million leaves cost three steps.
"""

from __future__ import annotations

import numpy as np

from repertory.errors import UsageError
from repertory.types import Array

CHILDREN = 16
_SHIFT = CHILDREN.bit_length() - 1
WIDEST_TOP = 4096
_UP_TO = np.triu(np.ones((CHILDREN, CHILDREN)))  # a row times this is its running sums


class SumTree:
    """Masses of `capacity` leaves, all zero at first."""

    def __init__(self, capacity: int, widest_top: int = WIDEST_TOP) -> None:
        self.capacity = capacity
        # From the leaves up; row k of a level holds the children of entry k of the next one.
        # Leaves beyond the capacity stay at zero.
        self._levels: list[Array] = []
        entries = capacity
        while entries > widest_top:
            entries = -(-entries // CHILDREN)
            self._levels.append(np.zeros((entries, CHILDREN), dtype=np.float64))
        self._top = np.zeros(entries, dtype=np.float64)
        self._upto: Array | None = None  # running sums of the top, until it changes
        # The levels as they are indexed, the top last; views.
        self._entries = [*(level.reshape(-1) for level in self._levels), self._top]

    @property
    def total(self) -> float:
        return float(self._running_sums()[-1])

    def get(self, indices: Array) -> Array:
        """[B] masses of these leaves."""
        masses: Array = self._entries[0].take(indices)
        return masses

    def set(self, indices: Array, masses: Array) -> None:
        """Changes the masses of these leaves; of an index named twice, the last one counts."""
        # NumPy assigns repeated indices in order, and leaves behind the last value.
        self._entries[0][indices] = masses
        self._upto = None
        nodes = indices
        # Sums are formed anew from their children, never corrected by differences: rounding errors
        # do not pile up, and a node that several indices share gets the same value several times.
        for level, above in zip(self._levels, self._entries[1:], strict=True):
            if len(nodes) < len(level):
                nodes = nodes >> _SHIFT
                above[nodes] = np.add.reduce(level.take(nodes, axis=0), axis=1)
            else:  # no more nodes than were named: as a whole, without indices
                np.add.reduce(level, axis=1, out=above[: len(level)])

    def find(self, prefixes: Array) -> Array:
        """[B] leaves i with sum(masses[:i]) <= prefix < sum(masses[:i + 1]), up to rounding.

        Never a leaf without mass: a prefix that rounding has put at or past the end of a subtree
        finds the last leaf there that has some.
        """
        upto = self._running_sums()
        if not upto[-1] > 0:
            raise UsageError("nothing can be drawn: no leaf has any mass")
        # The first running sum above the prefix: it rose there, so there is mass.
        nodes = upto.searchsorted(prefixes, side="right")
        nodes = np.minimum(nodes, upto.searchsorted(upto[-1]))
        rest = prefixes - (upto.take(nodes) - self._top.take(nodes))
        starts = np.arange(len(rest)) * CHILDREN
        for level in reversed(self._levels):
            masses = level.take(nodes, axis=0)  # [B, 16]
            upto = masses @ _UP_TO  # faster than cumsum, whose every sum waits for the one before
            # Rounding must not find a child without mass.
            above = (upto > rest[:, None]) & (masses > 0)
            places = starts + above.argmax(axis=1)
            past = ~above.take(places)
            if past.any():
                last = CHILDREN - 1 - (masses[past, ::-1] > 0).argmax(axis=1)
                places[past] = starts[past] + last
            rest -= upto.take(places) - masses.take(places)
            nodes = nodes * CHILDREN + (places - starts)
        leaves: Array = nodes
        return leaves

    def _running_sums(self) -> Array:
        if self._upto is None:
            self._upto = self._top.cumsum()
        return self._upto
