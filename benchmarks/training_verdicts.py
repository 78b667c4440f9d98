"""What is said of trainings: how two systems compare, and when they may not be compared. Pure.

Verdict          environment steps per second while learning, the more the better
TimeVerdict      seconds from the start of the command to a threshold, the fewer the better
ReturnVerdict    what policies are worth after equal steps, over seeds
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, variance

from benchmarks.course import comparable
from benchmarks.measure import Comparison
from benchmarks.training_cases import OURS, CaseName, Part, System
from benchmarks.training_records import Record, Records, measured, median_seconds

# Times the peer's steps per second; with as many copies as ours, PPO's alone.
TARGETS: Mapping[str, float] = {"sb3": 2.0, "rllib": 5.0}
VECTOR_TARGETS: Mapping[str, float] = {"ppo": 2.0}
# Of the peer's seconds to the threshold, at most.
TIME_TARGETS: Mapping[CaseName, float] = {"td3": 2 / 3, "sac": 2 / 3, "dqn": 2 / 3, "ppo": 1.0}
ERRORS = 2.0  # of a difference: standard errors that are still chance


@dataclass(frozen=True)
class Verdict:
    """Our steps per second over a peer's, or why there is no such ratio."""

    case: CaseName
    peer: System
    comparison: Comparison | None
    refusal: str | None = None

    @property
    def ok(self) -> bool:
        return self.comparison is not None and self.comparison.ok


def compare(records: Records, case: CaseName, peer: System) -> Verdict | None:
    """None where one of the two has not been measured."""
    ours = {one.round: one for one in measured(records.of("throughput", case, "repertory"))}
    theirs = {one.round: one for one in measured(records.of("throughput", case, peer))}
    rounds = sorted(ours.keys() & theirs.keys())
    if not rounds:
        return None
    ratios = [
        median(side[number].updates_per_step or 0.0 for number in rounds) for side in (ours, theirs)
    ]
    if not comparable(ratios[:1], ratios[1]):
        refusal = (
            f"not compared: {ratios[0]:.3f} updates per step here and {ratios[1]:.3f} there are "
            "more than 5 % apart"
        )
        return Verdict(case, peer, None, refusal)
    # However Stable-Baselines3 is laid out: else its slowest layout would decide.
    target = VECTOR_TARGETS.get(case) if peer == "sb3_vector" else TARGETS[peer]
    comparison = Comparison(
        f"{case}, end to end / {peer}",
        [ours[number].steps_per_second or 0.0 for number in rounds],
        [theirs[number].steps_per_second or 0.0 for number in rounds],
        target,
    )
    return Verdict(case, peer, comparison)


@dataclass(frozen=True)
class TimeVerdict:
    """Seconds to the threshold by seed, ours and Stable-Baselines3's; None: never reached."""

    case: CaseName
    system: System
    ours: Sequence[float | None]
    peer: Sequence[float | None]

    @property
    def target(self) -> float:
        return TIME_TARGETS[self.case]

    @property
    def ratio(self) -> float:
        # Not a number where nobody arrives.
        return median_seconds(self.ours) / median_seconds(self.peer)

    @property
    def ok(self) -> bool:
        return self.ratio <= self.target


@dataclass(frozen=True)
class ReturnVerdict:
    """Returns by seed after equal steps, ours and Stable-Baselines3's."""

    case: CaseName
    system: System
    ours: Sequence[float]
    peer: Sequence[float]

    @property
    def difference(self) -> float:
        return mean(self.ours) - mean(self.peer)

    @property
    def error(self) -> float:
        """Standard error of the difference; of one seed it is not known, and nothing is excused."""
        if len(self.ours) < 2:
            return 0.0
        return math.sqrt(sum(variance(side) / len(side) for side in (self.ours, self.peer)))

    @property
    def ok(self) -> bool:
        """No loss that is more than chance."""
        return self.difference >= -ERRORS * self.error


def time_verdicts(records: Records, case: CaseName) -> list[TimeVerdict]:
    return [
        TimeVerdict(
            case,
            system,
            [one.threshold_seconds for one in ours],
            [one.threshold_seconds for one in theirs],
        )
        for system, ours, theirs in _by_seed(records, "time_to_threshold", case)
    ]


def return_verdicts(records: Records, case: CaseName) -> list[ReturnVerdict]:
    return [
        ReturnVerdict(
            case,
            system,
            [one.final_return for one in ours if one.final_return is not None],
            [one.final_return for one in theirs if one.final_return is not None],
        )
        for system, ours, theirs in _by_seed(records, "returns", case)
    ]


def _by_seed(
    records: Records, part: Part, case: CaseName
) -> list[tuple[System, list[Record], list[Record]]]:
    """Of each of our systems, its trainings and the peer's of the seeds that both have."""
    peers = {one.round: one for one in records.of(part, case, "sb3") if one.failure is None}
    found = []
    for system in OURS:
        ours = {one.round: one for one in records.of(part, case, system) if one.failure is None}
        seeds = sorted(ours.keys() & peers.keys())
        if seeds:
            found.append((system, [ours[seed] for seed in seeds], [peers[seed] for seed in seeds]))
    return found
