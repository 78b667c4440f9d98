"""The steps of every copy as columns [T, B, ...], written in place as they come.

A stretch of steps goes to an assembler at once: what a step costs besides acting is then one short
write for each column, and nothing is joined afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from repertory.types import Array

MOST_STEPS = 4096  # of one stretch
MOST_BYTES = 2**25  # pixels are handed on sooner


class Recording:
    """Room grows as it is needed; the next stretch begins with as much as the last one took."""

    def __init__(self) -> None:
        self._columns: dict[str, Array] = {}
        self._steps = 0
        self._room = 1
        self._most = MOST_STEPS

    @property
    def full(self) -> bool:
        return self._steps == self._most

    def add(self, step: Mapping[str, Array]) -> None:
        """One step of every copy: columns [B, ...], each time the same ones."""
        if not self._columns:
            bytes_per_step = sum(column.nbytes for column in step.values())
            self._most = max(1, min(MOST_STEPS, MOST_BYTES // bytes_per_step))
            self._room = min(self._room, self._most)
            self._columns = {
                name: np.empty((self._room, *column.shape), column.dtype)
                for name, column in step.items()
            }
        elif self._steps == self._room:
            self._grow()
        number = self._steps
        for name, column in step.items():
            self._columns[name][number] = column
        self._steps = number + 1

    def take(self) -> dict[str, Array]:
        """All that was added since the last time; the arrays are the caller's from now on."""
        steps = self._steps
        taken = self._columns
        if steps < self._room:
            taken = {name: column[:steps] for name, column in taken.items()}
        self._columns, self._steps, self._room = {}, 0, max(1, steps)
        return taken

    def _grow(self) -> None:
        self._room = min(2 * self._room, self._most)
        for name, column in self._columns.items():
            larger = np.empty((self._room, *column.shape[1:]), column.dtype)
            larger[: self._steps] = column
            self._columns[name] = larger
