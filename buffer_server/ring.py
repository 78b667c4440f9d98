"""Where the consecutive numbers of items or frames lie in a ring that is filled in a circle."""

from __future__ import annotations


def ring_slices(first: int, stop: int, capacity: int) -> list[slice]:
    """The slots of the numbers from `first` up to, without, `stop`: one or two slices, in order."""
    count, begin = stop - first, first % capacity
    if begin + count <= capacity:
        return [slice(begin, begin + count)]
    return [slice(begin, capacity), slice(0, begin + count - capacity)]
