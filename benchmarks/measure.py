"""Two systems in turns, what comes of it, and what it was measured on.

Absolute figures on a shared machine move by half within the hour. So each round measures both, one
right after the other, first this one and then that one first; what counts is the ratio of the
medians. The interval is that of the rounds: the lowest and the highest ratio in any of them.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from repertory.checkpoints import write_atomically

Measured = TypeVar("Measured")

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BUSY_LOAD = 0.5  # above it others are at work on this machine


@dataclass(frozen=True, slots=True)
class Comparison:
    """One piece of work, in items per second, by round."""

    work: str
    ours: Sequence[float]
    peer: Sequence[float]
    target: float | None = None  # what the ratio should be at least

    @property
    def ratio(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.peer)

    @property
    def interval(self) -> tuple[float, float]:
        ratios = [mine / theirs for mine, theirs in zip(self.ours, self.peer, strict=True)]
        return min(ratios), max(ratios)

    @property
    def ok(self) -> bool:
        return self.target is None or self.ratio >= self.target


def in_turns(
    ours: Callable[[], Measured], peer: Callable[[], Measured], rounds: int
) -> tuple[list[Measured], list[Measured]]:
    """One measurement of each in every round; who is first changes from round to round."""
    mine, theirs = [], []
    for number in range(rounds):
        if number % 2 == 0:
            mine.append(ours())
            theirs.append(peer())
        else:
            theirs.append(peer())
            mine.append(ours())
    return mine, theirs


def all_in_turns(
    measures: Mapping[str, Callable[[], Measured]], rounds: int
) -> dict[str, list[Measured]]:
    """The same for any number of systems: every other round goes through them backwards."""
    results: dict[str, list[Measured]] = {name: [] for name in measures}
    for number in range(rounds):
        names = list(measures)
        for name in names if number % 2 == 0 else reversed(names):
            results[name].append(measures[name]())
    return results


def write_results(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(document, indent=1) + "\n").encode())


def machine_facts() -> dict[str, object]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),  # of the last minute: what others do here
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str:
    """With a plus where files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
