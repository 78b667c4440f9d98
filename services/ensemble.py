"""A portfolio's policies as one: who is in it, and how they act together.

Its members are the best policies of all learners by evaluated mean, as `--policy NAME` takes them.

    strategy   the director as it stood at the end chooses who acts in each episode, or every
               `director.switch_every` steps
    vote       discrete actions: what most members would do
    average    continuous actions: the mean of what all members would do

`services.run_policy` takes one out of a run, `services.export` writes it to a folder and reads it
again, `services.ensemble_policies` acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from repertory.config import EnvConfig
from repertory.errors import RepertoryError, UsageError
from repertory.policies.card import PolicyCard
from repertory.specs import EnvSpec
from services.ensemble_policies import Average, Directed, Vote
from services.final_director import FinalDirector

Mode = Literal["strategy", "vote", "average"]
DEFAULT_MODE: Mode = "strategy"


@dataclass(frozen=True, slots=True)
class Ensemble:
    members: Mapping[str, PolicyCard]  # by learner, in the order of the portfolio
    mode: Mode
    director: FinalDirector | None  # None where none was saved
    env_steps: int  # of the run, when it was taken out of it
    seed: int = 0  # of the strategy's draws

    def __post_init__(self) -> None:
        require_mode(self.mode, self.spec)
        if self.mode != "strategy":
            return
        if self.director is None:
            raise RepertoryError(
                f"the ensemble of {', '.join(self.members)} cannot act by strategy: its checkpoint "
                f"holds no director; {_choose_from(self.spec, without='strategy')}"
            )
        if self.director.members != tuple(self.members):
            raise RepertoryError(
                f"the ensemble has {', '.join(self.members)}, its director chose among "
                f"{', '.join(self.director.members)}: they are not of one run"
            )

    @property
    def spec(self) -> EnvSpec:
        return next(iter(self.members.values())).spec

    @property
    def env_config(self) -> EnvConfig:
        return next(iter(self.members.values())).env_config

    def build(self) -> Directed | Vote | Average:
        """Ready to act, from the beginning: built twice, it acts twice the same."""
        policies = {name: card.build() for name, card in self.members.items()}
        if self.mode == "strategy":
            assert self.director is not None
            return Directed(policies, self.director.chooser(self.seed), self.spec)
        if self.mode == "average":
            return Average(list(policies.values()))
        return Vote([policies[name] for name in self.ranking()], self.spec)

    def ranking(self) -> list[str]:
        """The members by their evaluated mean, best first."""

        def key(name: str) -> float:
            mean = self.members[name].mean_return
            return float("inf") if mean is None else -mean

        return sorted(self.members, key=key)

    def description(self) -> dict[str, Any]:
        """How it acts and who is in it, for people, as JSON."""
        return {
            "mode": self.mode,
            "strategy": None if self.director is None else self.director.config.strategy.name,
            "members": {
                name: {
                    "algorithm": card.algorithm,
                    "version": card.snapshot.version,
                    "env_steps": card.env_steps,
                    "mean_return": card.mean_return,
                }
                for name, card in self.members.items()
            },
        }


def require_mode(mode: str, spec: EnvSpec) -> None:
    """A UsageError where such an ensemble cannot act in this environment."""
    if mode not in get_args(Mode):
        raise UsageError(f"there is no ensemble by {mode!r}: {_choose_from(spec)}")
    if mode not in modes_for(spec):
        kind = spec.action_kind.replace("_", "-")
        raise UsageError(
            f"an ensemble by {mode} is refused: {spec.env_id} has {kind} actions; "
            f"{_choose_from(spec)}"
        )


def modes_for(spec: EnvSpec) -> list[Mode]:
    return ["strategy", "average" if spec.action_kind == "continuous" else "vote"]


def _choose_from(spec: EnvSpec, without: str | None = None) -> str:
    return "use " + " or ".join(mode for mode in modes_for(spec) if mode != without)
