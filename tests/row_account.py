"""Which transitions a run has made, which are in its replay, and what became of the others.

For runs on `numbered_cartpole`, whose rows can be told apart, with n_step = 1: whatever is missing
and was not overwritten by newer rows was lost. What may be lost is known:

- with a killed worker, what it had gathered and what was under way to a shard;
- with a killed shard, what it had acknowledged since the checkpoint that it came back from, and
  what was under way;
- at the end of the run, what the limiter did not let pass: each worker says how much that was.

What was in a checkpoint is never lost, and nothing is ever there twice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numbered_cartpole import COUNT_BITS, CopyRecord, read_numbers

from repertory.checkpoints import CheckpointStore
from repertory.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Rows:
    """Of one or more tables."""

    number: np.ndarray  # [N] of the observation that the transition begins with
    next_number: np.ndarray  # [N]
    policy_version: np.ndarray  # [N]
    overwritten: int = 0  # that were there, until a full table took newer ones

    @staticmethod
    def join(parts: Collection[Rows]) -> Rows:
        return Rows(
            np.concatenate([part.number for part in parts]),
            np.concatenate([part.next_number for part in parts]),
            np.concatenate([part.policy_version for part in parts]),
            sum(part.overwritten for part in parts),
        )


@dataclass(frozen=True, slots=True)
class ShardKill:
    """A shard just before it was killed, and what was on its disk just after."""

    size: int
    saved: frozenset[int]  # numbers

    @property
    def unsaved(self) -> int:
        return max(0, self.size - len(self.saved))


@dataclass(frozen=True, slots=True)
class Account:
    made: int  # transitions, by all workers
    present: int
    missing: int
    overwritten: int
    not_sent: int  # when the run ended, as workers said
    lost_with_workers: int  # the newest rows of workers that were killed
    lost_with_shards: int  # all others
    worker_bound: int
    shard_bound: int
    twice: int
    torn: int  # rows that do not lead from a number to the next
    foreign: int  # rows that nobody has made
    saved_and_gone: int  # that were in a checkpoint a shard came back from
    versions_went_back: int  # of one copy, from one row to the next
    reported_lost: int  # by workers, of shards

    def troubles(self) -> list[str]:
        """What must not be, in words; nothing if all is well."""
        never = ("twice", "torn", "foreign", "saved_and_gone", "versions_went_back")
        found = [f"{name} = {getattr(self, name)}" for name in never if getattr(self, name)]
        for kind in ("worker", "shard"):
            lost, bound = getattr(self, f"lost_with_{kind}s"), getattr(self, f"{kind}_bound")
            if lost > bound:
                found.append(f"{lost} rows were lost with {kind}s, at most {bound} may be")
        if self.reported_lost > self.missing:
            found.append(f"{self.reported_lost} rows were reported lost, {self.missing} are")
        return found

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def saved_rows(shard: Path) -> Rows:
    """Of a shard's newest whole checkpoint; none, if there is none yet."""
    try:
        table = CheckpointStore(shard).newest_valid().load("table_0")
    except CheckpointError:
        nothing = np.zeros(0, np.int64)
        return Rows(nothing, nothing, nothing)
    column = {name.removeprefix("storage/columns/"): array for name, array in table.items()}
    return Rows(
        read_numbers(column["observation"]),
        read_numbers(column["next_observation"]),
        np.asarray(column["policy_version"]),
        int(table["limiter/inserted"]) - len(column["policy_version"]),
    )


def settle(
    copies: Collection[CopyRecord],
    present: Rows,
    *,
    killed_workers: Collection[int],
    shard_kills: Collection[ShardKill],
    rows_under_way: int,
    rows_with_worker: int,
    not_sent: int,
    reported_lost: int,
) -> Account:
    """`killed_workers` are process ids; `rows_under_way` is the most that all workers together
    have sent to one shard unacknowledged, `rows_with_worker` the most that dies with one of them.
    """
    made = {number for copy in copies for number in copy.transitions}
    newest = {
        number
        for copy in copies
        if copy.process_id in killed_workers
        for number in copy.transitions[-rows_with_worker:]
    }
    there = set(present.number.tolist())
    missing = made - there
    durable = set().union(*(kill.saved for kill in shard_kills)) if shard_kills else set()
    return Account(
        made=len(made),
        present=len(present.number),
        missing=len(missing),
        overwritten=present.overwritten,
        lost_with_workers=len(missing & newest),
        not_sent=not_sent,
        lost_with_shards=max(0, len(missing - newest) - present.overwritten - not_sent),
        worker_bound=rows_with_worker * len(killed_workers),
        shard_bound=sum(kill.unsaved + rows_under_way for kill in shard_kills),
        twice=len(present.number) - len(there),
        torn=int((present.next_number != present.number + 1).sum()),
        foreign=len(there - made),
        saved_and_gone=max(0, len(durable - there) - present.overwritten),
        versions_went_back=_steps_back(present),
        reported_lost=reported_lost,
    )


def _steps_back(rows: Rows) -> int:
    order = np.argsort(rows.number)
    copy, version = rows.number[order] >> COUNT_BITS, rows.policy_version[order]
    same = copy[1:] == copy[:-1]
    return int((same & (version[1:] < version[:-1])).sum())
