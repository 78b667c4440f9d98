"""Which workers act with old weights although newer ones have long been published.

Pure logic: versions and a clock come in, what to say goes out. Old by itself is no fault, a learner
may pause; what is looked at is how long a worker has not taken what was there for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one worker is behind."""

    versions: int
    seconds: float  # since there was something newer for it


class LagWatch:
    def __init__(self, alarm_seconds: float) -> None:
        self._alarm_seconds = alarm_seconds
        self._behind: dict[str, tuple[int, float]] = {}  # the version it stays at, and since when
        self._alarmed: set[str] = set()

    def look(self, now: float, newest: int, workers: Mapping[str, int]) -> dict[str, Lag]:
        """The lag of each worker, by the version that each has."""
        lags = {}
        for name, version in workers.items():
            if version >= newest:
                self._behind.pop(name, None)
                lags[name] = Lag(0, 0.0)
                continue
            at, since = self._behind.get(name, (version, now))
            if version != at:  # it has moved on, if not all the way
                since = now
            self._behind[name] = (version, since)
            lags[name] = Lag(newest - version, now - since)
        self._behind = {name: at for name, at in self._behind.items() if name in workers}
        return lags

    def alarms(self, lags: Mapping[str, Lag]) -> tuple[list[str], list[str]]:
        """Who has begun to lag since the last call, and who has caught up."""
        late = {name for name, lag in lags.items() if lag.seconds > self._alarm_seconds}
        begun, over = sorted(late - self._alarmed), sorted(self._alarmed - late)
        self._alarmed = late
        return begun, over
