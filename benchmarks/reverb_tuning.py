"""Which settings make Reverb fastest here: tried out before it is measured.

How steps are chunked decides both what writing costs (a chunk is compressed and sent as one) and
what reading costs (a whole chunk travels for each of its steps), so inserting and sampling are each
measured with the settings that suit them best. Of two short runs the faster one counts: others on
the machine only ever make things slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.fleet import Fleet
from benchmarks.peers.commands import Settings, TableJob

ATTEMPTS = 2
ATTEMPT_SECONDS = 0.8

# In each list the first is what is taken where nothing is tried out.
READERS: dict[str, list[Settings]] = {
    "timestep": [
        {"dataset": "timestep", "workers": 2, "in_flight": 768, "per_stream": -1},
        {"dataset": "timestep", "workers": -1, "in_flight": 768, "per_stream": -1},
    ],
    "trajectory": [
        {"dataset": "trajectory", "workers": 2, "in_flight": 768, "per_stream": 768},
        {"dataset": "trajectory", "workers": -1, "in_flight": 768, "per_stream": -1},
    ],
}
WRITERS: dict[str, list[Settings]] = {
    "vector": [
        {"writer": "legacy", "chunk": 1, "under_way": 1000},
        {"writer": "legacy", "chunk": 10, "under_way": 1000},
        {"writer": "legacy", "chunk": 32, "under_way": 1000},
        {"writer": "trajectory", "chunk": 1, "under_way": 100},
        {"writer": "trajectory", "chunk": 10, "under_way": 1000},
        {"writer": "trajectory", "chunk": 32, "under_way": 1000},
    ],
    "pixels": [
        {"writer": "legacy", "chunk": 1, "under_way": 1000},
        {"writer": "legacy", "chunk": 5, "under_way": 1000},
        {"writer": "trajectory", "chunk": 5, "under_way": 100, "frames": True},
        {"writer": "trajectory", "chunk": 10, "under_way": 100, "frames": True},
    ],
}
LARGEST_READ_CHUNK = 10  # beyond, reading is only ever slower


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings of a writer and a reader, and what they reached."""

    writer: Settings
    reader: Settings
    insert: float  # items per second
    sample: float

    @property
    def settings(self) -> Settings:
        return {**self.writer, **self.reader}


@dataclass(frozen=True, slots=True)
class Tuned:
    """What Reverb does each piece of work with."""

    insert: Settings
    trajectory_insert: Settings  # the best of the recommended writer
    sample: Settings
    both: Settings  # at the same time


def untuned(work: str) -> Tuned:
    first = WRITERS[work][0]
    recommended = next(one for one in WRITERS[work] if one["writer"] == "trajectory")
    settings = {**first, **_readers(first)[0]}
    return Tuned(first, recommended, settings, settings)


def tune(fleet: Fleet, table: TableJob, say: Callable[[Trial], None]) -> Tuned:
    """Tries everything out on this table; `say` hears of each trial."""
    trials = []
    for writer in WRITERS[table.work]:
        for trial in _try_writer(fleet, table, writer):
            say(trial)
            trials.append(trial)
    recommended = [trial for trial in trials if trial.writer["writer"] == "trajectory"]
    return Tuned(
        insert=max(trials, key=lambda trial: trial.insert).writer,
        trajectory_insert=max(recommended, key=lambda trial: trial.insert).writer,
        sample=max(trials, key=lambda trial: trial.sample).settings,
        both=max(trials, key=lambda trial: math.sqrt(trial.insert * trial.sample)).settings,
    )


def _try_writer(fleet: Fleet, table: TableJob, writer: Settings) -> Iterator[Trial]:
    insert = _best(fleet, "insert", table.name, writer)
    fleet.fill(table.name, table.capacity, writer)  # so that nothing else is in it
    for reader in _readers(writer):
        sample = _best(fleet, "sample", table.name, {**writer, **reader})
        yield Trial(writer, reader, insert, sample)


def _readers(writer: Settings) -> list[Settings]:
    """Those that can read what this one wrote."""
    if writer["chunk"] > LARGEST_READ_CHUNK:
        return READERS["timestep"][:1]
    if writer["writer"] == "legacy":
        return READERS["timestep"]
    if writer.get("frames", False):
        return READERS["trajectory"]
    return [*READERS["timestep"][:1], *READERS["trajectory"]]


def _best(fleet: Fleet, what: str, table: str, settings: Settings) -> float:
    return max(fleet.rate(what, table, ATTEMPT_SECONDS, settings) for _ in range(ATTEMPTS))
