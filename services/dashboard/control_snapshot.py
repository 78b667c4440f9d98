"""What the processes of a run say of themselves at one moment, and how fast that changes.

Read from the control server at most twice a second, however many look. Where it does not answer
there is nothing, and it is asked again later and later, so that the pages of ended runs stay quick.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from repertory.control import Control, Desired, Member
from repertory.errors import RepertoryError
from services.dashboard.schemas import ControlServer
from services.run_control import control_of

FRESH_SECONDS = 0.5
ANSWER_SECONDS = 1.0
SILENCE_SECONDS = (1.0, 30.0)  # after which it is asked again, at first and at most
WINDOW_SECONDS = 20.0  # for speeds
READINGS_KEPT = 60


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Empty where the control server does not answer."""

    at: float
    reachable: bool = False
    desired: Desired = field(default_factory=Desired)
    counters: Mapping[str, int] = field(default_factory=dict)
    members: Mapping[str, Member] = field(default_factory=dict)
    rates: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (member, fact): a second

    def of_role(self, *roles: str) -> dict[str, Member]:
        return {name: one for name, one in self.members.items() if one.role in roles}

    def rate(self, member: str, fact: str) -> float | None:
        return self.rates.get((member, fact))


class Speeds:
    """Of counts that processes report, over the last seconds."""

    FACTS = ("env_steps", "updates", "inserted", "sampled")

    def __init__(self) -> None:
        self._readings: dict[tuple[str, str, int], deque[tuple[float, float]]] = {}

    def take(self, members: Mapping[str, Member]) -> dict[tuple[str, str], float]:
        rates = {}
        seen = set()
        for name, member in members.items():
            for fact in self.FACTS:
                value = member.facts.get(fact)
                if not isinstance(value, int | float):
                    continue
                key = (name, fact, member.incarnation)  # a new life counts from nothing
                seen.add(key)
                readings = self._readings.setdefault(key, deque(maxlen=READINGS_KEPT))
                if not readings or member.at > readings[-1][0]:
                    readings.append((member.at, float(value)))
                while len(readings) > 2 and readings[1][0] < member.at - WINDOW_SECONDS:
                    readings.popleft()
                (then, before), (now, after) = readings[0], readings[-1]
                if now > then:
                    rates[name, fact] = max(0.0, after - before) / (now - then)
        for gone in self._readings.keys() - seen:
            del self._readings[gone]
        return rates


class ControlReader:
    """One thread at a time uses it."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._control: Control | None = None
        self._speeds = Speeds()
        self._newest = Snapshot(at=0.0)
        self._silence = SILENCE_SECONDS[0]
        self._ask_at = 0.0

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def snapshot(self) -> Snapshot:
        now = time.time()
        if now < self._ask_at:
            return self._newest
        try:
            if self._control is None:
                self._control = control_of(self._run_dir, timeout_seconds=ANSWER_SECONDS)
            members = self._control.members()
            self._newest = Snapshot(
                at=now,
                reachable=True,
                desired=self._control.desired(),
                counters=self._control.counters(),
                members=members,
                rates=self._speeds.take(members),
            )
        except (RepertoryError, OSError):  # it has ended, or is away
            self.close()
            self._newest = Snapshot(at=now)
            self._silence = min(2 * self._silence, SILENCE_SECONDS[1])
            self._ask_at = now + self._silence
        else:
            self._silence = SILENCE_SECONDS[0]
            self._ask_at = now + FRESH_SECONDS
        return self._newest

    def send(
        self, name: str, arguments: Mapping[str, Any], timeout_seconds: float
    ) -> dict[str, Any]:
        """A command of a person, and the run's answer."""
        with control_of(self._run_dir) as control:
            return control.await_reply(control.send(name, **arguments), timeout_seconds)

    def server(self) -> ControlServer | None:
        """The Redis or Valkey itself."""
        try:
            with control_of(self._run_dir) as control:
                client = control.address.connect(timeout_seconds=ANSWER_SECONDS)
                try:
                    facts = client.info()
                finally:
                    client.close()
        except (RepertoryError, redis.RedisError, OSError):
            return None
        name = "Valkey" if "valkey_version" in facts else "Redis"
        return ControlServer(
            version=f"{name} {facts.get('valkey_version', facts['redis_version'])}",
            memory_bytes=int(facts["used_memory_rss"]),
            clients=int(facts["connected_clients"]),
            commands_per_second=int(facts["instantaneous_ops_per_sec"]),
        )
