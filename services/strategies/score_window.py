"""The newest scores of all members, in order, as columns. Used by `Windowed`.

Sums run through the scores from the oldest to the newest, always in the same order, so that a
window that was saved and read again gives the same numbers to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repertory.types import Array


@dataclass(frozen=True, slots=True)
class Moments:
    """Over a window that is not empty."""

    counts: Array  # [K] weights of each member's scores
    means: Array  # [K] nan where there are none
    deviations: Array  # [K] around the member's mean; nan likewise
    deviation: float  # of all scores around the mean of all
    low: float
    high: float


class ScoreWindow:
    def __init__(self, members: int, size: int) -> None:
        self._members = members
        self._size = size
        # The window slides through twice its size, and moves to the front when it is at the end.
        self._who = np.zeros(2 * size, dtype=np.int64)
        self._values = np.zeros(2 * size, dtype=np.float64)
        self._end = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, member: int, score: float) -> None:
        if self._end == 2 * self._size:
            kept = slice(self._end - self._length, self._end)
            self._who[: self._length] = self._who[kept]
            self._values[: self._length] = self._values[kept]
            self._end = self._length
        self._who[self._end] = member
        self._values[self._end] = score
        self._end += 1
        self._length = min(self._length + 1, self._size)

    def clear(self) -> None:
        self._end = self._length = 0

    def rows(self) -> list[tuple[int, float]]:
        """Member and score, oldest first."""
        who, values = self._columns()
        return list(zip(who.tolist(), values.tolist(), strict=True))

    def load(self, rows: Sequence[tuple[int, float]]) -> None:
        self.clear()
        for member, score in rows:
            self.append(member, score)

    def moments(self, discount: float) -> Moments:
        who, values = self._columns()
        if discount == 1:
            weights = np.ones(self._length)
        else:
            weights = discount ** np.arange(self._length - 1, -1, -1, dtype=np.float64)
        counts = self._sums(who, weights)
        with np.errstate(invalid="ignore"):  # 0 / 0 for those without a score
            means = self._sums(who, weights * values) / counts
            squares = self._sums(who, weights * np.square(values - means[who]))
            deviations = np.sqrt(squares / counts)
        seen = counts > 0
        total = counts.sum()
        mean = (counts[seen] * means[seen]).sum() / total
        # Squares of differences, not differences of squares: returns of -1000 would eat digits.
        between = (counts[seen] * np.square(means[seen] - mean)).sum()
        return Moments(
            counts=counts,
            means=means,
            deviations=deviations,
            deviation=float(np.sqrt((squares.sum() + between) / total)),
            low=float(values.min()),
            high=float(values.max()),
        )

    def _columns(self) -> tuple[Array, Array]:
        window = slice(self._end - self._length, self._end)
        return self._who[window], self._values[window]

    def _sums(self, who: Array, values: Array) -> Array:
        """[K] by member; `bincount` adds one after the other."""
        return np.bincount(who, weights=values, minlength=self._members)
