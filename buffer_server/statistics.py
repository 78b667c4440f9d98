"""What a table says about itself: sizes, counts, the limiter, and who waits since when and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from buffer_server.callers import Blocked


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """One table at one moment."""

    size: int  # items
    capacity: int
    size_nbytes: int
    capacity_nbytes: int
    inserted: int  # items, ever
    sampled: int
    duplicate_inserts: int  # inserts that were acknowledged and not done twice
    min_size: int
    samples_per_insert: float | None
    error_buffer: float | None
    surplus: float
    blocked: tuple[Blocked, ...]  # longest waiting first


@dataclass(frozen=True, slots=True)
class ShardStatistics:
    """One shard at one moment."""

    tables: Mapping[str, TableStatistics]
    uptime_seconds: float
    open_streams: int
    running_requests: int  # those that wait included
    draining: bool
