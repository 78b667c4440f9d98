"""Environments that break are replaced, their episodes dropped, and the hopeless set aside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from plain_rollouts import only_batch, plain_rollout

from actors.assemblers import NStep, Segments
from actors.exploration.none import NoExploration
from actors.rollout import Rollout
from repertory.errors import EnvironmentFailure
from repertory.guarded_env import GuardedEnv
from repertory.specs import EnvSpec
from repertory.types import Acted

Fault = Callable[["Brittle"], None]


class Brittle(gym.Env[Any, Any]):
    """Episodes of `length` steps; observations are (life, step). Breaks once, in some way."""

    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, life: int, breaks_at: int | None, how: str, length: int = 4) -> None:
        self._life, self._breaks_at, self._how, self._length = life, breaks_at, how, length
        self._steps = self._total = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._total += 1
        reward = 1.0
        if self._total == self._breaks_at:
            if self._how == "raise":
                raise RuntimeError("on fire")
            if self._how == "reward":
                reward = float("nan")
            if self._how == "observation":
                return np.array([np.inf, 0], np.float32), 1.0, False, False, {}
        return self._observation(), reward, self._steps == self._length, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self._life, self._steps], np.float32)


def maker(*breaks_at: int | None, how: str = "raise") -> Callable[[], gym.Env[Any, Any]]:
    """Each life breaks at its step; the last entry holds for all further lives."""
    lives: Iterator[int] = iter(range(1000))

    def make() -> gym.Env[Any, Any]:
        life = next(lives)
        return Brittle(life, breaks_at[min(life, len(breaks_at) - 1)], how)

    return make


@pytest.mark.parametrize("how", ["raise", "reward", "observation"])
def test_one_that_breaks_is_made_anew_and_says_so(how: str) -> None:
    env = GuardedEnv(maker(3, None, how=how), max_faults=3)
    env.reset()
    for _ in range(2):
        assert "fault" not in env.step(0)[4]
    _, reward, terminated, truncated, info = env.step(0)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert "fault" in info
    observation, _ = env.reset()
    assert observation.tolist() == [1.0, 0.0]  # the second life
    assert env.quarantined is None


def test_finishing_an_episode_forgives() -> None:
    env = GuardedEnv(maker(6, 6, 6, None), max_faults=1)  # each life finishes one episode of 4
    for _ in range(3):
        env.reset()
        for _ in range(4):
            env.step(0)
        env.reset()
        env.step(0)
        assert "fault" in env.step(0)[4]
    assert env.quarantined is None


def test_too_many_faults_in_a_row_are_the_end() -> None:
    env = GuardedEnv(maker(1), max_faults=2)
    env.reset()
    for _ in range(2):
        env.step(0)
        assert env.quarantined is None
        env.reset()
    env.step(0)
    assert env.quarantined is not None
    assert "3 faults in a row, the last RuntimeError: on fire" in env.quarantined
    assert "fault" in env.reset()[1]
    assert "fault" in env.step(0)[4]


def test_an_environment_that_cannot_be_made_again_is_the_end_too() -> None:
    made = iter([Brittle(0, 1, "raise")])
    env = GuardedEnv(lambda: next(made), max_faults=2)
    env.reset()
    env.step(0)
    assert env.quarantined is not None


class Still:
    """A policy that always does the same."""

    extras: ClassVar[dict[str, Any]] = {}

    def act(self, observation: np.ndarray, rng: np.random.Generator | None) -> Acted:
        return Acted(np.zeros(len(observation), np.int64))


def rollout(assembler: Any, vector: Callable[..., Any], *makers: Callable[[], Any]) -> Rollout:
    guarded = [lambda make=make: GuardedEnv(make, max_faults=2) for make in makers]
    spec = EnvSpec.from_env(Brittle(0, None, "raise"), "Brittle")
    return plain_rollout(
        vector(guarded, autoreset_mode=AutoresetMode.SAME_STEP),
        spec,
        Still(),
        NoExploration(NoExploration.Config(), spec, len(makers)),
        assembler,
    )


# An AsyncVectorEnv makes one environment for itself, to see its spaces: that is a life too.
@pytest.mark.parametrize(("vector", "first"), [(SyncVectorEnv, 0), (AsyncVectorEnv, 1)])
def test_a_broken_episode_is_dropped_whole_and_the_other_copies_go_on(
    vector: Callable[..., Any], first: int
) -> None:
    # With 3-step windows nothing of an episode that breaks at its third step is complete.
    actors = rollout(NStep(3, 0.9), vector, maker(*[3] * (first + 1), None), maker(None))
    collected = actors.collect(16)
    actors.close()
    batch = only_batch(collected)
    assert batch is not None
    lives, starts = batch.observation[:, 0], batch.observation[:, 1]
    assert actors.broken_episodes == 1
    # The first life of the first copy left nothing; what its second one left begins at its start.
    assert sorted(set(lives)) == [0, first + 1]
    assert starts[lives == first + 1][0] == 0
    # No window reaches from one life into another.
    assert (batch.next_observation[:, 0] == lives).all()
    # Steps that broke are not counted: both copies took 8 or 9 steps, one of them broke.
    assert collected.env_steps == 17


def test_segments_begin_anew_after_a_broken_episode() -> None:
    actors = rollout(Segments(5, 0.9), SyncVectorEnv, maker(7, None))
    collected = actors.collect(14)
    actors.close()
    batch = only_batch(collected)
    assert batch is not None
    assert len(batch) == 2  # 5 steps of the first life, then 5 of the second
    assert batch.observation[:, :, 0].tolist() == [[0.0] * 5, [1.0] * 5]
    assert batch.observation[1, 0].tolist() == [1.0, 0.0]


def test_a_quarantined_copy_gives_nothing_more() -> None:
    actors = rollout(NStep(1, 0.9), SyncVectorEnv, maker(1), maker(None))
    collected = actors.collect(20)
    actors.close()
    batch = only_batch(collected)
    assert batch is not None
    assert len(batch) == 20
    assert (batch.observation[:, 0] == 0).all()


@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
def test_where_every_copy_is_set_aside_there_is_nothing_to_wait_for(
    vector: Callable[..., Any],
) -> None:
    actors = rollout(NStep(1, 0.9), vector, maker(1), maker(1))
    with pytest.raises(EnvironmentFailure, match="every copy of the environment is set aside"):
        actors.collect(20)
    actors.close()
