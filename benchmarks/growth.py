"""How our own cost grows: with the items of a table, and with the number of shards.

Sampling uniformly should cost the same whatever the table holds; by priority it may grow with the
logarithm. More shards help where there are cores for them: on two, which writer and reader need
already, they can only show what sharding costs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.fleet import AS_LEARNERS, BATCH, NO_SETTINGS, Fleet, Launch
from benchmarks.peers.commands import TableJob

SAMPLERS = ("uniform", "prioritized")
FLAT = 2.0  # the slowest table over the fastest, at most
SHARD_ITEMS = 100_000


@dataclass(frozen=True, slots=True)
class Growth:
    """Microseconds for one batch of samples, by items of the table and by round."""

    sampler: str
    microseconds: dict[int, list[float]]
    target: float | None  # what the ratio may be at most

    @property
    def medians(self) -> dict[int, float]:
        return {items: statistics.median(times) for items, times in self.microseconds.items()}

    @property
    def ratio(self) -> float:
        """The slowest table over the fastest."""
        return max(self.medians.values()) / min(self.medians.values())

    @property
    def ok(self) -> bool:
        return self.target is None or self.ratio <= self.target


@dataclass(frozen=True, slots=True)
class ShardRates:
    """Items per second of one client that inserts or samples, by round."""

    shards: int
    insert: Sequence[float]
    sample: Sequence[float]  # a message for each batch
    as_learners: Sequence[float]  # for several batches


def measure_growth(
    launch: Launch, sizes: Sequence[int], rounds: int, seconds: float
) -> list[Growth]:
    tables = [
        TableJob(f"{sampler}-{items}", "vector", sampler, capacity=items, filled=items)
        for sampler in SAMPLERS
        for items in sizes
    ]
    times: dict[str, dict[int, list[float]]] = {
        sampler: {items: [] for items in sizes} for sampler in SAMPLERS
    }
    with Fleet(launch, tables) as fleet:
        for _ in range(rounds):
            for table in tables:
                rate = fleet.rate("sample", table.name, seconds)
                times[table.sampler][table.capacity].append(1e6 * BATCH / rate)
    return [
        Growth(sampler, times[sampler], FLAT if sampler == "uniform" else None)
        for sampler in SAMPLERS
    ]


def measure_shards(
    launch: Launch, counts: Sequence[int], rounds: int, seconds: float
) -> list[ShardRates]:
    table = TableJob("uniform", "vector", "uniform", capacity=SHARD_ITEMS, filled=SHARD_ITEMS)
    work = (("insert", NO_SETTINGS), ("sample", NO_SETTINGS), ("sample", AS_LEARNERS))
    rates: dict[int, list[list[float]]] = {count: [[] for _ in work] for count in counts}
    with Fleet(launch, [table], shards=max(counts)) as fleet:
        for _ in range(rounds):
            for count in counts:
                for (what, settings), found in zip(work, rates[count], strict=True):
                    found.append(fleet.rate(what, table.name, seconds, settings, shards=count))
    return [ShardRates(count, *rates[count]) for count in counts]
