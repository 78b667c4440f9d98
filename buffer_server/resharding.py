"""Into another number of shards: which items of all old ones go to which new one.

Every new shard reads the checkpoints of all old ones and takes its part, without asking the others:
all of them find the same deal. Items go in blocks, the oldest of every source first, so that the
new shards are equal in size and each has old and new items of all sources. Sampler state goes with
its item. The ledgers of all sources go into every new shard: a repeated insert is recognised
wherever it comes to now. The limiters' counts are added up and split evenly, so the surplus of all
shards together stays what it was; so are those of each consumer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from buffer_server.consumers import SAVED
from buffer_server.contents import Inheritance
from buffer_server.frames import Column, stacked_names
from buffer_server.rate_limiter import Number
from buffer_server.saved_tables import SavedTable, newest, restored_next_key
from buffer_server.table import Table
from repertory.errors import UsageError
from repertory.types import Array

# Large, because a cut between two steps of an episode costs frames that both sides then need.
LARGEST_BLOCK = 8192
BLOCKS_PER_SHARD = 64

COUNTS = ("inserted", "sampled", "inserted_origin", "sampled_origin")


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Which one of how many shards."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise UsageError(
                f"shard {self.index}/{self.count} is refused: shards are counted from 0, so give "
                f"0/{self.count} to {self.count - 1}/{self.count}"
            )


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive items of one source."""

    source: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def deal(sizes: Sequence[int], shards: int) -> list[list[Block]]:
    """For each new shard its blocks, oldest first. Every item of every source is in one block."""
    step = min(LARGEST_BLOCK, max(1, sum(sizes) // (BLOCKS_PER_SHARD * shards)))
    blocks = [
        Block(source, start, min(start + step, size))
        for source, size in enumerate(sizes)
        for start in range(0, size, step)
    ]
    blocks.sort(key=lambda block: (block.start / sizes[block.source], block.source))
    hands: list[list[Block]] = [[] for _ in range(shards)]
    dealt = [0] * shards
    rng = random.Random(0)  # everybody's: the deal is the same everywhere, and no source in step
    for block in blocks:
        least = min(dealt)
        poorest = rng.choice([shard for shard, items in enumerate(dealt) if items == least])
        hands[poorest].append(block)
        dealt[poorest] += len(block)
    return hands


def inheritance(table: Table, sources: Sequence[SavedTable], place: ShardPlace) -> Inheritance:
    """What `table` takes over as that one of the new shards."""
    per_item = table.per_item
    selectable = [
        min([source.items, *(len(source.sampler.get(name, ())) for name in per_item)])
        for source in sources
    ]
    hand = deal(selectable, place.count)[place.index]
    longest = max(1, table.capacity)
    stacked = stacked_names(table.signature)

    def batches() -> Iterator[Mapping[str, Column]]:
        for block in hand:
            for start in range(block.start, block.stop, longest):
                places = slice(start, min(start + longest, block.stop))
                yield sources[block.source].batch(places, selectable[block.source], stacked)

    return Inheritance(
        next_key=max(restored_next_key(source.next_key, table.capacity) for source in sources),
        items=sum(len(block) for block in hand),
        batches=batches(),
        sampler=_merged_sampler(per_item, sources, selectable, hand),
        limiter=split_limiter([source.limiter for source in sources], place),
        consumers=split_consumers([source.consumers for source in sources], place),
        ledgers=[source.ledger for source in sources],
    )


def split_limiter(states: Sequence[Mapping[str, Number]], place: ShardPlace) -> dict[str, Number]:
    """One shard's part of all counts; parts of all shards add up to the whole."""
    split: dict[str, Number] = {}
    for name in states[0]:
        if name in COUNTS:
            split[name] = _part(int(sum(state[name] for state in states)), place)
        else:  # settings: where they differ, no table has zero, and the balance starts anew
            agreed = all(state[name] == states[0][name] for state in states)
            split[name] = states[0][name] if agreed else 0
    return split


def split_consumers(states: Sequence[Mapping[str, Array]], place: ShardPlace) -> dict[str, Array]:
    """The same for each consumer. A source without it counts as nothing; ratios are the first's."""
    rows: dict[int, dict[str, Number]] = {}
    for state in states:
        for row, consumer in enumerate(state["consumer"].tolist() if state else ()):
            saved = {name: state[name][row].item() for name in SAVED}
            known = rows.setdefault(consumer, {**saved, "sampled": 0, "surplus": 0.0})
            known["sampled"] += saved["sampled"]
            known["surplus"] += saved["surplus"]
            known["largest_sample"] = max(known["largest_sample"], saved["largest_sample"])
    for merged in rows.values():
        merged["sampled"] = _part(int(merged["sampled"]), place)
        merged["surplus"] /= place.count
    if not rows:
        return {}
    return {
        name: np.asarray([row[name] for row in rows.values()], dtype=dtype)
        for name, dtype in SAVED.items()
    }


def _part(total: int, place: ShardPlace) -> int:
    return total * (place.index + 1) // place.count - total * place.index // place.count


def _merged_sampler(
    per_item: frozenset[str],
    sources: Sequence[SavedTable],
    selectable: Sequence[int],
    hand: Sequence[Block],
) -> dict[str, Array]:
    """Of each item its own; of everything else the largest."""
    merged = {}
    for name in sources[0].sampler:
        saved = [source.sampler[name] for source in sources]
        if name in per_item:
            parts = [newest(array, count) for array, count in zip(saved, selectable, strict=True)]
            taken = [parts[block.source][block.start : block.stop] for block in hand]
            merged[name] = np.concatenate([saved[0][:0], *taken])
        else:
            merged[name] = np.maximum.reduce(saved)
    return merged
