"""How a training went, by its own counters: when it learned first, how fast, what it reached. Pure.

A system tells steps and updates at moments of its own, which need not be the same for both. What
comes in bursts (a hundred updates after some hundred steps) is measured from the end of one burst
to the end of another.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.peers.training import Judged

Reading = tuple[float, int]  # a moment and a counter
MOST_DIFFERENT = 0.05  # ratios of updates to steps that are still compared


@dataclass(frozen=True)
class Steady:
    """Between two moments while it learned."""

    seconds: float
    env_steps: float
    updates: float

    @property
    def steps_per_second(self) -> float:
        return self.env_steps / self.seconds

    @property
    def updates_per_second(self) -> float:
        return self.updates / self.seconds

    @property
    def ratio(self) -> float:
        """Updates per environment step."""
        return self.updates / self.env_steps if self.env_steps else float("inf")


@dataclass
class Course:
    """Of one training; moments are in seconds since the epoch."""

    started: float
    env_steps: list[Reading] = field(default_factory=list)
    updates: list[Reading] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    prepared: float = 0.0  # the last moment at which it still got something ready beside learning

    @property
    def seconds_to_first_update(self) -> float | None:
        moment = next((at for at, count in self.updates if count > 0), None)
        return None if moment is None else moment - self.started

    def learned_for(self, now: float) -> float:
        """Since it has been learning with all it has."""
        first = self.seconds_to_first_update
        return 0.0 if first is None else now - max(self.started + first, self.prepared)

    def steady(self, settle_seconds: float) -> Steady | None:
        """After learning has settled; None where there is too little to tell."""
        first = self.seconds_to_first_update
        if first is None:
            return None
        begun = max(self.started + first, self.prepared)
        ends = ends_of_bursts(self.updates, begun + settle_seconds)
        # Steps are not known beyond their last reading.
        ends = [reading for reading in ends if reading[0] <= self.env_steps[-1][0]]
        if len(ends) < 2:
            return None
        (begin, updates_before), (end, updates_after) = ends[0], ends[-1]
        steps = at_moment(self.env_steps, end) - at_moment(self.env_steps, begin)
        return Steady(end - begin, steps, updates_after - updates_before)

    def seconds_to(self, threshold: float) -> float | None:
        """To the first evaluation that is not below."""
        found = next((one for one in self.judged if one.mean >= threshold), None)
        return None if found is None else found.time - self.started


def ends_of_bursts(updates: Sequence[Reading], since: float) -> list[Reading]:
    """The readings that show more updates than the one before."""
    return [
        now for before, now in itertools.pairwise(updates) if now[1] > before[1] and now[0] >= since
    ]


def at_moment(readings: Sequence[Reading], moment: float) -> float:
    """The counter at a moment, evenly between two readings; none beyond the first and the last."""
    place = bisect.bisect_left(readings, moment, key=lambda reading: reading[0])
    if place == 0:
        return float(readings[0][1])
    if place == len(readings):
        return float(readings[-1][1])
    (before, low), (after, high) = readings[place - 1], readings[place]
    return low + (high - low) * (moment - before) / (after - before)


def comparable(ratios: Sequence[float], wanted: float) -> bool:
    """Whether all did as many updates per step as was wanted."""
    return all(abs(ratio / wanted - 1) <= MOST_DIFFERENT for ratio in ratios)
