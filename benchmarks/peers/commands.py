"""How the benchmark speaks to the processes it measures: one line of JSON in, one line out.

Every peer is a `Side`; `answer_commands` is the main loop of its processes, `until` the stopwatch
that all of them use. Standard library only: it runs in each peer's own environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

Settings = Mapping[str, Any]  # what can be tuned on one side, in its own words


@dataclass(frozen=True)
class TableJob:
    """A table to serve."""

    name: str
    work: str
    sampler: str  # uniform or prioritized
    capacity: int
    filled: int = 0  # items that are in it from the start


@dataclass(frozen=True)
class Job:
    """Something to do for some time, through one client."""

    addresses: list[str]  # of all shards
    table: str
    work: str
    batch: int
    settings: Settings
    # Once everything is set up, the same is done for so long without being counted, and at least
    # until `begin`, on the system's monotonic clock, so that several processes begin together.
    warm_up_seconds: float
    begin: float
    seconds: float


@dataclass(frozen=True)
class Count:
    """What was done, and how long it took until the last of it was acknowledged."""

    items: int
    seconds: float


class Side(Protocol):
    """One of the systems that are compared. A process is either a server or a client."""

    def serve(self, tables: list[TableJob]) -> str:
        """The address under which the tables are served from now on."""

    def fill(self, job: Job, items: int) -> None:
        """Puts so many items into the table, each of which can be sampled alone."""

    def insert(self, job: Job) -> Count: ...

    def sample(self, job: Job) -> Count: ...

    def update(self, job: Job) -> Count:
        """New priorities for items of the table."""

    def versions(self) -> dict[str, str]: ...


def until(job: Job, step: Callable[[], int], finish: Callable[[], None] = lambda: None) -> Count:
    """Repeats `step`, which returns how many items it did; `finish` waits for what is under way."""
    warm = max(job.begin, time.monotonic() + job.warm_up_seconds)
    while time.monotonic() < warm:
        step()
    finish()
    items, begin = 0, time.monotonic()
    end = begin + job.seconds
    while time.monotonic() < end:
        items += step()
    finish()
    return Count(items, time.monotonic() - begin)


def answer_commands(side: Side) -> None:
    """Does what standard input says until it ends."""
    answer_lines(lambda command: _call(side, command))


def answer_lines(answer_to: Callable[[Mapping[str, Any]], Any]) -> None:
    """One answer for each line of standard input, until it ends; what went wrong is one too."""
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = {"result": answer_to(json.loads(line))}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")


def _call(side: Side, command: Mapping[str, Any]) -> Any:
    name = command["command"]
    if name == "serve":
        return side.serve([TableJob(**table) for table in command["tables"]])
    if name == "versions":
        return side.versions()
    job = Job(**command["job"])
    if name == "fill":
        return side.fill(job, command["items"])
    timed = {"insert": side.insert, "sample": side.sample, "update": side.update}
    return asdict(timed[name](job))
