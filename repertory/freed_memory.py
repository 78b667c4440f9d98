"""Keeps freed memory in the process: for those that make and drop large batches all the time.

glibc gives memory back to the system as soon as a few megabytes are free, and the next batch pays
for every page again: of a sample of stacked pixels that is most of the time. Called once by what a
process starts with (a shard, a run), never by a library, since it holds for the whole process.
"""

from __future__ import annotations

import ctypes

# From malloc.h: how much may lie free at the end of the heap, and from where on a block is mapped
# by itself, and unmapped when freed. 32 MiB is the most that every glibc takes.
_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES = -1, 2**28
_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES = -3, 2**25


def keep_freed_memory() -> bool:
    """Whether the C library could be told; others than glibc have their own ways."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    trim = mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
    return bool(trim and mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES))
