"""A director, somebody who plays what it hands out, and strategies to put into it."""

from __future__ import annotations

from typing import Any

from bandits import outcome

from repertory.director_config import DirectorConfig
from services.decision import Decision
from services.director import Director

MEMBERS = ("td3", "sac", "ppo")
SCRIPT = {"name": "scripted", "script": [["td3", 2], ["sac", 1], ["ppo", 3]]}


class Worst:
    """A strategy of somebody else: always the last, and it knows nothing of episodes under way."""

    exact = False

    def __init__(self, config: Any, members: Any) -> None:
        self.seen: list[Any] = []

    def choose(self, candidates: Any, rng: Any) -> str:
        return str(candidates[-1])

    def observe(self, outcome: Any) -> None:
        self.seen.append(outcome)

    def estimates(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Any) -> None:
        pass


class Stranger(Worst):
    def choose(self, candidates: Any, rng: Any) -> str:
        return "nobody"


def director(
    strategy: Any = "ucb", members: Any = MEMBERS, seed: int = 0, **config: Any
) -> Director:
    return Director(DirectorConfig(strategy=strategy, **config), members, seed)


def with_strategy(strategy_class: type, **config: Any) -> Director:
    """A director whose strategy is replaced, as a dotted path would do it."""
    target = director("uniform", **config)
    target._strategy = strategy_class(None, MEMBERS)
    target._anticipating = target._randomised = None
    return target


def report(target: Director, decision: Decision, episode_return: float = 1.0, **more: int) -> None:
    place = target.members.index(decision.policy)
    target.observe(outcome(place, episode_return, **more), decision.number)


def run(target: Director, count: int, returns: Any = None) -> list[Decision]:
    """One decision at a time, each played at once."""
    made = []
    for _ in range(count):
        (decision,) = target.lease("actor", 1)
        report(target, decision, returns(decision) if returns else 1.0)
        made.append(decision)
    return made


def policies(decisions: list[Decision]) -> list[str]:
    return [decision.policy for decision in decisions]


def numbers(decisions: list[Decision]) -> list[int]:
    return [decision.number for decision in decisions]
