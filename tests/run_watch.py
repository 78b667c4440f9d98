"""Looks at a distributed run all the time, from outside, and notes what must never happen.

A thread reads what every process says of itself: each life of each process, when it did its first
work, which versions of the weights it spoke of. A life is one start of one process, (name,
incarnation). Where the control server is away nothing is seen; nothing is concluded from that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repertory.closing import Closing
from repertory.control import Control, ControlUnavailable, Entry, Member
from repertory.errors import UsageError
from services.run_control import control_of

LOOK_SECONDS = 0.05

Life = tuple[str, int]


@dataclass(slots=True)
class Seen:
    """What was seen of one life. Times are seconds since the epoch."""

    role: str
    process_id: int
    first: Mapping[str, Any]  # facts, of the first time it said more than that it is there
    facts: Mapping[str, Any]  # as last heard
    heard_at: float
    work_at: float | None = None  # of its first sign of work


@dataclass(slots=True)
class Versions:
    """Of everything that is said under one name: never goes back, whoever says it."""

    highest: int = -1
    said: int = 0
    went_back: list[tuple[int, int]] = field(default_factory=list)

    def hear(self, version: int) -> None:
        self.said += 1
        if version < self.highest:
            self.went_back.append((self.highest, version))
        self.highest = max(self.highest, version)


class RunWatch(Closing):
    """Looks from the moment it is made. What it has seen may be read from any thread."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._control: Control | None = None
        self._metrics_read = "0"
        self._stopping = threading.Event()
        self.lives: dict[Life, Seen] = {}
        self.versions: dict[str, Versions] = {}  # by what says so, and how
        self.env_steps = 0
        self.counters: dict[str, int] = {}
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="run-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=10.0)

    def newest(self, name: str) -> tuple[Life, Seen] | None:
        """Its latest life."""
        found = [(life, seen) for life, seen in list(self.lives.items()) if life[0] == name]
        return max(found, key=lambda one: one[0]) if found else None

    def working(self, name: str) -> tuple[Life, Seen] | None:
        """Its latest life, if that has done any work."""
        found = self.newest(name)
        return found if found is not None and found[1].work_at is not None else None

    def went_back(self) -> dict[str, list[tuple[int, int]]]:
        return {name: one.went_back for name, one in self.versions.items() if one.went_back}

    def _run(self) -> None:
        try:
            while not self._stopping.wait(LOOK_SECONDS):
                self._look()
        except BaseException as error:
            self.failure = error

    def _look(self) -> None:
        try:
            if self._control is None:
                self._control = control_of(self._run_dir)
            self.counters = self._control.counters()
            self.env_steps = max(self.env_steps, self.counters.get("env_steps", 0))
            for name, member in self._control.members().items():
                self._see(name, member)
            for entry in self._control.read("metrics", after=self._metrics_read):
                self._metrics_read = entry.id
                self._hear(entry)
        except (ControlUnavailable, UsageError):
            return

    def _see(self, name: str, member: Member) -> None:
        life = (name, member.incarnation)
        facts = member.facts
        seen = self.lives.get(life)
        if seen is None:
            seen = Seen(member.role, member.process_id, {}, facts, member.at)
            self.lives[life] = seen
        if not seen.first and len(facts) > 2:
            seen.first = facts
        seen.facts, seen.heard_at = facts, member.at
        if seen.work_at is None and works(member.role, seen.first, facts):
            seen.work_at = time.time()
        if facts.get("version", -1) >= 0:
            self.versions.setdefault(f"{name} says", Versions()).hear(facts["version"])

    def _hear(self, entry: Entry) -> None:
        """In a stream things stand in the order in which they were said."""
        source, metrics = entry.fields["source"], entry.fields["metrics"]
        version = metrics.get("version", metrics.get("policy_version", -1))
        self.versions.setdefault(f"{source} reports", Versions()).hear(int(version))


def works(role: str, first: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether a process that said `facts`, and `first` before, has done what it is there for."""
    if role == "worker":
        return facts.get("env_steps", 0) > 0
    if role == "learner":
        return facts.get("version", -1) >= 0 and facts["updates"] > first["updates"]
    if role == "shard":
        return bool(first) and facts["inserted"] > first["inserted"]
    return "progress_at" in facts
