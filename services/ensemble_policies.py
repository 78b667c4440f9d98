"""The three ways in which several policies act as one. Built by `services.ensemble`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from actors.episodes import FOR_EVER
from repertory.policy_memory import PolicyMemory
from repertory.protocols import Acting
from repertory.specs import EnvSpec
from repertory.types import Acted, Array
from services.director import Director

ACTOR = "ensemble"  # what the director calls whoever plays its decisions


@runtime_checkable
class ActionValues(Protocol):
    """A policy that can say what each action is worth."""

    def q_values(self, observation: Array) -> Array:
        """[B, ...] -> [B, actions]."""
        ...


class Directed:
    """In each copy the one whom the director chose acts, until its decision has run out.

    The rows of a batch are copies of the environment. `begin` says where an episode begins; where
    a batch has another number of rows than the one before, one begins in all of them.
    """

    def __init__(self, policies: Mapping[str, Acting], director: Director, spec: EnvSpec) -> None:
        self._names = tuple(policies)
        self._policies = [PolicyMemory(policy) for policy in policies.values()]
        self._director = director
        self._spec = spec
        self._player = np.zeros(0, np.int64)  # [B] who acts, by index
        self._steps_left = np.zeros(0, np.int64)  # [B] of the decision; 0: somebody is to be chosen
        self._steps = np.zeros(len(self._names), np.int64)

    def begin(self, starting: Array | None = None) -> None:
        """`starting` [B] marks the copies whose next observation is the first of an episode."""
        if starting is None or len(starting) != len(self._steps_left):
            starting, self._steps_left = None, np.zeros(0, np.int64)
        else:
            self._steps_left[starting] = 0
        for member in self._policies:
            member.begin(starting)

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        copies = len(observation)
        if len(self._steps_left) != copies:
            self.begin()
            self._player = np.zeros(copies, np.int64)
            self._steps_left = np.zeros(copies, np.int64)
        self._choose(np.flatnonzero(self._steps_left == 0))
        self._steps_left -= 1
        column = self._spec.action_column
        action = np.empty((copies, *column.shape), column.dtype)
        for player in np.unique(self._player):
            rows = np.flatnonzero(self._player == player)
            member = self._policies[player]
            acted = member.act(observation[rows], rng, copies=rows, env_steps=FOR_EVER)
            action[rows] = acted.action
            self._steps[player] += len(rows)
        return Acted(action)

    def acted(self) -> dict[str, float]:
        """For which part of all steps each member has acted; 0 for all before the first."""
        shares = self._steps / max(1, self._steps.sum())
        return dict(zip(self._names, shares.tolist(), strict=True))

    def _choose(self, copies: Array) -> None:
        if not len(copies):
            return
        decisions = self._director.lease(ACTOR, len(copies))
        before = self._player.copy()
        for copy, decision in zip(copies, decisions, strict=True):
            self._player[copy] = self._names.index(decision.policy)
            self._steps_left[copy] = FOR_EVER if decision.steps is None else decision.steps
        for member in self._policies:  # a hand-over; who goes on after itself remembers
            member.begin(self._player != before)


class Together:
    """Members that all act in every copy."""

    def __init__(self, policies: Sequence[Acting]) -> None:
        self._policies = [PolicyMemory(policy) for policy in policies]

    def begin(self, starting: Array | None = None) -> None:
        for policy in self._policies:
            policy.begin(starting)

    def wishes(self, observation: Array, rng: np.random.Generator | None) -> Array:
        """What each member would do: [M, B, ...]."""
        acted = [p.act(observation, rng, env_steps=FOR_EVER) for p in self._policies]
        return np.stack([one.action for one in acted])


class Vote(Together):
    """What most members would do, in each dimension of the action; `policies` are best first.

    Among actions with as many votes, that of the best member that voted for one of them. Where all
    members have action values, these are averaged instead: a vote of two would always be that of
    the better one, and a member that hardly cares would count as much as one that is sure. They
    are brought to the same scale first, in each state: members with another discount or other
    rewards would drown the rest.

        argmax_a  sum_m  (Q_m(s, a) - mean_a' Q_m(s, a')) / std_a' Q_m(s, a')
    """

    def __init__(self, policies: Sequence[Acting], spec: EnvSpec) -> None:
        super().__init__(policies)
        self._spec = spec
        valued = [policy for policy in policies if isinstance(policy, ActionValues)]
        self._valued = valued if len(valued) == len(policies) else []

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        if self._valued:
            scores = [standardised(policy.q_values(observation)) for policy in self._valued]
            return Acted(np.sum(scores, axis=0).argmax(-1))
        wishes = self.wishes(observation, rng)
        flat = wishes.reshape(len(wishes), len(observation), -1)  # [M, B, D]; discrete: D = 1
        elected = [
            elect(flat[:, :, dimension], size)
            for dimension, size in enumerate(self._spec.action_sizes)
        ]
        return Acted(np.stack(elected, axis=-1).reshape(wishes.shape[1:]))


class Average(Together):
    """The mean of all members' actions, in [-1, 1]."""

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        return Acted(self.wishes(observation, rng).mean(axis=0))


def elect(votes: Array, choices: int) -> Array:
    """Of `votes` [M, B], the first voter's first, the choice [B] that most of them are for."""
    counts = (votes[:, :, None] == np.arange(choices)).sum(axis=0)  # [B, choices]
    leading = counts == counts.max(axis=-1, keepdims=True)
    rows = np.arange(votes.shape[1])
    elected = votes[-1].copy()
    for vote in votes[::-1]:  # the first voter has the last word
        elected = np.where(leading[rows, vote], vote, elected)
    return elected


def standardised(q: Array) -> Array:
    """Each row of [B, actions] with mean 0 and deviation 1; 0 where all its values are equal."""
    centred = q - q.mean(axis=-1, keepdims=True)
    deviation = centred.std(axis=-1, keepdims=True)
    return np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation > 0)
