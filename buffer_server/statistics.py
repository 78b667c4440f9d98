"""What a table and a shard say about themselves: sizes, counts, speeds, and who waits and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from buffer_server.callers import Blocked


@dataclass(frozen=True, slots=True)
class PolicyShare:
    """What one policy has in a table."""

    policy_id: int
    items: int
    newest_version: int


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """One of those who share a table, each with a ratio of its own."""

    consumer: int  # its place in the portfolio
    samples_per_insert: float
    sampled: int  # items, ever
    surplus: float  # samples that it owes; negative: it is ahead
    caller: str  # who sampled for it last; empty: nobody yet
    waiting_samples: int  # of it, that its ratio or `min_size` holds now
    held_inserts: int  # of anybody, that wait for it now


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """One table at one moment."""

    size: int  # items
    capacity: int
    size_nbytes: int
    capacity_nbytes: int
    inserted: int  # items, ever
    sampled: int
    evicted: int  # inserted, and no longer here
    duplicate_inserts: int  # inserts that were acknowledged and not done twice
    min_size: int
    samples_per_insert: float | None
    error_buffer: float | None
    surplus: float  # of several consumers the one that is furthest behind
    insert_wait_seconds: float  # of all callers together, since the start
    sample_wait_seconds: float
    newest_age_seconds: float | None  # None: there are no items
    oldest_age_seconds: float | None  # since a restart at most
    policies: tuple[PolicyShare, ...]  # empty where nobody knows whose items they are
    blocked: tuple[Blocked, ...]  # longest waiting first
    consumer_buffer_items: int | None = None
    consumers: tuple[ConsumerStatistics, ...] = ()  # empty: there is one count for all callers


@dataclass(frozen=True, slots=True)
class RequestStatistics:
    """How long requests of one kind took lately, without the wait for a limiter."""

    count: int  # ever
    per_second: float
    p50_seconds: float
    p99_seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    """The newest checkpoint of a shard."""

    path: str  # empty: there is none yet
    age_seconds: float | None  # since it was begun
    duration_seconds: float
    items: int
    nbytes: int
    failures: int  # since the start


@dataclass(frozen=True, slots=True)
class ShardStatistics:
    """One shard at one moment."""

    tables: Mapping[str, TableStatistics]
    requests: Mapping[str, RequestStatistics]  # by operation: insert, sample, update
    refused: Mapping[int, int]  # by gRPC status code: how many requests, since the start
    checkpoint: CheckpointStatistics | None  # None: it has no directory for them
    uptime_seconds: float
    clients: int  # callers that were heard of within the last minute
    open_streams: int
    running_requests: int  # those that wait included
    inflight_nbytes: int  # of messages under way
    draining: bool
