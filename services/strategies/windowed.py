"""What every strategy here remembers: the newest scores, and who is being tried just now.

Policies learn, so what a member scored long ago says little: only the newest `window` scores of
all members together count, and with a `discount` the older of them count less. Everything is
computed from these scores alone, so a restored strategy goes on exactly as it would have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from services.strategies.score_window import ScoreWindow
from services.strategies.strategy import Estimate, Outcome

NORMAL_95 = 1.96  # half the width of a 95 % interval, in deviations of the mean


@dataclass(frozen=True, slots=True)
class Summary:
    """The window in numbers. Members without a score are in `counts` alone, with 0."""

    counts: Mapping[str, float]  # weights, where there is a discount
    means: Mapping[str, float]
    deviations: Mapping[str, float]  # of each member's scores around their mean
    total: float
    deviation: float  # of all scores around the mean of all
    low: float
    high: float


class Windowed:
    """The base of our strategies: all but `choose`."""

    exact: ClassVar[bool] = False

    def __init__(self, members: Sequence[str], window: int, discount: float = 1.0) -> None:
        self.members = tuple(members)
        self._places = {member: place for place, member in enumerate(self.members)}
        self._scores = ScoreWindow(len(self.members), window)
        self._discount = discount
        self._under_way = dict.fromkeys(self.members, 0)
        self._summary: Summary | None = None  # until the next score

    def expect(self, member: str) -> None:
        self._under_way[member] += 1

    def forget(self, member: str) -> None:
        self._under_way[member] = max(0, self._under_way[member] - 1)

    def observe(self, outcome: Outcome) -> None:
        self.forget(outcome.member)
        if outcome.score is not None:
            self._scores.append(self._places[outcome.member], outcome.score)
            self._summary = None

    def estimates(self) -> dict[str, Estimate]:
        summary = self.summary()
        return {
            member: Estimate(
                mean=summary.means[member],
                low=summary.means[member] - self.half_width(member),
                high=summary.means[member] + self.half_width(member),
                count=summary.counts[member],
            )
            if member in summary.means
            else Estimate(None, None, None, 0)
            for member in self.members
        }

    def half_width(self, member: str) -> float:
        """Of the interval around the mean of a member that has scores."""
        summary = self.summary()
        count = summary.counts[member]
        spread = summary.deviations[member] if count >= 2 else summary.deviation
        return NORMAL_95 * spread / math.sqrt(count)

    def summary(self) -> Summary:
        if self._summary is None:
            self._summary = self._summarise()
        return self._summary

    def to_try(self, candidates: Sequence[str], rng: np.random.Generator) -> str | None:
        """A candidate that has no score and that nobody is trying, if there is one.

        While no candidate has a score, the one that is tried least.
        """
        counts = self.summary().counts
        unknown = [member for member in candidates if counts[member] == 0]
        if not unknown:
            return None
        least = min(self._under_way[member] for member in unknown)
        if least > 0 and len(unknown) < len(candidates):
            return None
        return pick([member for member in unknown if self._under_way[member] == least], rng)

    def most_promising(self, candidates: Sequence[str], rng: np.random.Generator) -> str:
        """Whoever is to be tried, else whoever has the highest upper bound."""
        untried = self.to_try(candidates, rng)
        if untried is not None:
            return untried
        means = self.summary().means
        return best(
            {member: means[member] + self.half_width(member) for member in self.known(candidates)},
            rng,
        )

    def known(self, candidates: Sequence[str]) -> list[str]:
        """The candidates that have a score; not empty where `to_try` has none to name."""
        means = self.summary().means
        return [member for member in candidates if member in means]

    def state(self) -> dict[str, Any]:
        return {
            "scores": [[self.members[place], score] for place, score in self._scores.rows()],
            "under_way": dict(self._under_way),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._scores.load(
            [(self._places[member], float(score)) for member, score in state["scores"]]
        )
        self._under_way = {member: int(state["under_way"][member]) for member in self.members}
        self._summary = None

    def _summarise(self) -> Summary:
        if not len(self._scores):
            return Summary(dict.fromkeys(self.members, 0.0), {}, {}, 0.0, 0.0, 0.0, 0.0)
        moments = self._scores.moments(self._discount)
        counts = dict(zip(self.members, moments.counts.tolist(), strict=True))
        means = zip(self.members, moments.means.tolist(), strict=True)
        deviations = zip(self.members, moments.deviations.tolist(), strict=True)
        return Summary(
            counts=counts,
            means={member: mean for member, mean in means if counts[member] > 0},
            deviations={member: spread for member, spread in deviations if counts[member] > 0},
            total=sum(counts.values()),
            deviation=moments.deviation,
            low=moments.low,
            high=moments.high,
        )


def pick(names: Sequence[str], rng: np.random.Generator) -> str:
    return names[int(rng.integers(len(names)))]


def best(values: Mapping[str, float], rng: np.random.Generator) -> str:
    """The name with the highest value; ties are drawn."""
    highest = max(values.values())
    return pick([name for name, value in values.items() if value == highest], rng)


def draw(probabilities: Mapping[str, float], rng: np.random.Generator) -> str:
    """One of the names, by their probabilities."""
    rest = rng.random() * sum(probabilities.values())
    chosen = ""
    for name, probability in probabilities.items():
        if probability > 0:  # rounding at the end must not find one without
            chosen = name
            rest -= probability
            if rest < 0:
                break
    return chosen
