"""Bandits whose best arm is known, and somebody who plays them: for strategies and the director."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repertory.director_config import DirectorConfig
from repertory.parts import lookup
from repertory.types import EpisodeOutcome
from services.director import Director
from services.strategies.strategy import Outcome, Randomised

Means = Callable[[int], Sequence[float]]  # of all arms in one round


@dataclass(frozen=True)
class Bandit:
    means: Means
    deviation: float | None = None  # of Gaussian rewards; None: coins that show 0 or 1
    scale: float = 1.0
    shift: float = 0.0

    @property
    def arms(self) -> int:
        return len(self.means(0))

    def reward(self, number: int, arm: int, rng: np.random.Generator) -> float:
        mean = self.means(number)[arm]
        if self.deviation is None:
            value = float(rng.random() < mean)
        else:
            value = mean + self.deviation * float(rng.standard_normal())
        return self.scale * value + self.shift


def steady(*means: float) -> Means:
    return lambda number: means


def swapping(means: Sequence[float], every: int) -> Means:
    """The arms change places after every so many rounds."""
    return lambda number: means if (number // every) % 2 == 0 else means[::-1]


@dataclass(frozen=True)
class Played:
    arms: np.ndarray  # [T] which arm
    gaps: np.ndarray  # [T] best mean minus the chosen one's, before scale and shift

    @property
    def regret(self) -> float:
        return float(self.gaps.sum())

    def wrong(self, arm: int) -> int:
        """How often this arm was played while it was not the best."""
        return int(((self.arms == arm) & (self.gaps > 0)).sum())


def make(name: str, members: Sequence[str], **settings: Any) -> Any:
    strategy_class = lookup("strategy", name)
    return strategy_class(strategy_class.Config(**settings), members)


def play(bandit: Bandit, rounds: int, name: str, seed: int = 0, **settings: Any) -> Played:
    """A strategy alone, one choice at a time."""
    members = [f"arm{place}" for place in range(bandit.arms)]
    strategy = make(name, members, **settings)
    randomised = isinstance(strategy, Randomised)
    rng, rewards = np.random.default_rng(seed), np.random.default_rng(1000 + seed)
    arms, gaps = [], []
    for number in range(rounds):
        chances = strategy.probabilities(members) if randomised else {}
        chosen = strategy.choose(members, rng)
        arm = members.index(chosen)
        means = bandit.means(number)
        arms.append(arm)
        gaps.append(max(means) - means[arm])
        strategy.expect(chosen)
        score = bandit.reward(number, arm, rewards)
        strategy.observe(Outcome(chosen, score, probability=chances.get(chosen)))
    return Played(np.array(arms), np.array(gaps))


def play_directed(
    bandit: Bandit, rounds: int, config: DirectorConfig, seed: int = 0, lease: int = 1
) -> Played:
    """The same under a director, with so many choices at a time."""
    members = [f"arm{place}" for place in range(bandit.arms)]
    director = Director(config, members, seed)
    rewards = np.random.default_rng(1000 + seed)
    arms, gaps = [], []
    while len(arms) < rounds:
        for decision in director.lease("actor", lease):
            number = len(arms)
            arm = members.index(decision.policy)
            means = bandit.means(number)
            arms.append(arm)
            gaps.append(max(means) - means[arm])
            director.observe(outcome(arm, bandit.reward(number, arm, rewards)), decision.number)
    return Played(np.array(arms), np.array(gaps))


def outcome(
    policy_id: int, episode_return: float, length: int = 10, env_steps: int = 0
) -> EpisodeOutcome:
    return EpisodeOutcome(
        policy_id=policy_id,
        policy_version=0,
        episode_return=episode_return,
        length=length,
        terminated=True,
        env_steps=env_steps,
    )
