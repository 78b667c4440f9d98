"""What is kept of trainings, and which are still to be made. Pure but for one file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from benchmarks.training_cases import OURS, CaseName, Part, System

Key = tuple[str, str, str, int]


@dataclass(frozen=True)
class Record:
    """One training; what was not measured is None."""

    part: Part
    case: CaseName
    system: System
    round: int  # of throughput; of the others, the seed
    job: Mapping[str, Any]
    window_seconds: float | None = None  # asked for
    steps_per_second: float | None = None
    updates_per_second: float | None = None
    updates_per_step: float | None = None
    first_update_seconds: float | None = None  # from the start of the command
    prepared_seconds: float | None = None  # likewise, until its steps were compiled beside it
    threshold_seconds: float | None = None  # likewise; None: it was not reached
    threshold_steps: int | None = None
    final_return: float | None = None
    final_steps: int | None = None
    failure: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    load: float = 0.0  # before it began
    date: str = ""

    @property
    def at(self) -> str:
        """The commit, whether files differ from it or not: results do, from the first one on."""
        return self.commit.removesuffix("+")

    @property
    def key(self) -> Key:
        return (self.part, self.case, self.system, self.round)


def median_seconds(seconds: Iterable[float | None]) -> float:
    """Who never arrives is the slowest: infinite where that is half of them."""
    return median(math.inf if one is None else one for one in seconds)


class Records:
    """Of all trainings so far, by what they are of."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._records = {record.key: record for record in records}

    @classmethod
    def read(cls, path: Path) -> Records:
        if not path.exists():
            return cls()
        return cls(Record(**one) for one in json.loads(path.read_text())["records"])

    def add(self, record: Record) -> None:
        self._records[record.key] = record

    def has(self, record: Record) -> bool:
        """Whether one of the same work, at the same commit, is there, and did not fail.

        Those that were committed with the results are of an earlier one.
        """
        found = self._records.get(record.key)
        if found is None or found.failure is not None or found.at != record.at:
            return False
        same_job = json.dumps(found.job, sort_keys=True) == json.dumps(record.job, sort_keys=True)
        return same_job and found.window_seconds == record.window_seconds

    def of(self, part: Part, case: CaseName, system: System) -> list[Record]:
        """In order of their rounds."""
        found = [
            one
            for one in self._records.values()
            if (one.part, one.case, one.system) == (part, case, system)
        ]
        return sorted(found, key=lambda record: record.round)

    def systems(self, part: Part, case: CaseName) -> list[System]:
        there = {
            one.system for one in self._records.values() if (one.part, one.case) == (part, case)
        }
        order: tuple[System, ...] = (*OURS, "sb3", "sb3_vector", "rllib")
        return [system for system in order if system in there]

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(self._records[key]) for key in sorted(self._records)]


def measured(records: Sequence[Record]) -> list[Record]:
    return [one for one in records if one.steps_per_second is not None]


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Mean and deviation, of one value itself."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"
