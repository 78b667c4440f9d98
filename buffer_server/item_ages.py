"""How old the items of a ring are, without a time for each: a few marks of when which key came."""

from __future__ import annotations

from bisect import bisect_right

MOST_MARKS = 512


class ItemAges:
    """Marks of rising keys and times, about equally far apart.

    The age of an item is that of the last mark at or before it: at most one mark too old. Where
    there are too many marks, every second one is dropped, and they come half as often from then on.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._keys: list[int] = []
        self._seconds: list[float] = []
        self._stride = 1
        self._newest: float | None = None

    def note(self, first_key: int, now: float, *, live_from: int) -> None:
        """Items from `first_key` on came now; those before `live_from` are gone."""
        self._newest = now
        if self._keys and first_key < self._keys[-1] + self._stride:
            return
        self._keys.append(first_key)
        self._seconds.append(now)
        if len(self._keys) > MOST_MARKS:
            self._forget_before(live_from)
        if len(self._keys) > MOST_MARKS:
            del self._keys[1::2], self._seconds[1::2]
            self._stride *= 2

    def newest(self, now: float) -> float | None:
        return None if self._newest is None else now - self._newest

    def oldest(self, first_key: int, now: float) -> float | None:
        """Of the item with this key, before which there is none."""
        self._forget_before(first_key)
        return now - self._seconds[0] if self._seconds else None

    def _forget_before(self, first_key: int) -> None:
        dead = max(0, bisect_right(self._keys, first_key) - 1)
        del self._keys[:dead], self._seconds[:dead]
