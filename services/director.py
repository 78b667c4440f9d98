"""Chooses which policy acts in each episode of each environment copy, by a replaceable strategy.

Pure logic: what happened comes in, decisions go out, and nothing here knows Ray or Redis. Whoever
owns a director calls `lease` for an actor, `observe` for each ended episode, `give_back` and
`forget` for what will not be played, and saves `state()` before a lease leaves the process: then a
restored director goes on exactly where the killed one was.

Decisions are leased many at a time, so that no episode waits for a round trip. Each has a number of
its own, consecutive over the run. One that was not played goes out again under the same number, so
every number ends in one episode, whichever actors die. `pin`, `bench` and `release` raise the
`edition`: an actor whose lease is of an older one gives back what it has not begun and asks again.

Whatever the strategy says, each member keeps `director.min_share` of all decisions.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from repertory.director_config import DirectorConfig
from repertory.errors import UsageError
from repertory.parts import lookup
from repertory.seeding import derive_seed, pack_generator, unpack_generator
from repertory.types import EpisodeOutcome
from services.decision import Decision, Reason
from services.learner_shares import by_choice, equal
from services.minimum_share import MinimumShare
from services.scoring import Scoring
from services.strategies.strategy import (
    Anticipating,
    Estimate,
    Outcome,
    Randomised,
    Strategy,
)
from services.tally import Regret, Share, Tally

logger = logging.getLogger(__name__)

MOST_OPEN = 200_000  # decisions without an outcome; the oldest are given up beyond


@dataclass(frozen=True, slots=True)
class _Choice:
    """A decision that has no outcome yet."""

    policy: str
    reason: Reason
    probability: float | None
    actor: str


class Director:
    """Of one run; `members` are the policies in the order of the portfolio."""

    def __init__(self, config: DirectorConfig, members: Sequence[str], seed: int = 0) -> None:
        config.require_room_for(members)
        self._config = config
        self.members = tuple(members)
        self._strategy: Strategy = lookup("strategy", config.strategy.name)(
            config.strategy, self.members
        )
        self._anticipating = self._strategy if isinstance(self._strategy, Anticipating) else None
        self._randomised = self._strategy if isinstance(self._strategy, Randomised) else None
        self._bits = np.random.PCG64(derive_seed(seed, "director"))
        self._rng = np.random.Generator(self._bits)
        self._floor = MinimumShare(0.0 if self._strategy.exact else config.min_share, self.members)
        self._scoring = Scoring(config.score, self.members)
        self._tally = Tally(self.members)
        self.edition = 0
        self._next_number = 0
        self._pinned: str | None = None
        self._benched: list[str] = []
        self._open: dict[int, _Choice] = {}  # handed out
        self._returned: dict[int, _Choice] = {}  # to be handed out again

    @property
    def pinned(self) -> str | None:
        return self._pinned

    @property
    def benched(self) -> tuple[str, ...]:
        return tuple(self._benched)

    @property
    def candidates(self) -> tuple[str, ...]:
        return tuple(member for member in self.members if member not in self._benched)

    # Decisions

    def lease(self, actor: str, count: int) -> list[Decision]:
        """The next decisions, for this actor."""
        if count < 1:
            raise UsageError(f"a lease of {count} decisions is refused: ask for at least 1")
        estimates = self.estimates()
        decisions = []
        for _ in range(count):
            number, choice = self._next_choice(actor)
            self._open[number] = choice
            decisions.append(
                Decision(
                    number=number,
                    policy=choice.policy,
                    reason=choice.reason,
                    edition=self.edition,
                    steps=self._config.switch_every,
                    probability=choice.probability,
                    estimates=estimates,
                )
            )
        while len(self._open) > MOST_OPEN:
            number = next(iter(self._open))
            self._void(number, self._open.pop(number))
        return decisions

    def give_back(self, numbers: Iterable[int]) -> None:
        """Decisions that an actor has not begun and will not play."""
        for number in numbers:
            choice = self._open.pop(number, None)
            if choice is not None:
                self._returned[number] = choice

    def forget(self, actor: str) -> None:
        """An actor is gone, and with it all that it had and has not reported."""
        self.give_back([number for number, choice in self._open.items() if choice.actor == actor])

    def keep_only(self, actor: str, numbers: Collection[int]) -> None:
        """What this actor does not name was lost on the way to it, or will not be played."""
        kept = set(numbers)
        self.give_back(
            [
                number
                for number, choice in self._open.items()
                if choice.actor == actor and number not in kept
            ]
        )

    def take_back(self) -> None:
        """All that has no outcome, as if it had never been decided: nobody will play it."""
        for choices in (self._open, self._returned):
            for number, choice in choices.items():
                self._void(number, choice)
            choices.clear()

    # What happened

    def observe(self, outcome: EpisodeOutcome, decision: int | None = None) -> bool:
        """An episode that ended, with the number of the decision it was played under.

        Where policies change within an episode, there is one outcome for each decision in it: with
        the return of the whole episode, and as `length` the steps for which that policy acted.
        Without a number, it is the oldest open decision for that policy. A report that comes twice
        is dropped: then False.
        """
        member = self.members[outcome.policy_id]
        if decision is None:
            choices = self._open.items()
            decision = next((number for number, c in choices if c.policy == member), None)
        elif decision >= self._next_number:  # handed out after the state we were restored from
            self._next_number = decision + 1
        elif decision not in self._open and decision not in self._returned:
            return False
        choice = self._close(decision, member)
        if math.isfinite(outcome.episode_return):
            self._tally.ended(member, outcome.length, outcome.episode_return)
        else:
            logger.warning(
                "an episode of %s returned %s: it counts for nothing",
                member,
                outcome.episode_return,
            )
        if choice is None and self._anticipating is not None:
            self._anticipating.expect(member)  # it was not expected, and must not count for another
        self._strategy.observe(
            Outcome(
                member=member,
                score=self._scoring.of(member, outcome.episode_return, outcome.env_steps),
                length=outcome.length,
                env_steps=outcome.env_steps,
                probability=None if choice is None else choice.probability,
            )
        )
        return True

    def observe_evaluation(self, member: str, env_steps: int, mean: float) -> None:
        self._require_member(member)
        self._scoring.evaluated(member, env_steps, mean)

    # Commands

    def pin(self, policy: str) -> None:
        """Nobody else acts until it is released."""
        self._require_member(policy)
        if policy in self._benched:
            raise UsageError(f"{policy} cannot be pinned: it is benched; release it first")
        if self._pinned != policy:
            self._pinned = policy
            self.edition += 1

    def bench(self, policy: str) -> None:
        """It does not act until it is released."""
        self._require_member(policy)
        if policy in self._benched:
            return
        if policy == self._pinned:
            raise UsageError(f"{policy} cannot be benched: it is pinned; release it first")
        if len(self.candidates) == 1:
            raise UsageError(f"{policy} cannot be benched: it is the last; release another first")
        self._benched.append(policy)
        self.edition += 1

    def release(self, policy: str | None = None) -> None:
        """This policy, or all, neither pinned nor benched any more."""
        if policy is not None:
            self._require_member(policy)
        pinned, benched = self._pinned, list(self._benched)
        if policy is None or policy == self._pinned:
            self._pinned = None
        self._benched = [name for name in benched if policy is not None and name != policy]
        for name in set(benched) - set(self._benched):
            self._floor.start_afresh(name)
        if (pinned, benched) != (self._pinned, self._benched):
            self.edition += 1

    # For people and for learners

    def estimates(self) -> Mapping[str, Estimate]:
        return self._strategy.estimates()

    def shares(self) -> dict[str, Share]:
        return self._tally.shares()

    def regret(self) -> Regret:
        return self._tally.regret()

    def update_shares(self) -> dict[str, float]:
        """Of all updates, how many each learner is to make; they sum to 1."""
        if self._config.learner_share == "equal":
            return equal(self.members)
        # By steps, not by choices: a bad member's episodes may be short, or long.
        recent = {member: share.recent_env_steps for member, share in self.shares().items()}
        return by_choice(recent, self._config.min_share)

    def update_factors(self) -> dict[str, float]:
        """What each learner's own `updates_per_step` is to be multiplied by."""
        budget = 1 if self._config.updates == "shared" else len(self.members)
        return {member: budget * share for member, share in self.update_shares().items()}

    def report(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {
            "strategy": self._config.strategy.name,
            "edition": self.edition,
            "pinned": self._pinned,
            "benched": list(self._benched),
            "decisions": self._next_number,
            "shares": {member: asdict(share) for member, share in self.shares().items()},
            "estimates": {member: asdict(belief) for member, belief in self.estimates().items()},
            "regret": asdict(self.regret()),
            "update_shares": self.update_shares(),
        }

    # Survival

    def state(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "members": list(self.members),
            "strategy": {"name": self._config.strategy.name, "state": self._strategy.state()},
            "generator": pack_generator(self._bits).tolist(),
            "edition": self.edition,
            "next_number": self._next_number,
            "pinned": self._pinned,
            "benched": list(self._benched),
            "open": _choices_to_json(self._open),
            "returned": _choices_to_json(self._returned),
            "floor": self._floor.state(),
            "scoring": self._scoring.state(),
            "tally": self._tally.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        if tuple(state["members"]) != self.members:
            raise UsageError(
                f"the saved director chose among {', '.join(state['members'])}, this run has "
                f"{', '.join(self.members)}: resume with the same learners, or start a new run"
            )
        if state["strategy"]["name"] == self._config.strategy.name:
            self._strategy.load_state(state["strategy"]["state"])
        else:
            logger.warning(
                "the strategy was %s and is now %s: it starts without a memory",
                state["strategy"]["name"],
                self._config.strategy.name,
            )
        unpack_generator(self._bits, np.array(state["generator"], dtype=np.uint64))
        self.edition = int(state["edition"])
        self._next_number = int(state["next_number"])
        self._pinned = state["pinned"]
        self._benched = list(state["benched"])
        self._open = _choices_from_json(state["open"])
        self._returned = _choices_from_json(state["returned"])
        self._floor.load_state(state["floor"])
        self._scoring.load_state(state["scoring"])
        self._tally.load_state(state["tally"])

    def _next_choice(self, actor: str) -> tuple[int, _Choice]:
        if self._pinned is None and self._returned:
            number = min(self._returned)
            choice = self._returned.pop(number)
            if choice.reason != "pinned" and choice.policy not in self._benched:
                return number, _Choice(choice.policy, choice.reason, choice.probability, actor)
            self._void(number, choice)
        else:
            number = self._next_number
            self._next_number += 1
        choice = self._choose(actor)
        self._tally.chosen(number, choice.policy)
        if self._anticipating is not None:
            self._anticipating.expect(choice.policy)
        return number, choice

    def _choose(self, actor: str) -> _Choice:
        if self._pinned is not None:
            return _Choice(self._pinned, "pinned", None, actor)
        candidates = self.candidates
        probabilities: Mapping[str, float] = {}
        if self._randomised is not None:
            probabilities = self._randomised.probabilities(candidates)
        due = self._floor.due(candidates)
        policy = due or self._strategy.choose(candidates, self._rng)
        if policy not in candidates:
            raise UsageError(
                f"strategy {self._config.strategy.name} chose {policy!r}: "
                f"it must choose one of {', '.join(candidates)}"
            )
        self._floor.note(policy, candidates)
        probability = probabilities.get(policy)
        if probability is not None:
            # In the long run the floor lifts a rarer member to its share, and no further.
            probability = max(probability, self._floor.share)
        return _Choice(policy, "strategy" if due is None else "floor", probability, actor)

    def _close(self, decision: int | None, member: str) -> _Choice | None:
        """What was decided under this number, unless it has since been decided anew.

        That happens where an actor was given up too early, and reports after all.
        """
        for choices in (self._open, self._returned):
            choice = None if decision is None else choices.get(decision)
            if decision is not None and choice is not None and choice.policy == member:
                return choices.pop(decision)
        return None

    def _void(self, number: int, choice: _Choice) -> None:
        """As if it had never been made."""
        self._tally.take_back(number, choice.policy)
        if self._anticipating is not None:
            self._anticipating.forget(choice.policy)

    def _require_member(self, policy: str) -> None:
        if policy not in self.members:
            raise UsageError(
                f"there is no policy {policy!r} in this run: choose one of "
                f"{', '.join(self.members)}"
            )


def _choices_to_json(choices: Mapping[int, _Choice]) -> list[list[Any]]:
    return [[n, c.policy, c.reason, c.probability, c.actor] for n, c in choices.items()]


def _choices_from_json(rows: Sequence[Sequence[Any]]) -> dict[int, _Choice]:
    return {int(row[0]): _Choice(*row[1:]) for row in rows}
