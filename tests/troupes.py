"""Rollouts of several scripted players, and castings that follow a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scripted_envs import Counter

from actors.assemblers import NStep, Segments
from actors.casting import Assignment, Casting
from actors.exploration.none import NoExploration
from actors.player import Player
from actors.rollout import Rollout
from actors.stream import Stream
from repertory.specs import EnvSpec
from repertory.types import Acted, Array, ColumnSpec

SPEC = EnvSpec.from_env(Counter(), "scripted")  # two numbers to see, two actions


class Steady:
    """Always does the same, records the observation's last number, and notes each inference."""

    def __init__(self, action: int) -> None:
        self.extras: Mapping[str, ColumnSpec] = {"mark": ColumnSpec("<f4", ())}
        self.action = action
        self.seen: list[Array] = []

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        self.seen.append(observation.copy())
        return Acted(
            np.full(len(observation), self.action), {"mark": 100 * self.action + observation[:, -1]}
        )

    def weights(self) -> dict[str, Array]:
        return {}

    def load_weights(self, arrays: Mapping[str, Array]) -> None:
        pass


class Listed:
    """A casting by a list of (player, steps), in the order in which copies ask; then the last."""

    def __init__(self, *roles: tuple[int, int | None]) -> None:
        self._roles = roles
        self.next = 0
        self.returned: list[int] = []

    def assign(self, copies: Sequence[int]) -> list[Assignment] | None:
        assignments = []
        for _ in copies:
            player, steps = self._roles[min(self.next, len(self._roles) - 1)]
            assignments.append(Assignment(self.next, player, steps))
            self.next += 1
        return assignments

    def give_back(self, decisions: Sequence[int]) -> None:
        self.returned += decisions

    def state(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.next = state["next"]


def steady_players(copies: int) -> list[Player]:
    """Two: their actions are 0 and 1, places in the portfolio 10 and 11, versions 100 and 101."""
    none = NoExploration(NoExploration.Config(), SPEC, copies)
    return [Player(f"p{k}", 10 + k, Steady(k), none, SPEC, version=100 + k) for k in (0, 1)]


def replay_stream(copies: int, n: int = 1, gamma: float = 0.5, **options: Any) -> Stream:
    """Everybody's steps."""
    return Stream("replay", NStep(n, gamma), copies, readers=options.pop("readers", [0]), **options)


def queue_stream(copies: int, player: int, length: int, gamma: float = 0.5) -> Stream:
    """The steps of one player."""
    return Stream(
        f"p{player}",
        Segments(length, gamma),
        copies,
        readers=[player],
        own_only=True,
        extras={"mark": ColumnSpec("<f4", ())},
    )


def troupe(
    makers: Sequence[Callable[[], gym.Env[Any, Any]]],
    casting: Casting,
    streams: Sequence[Stream],
    *,
    mode: AutoresetMode = AutoresetMode.SAME_STEP,
    players: Sequence[Player] | None = None,
) -> Rollout:
    return Rollout(
        SyncVectorEnv(makers, autoreset_mode=mode),
        SPEC,
        players or steady_players(len(makers)),
        casting,
        streams,
        rng=np.random.default_rng(0),
    )
