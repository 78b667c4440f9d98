"""Atari's preprocessing on a scripted game; the real games are in integration/test_atari.py."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from plain_rollouts import only_batch, plain_rollout

from actors.assemblers import Assembler, NStep, Segments
from actors.evaluator import evaluate
from actors.rollout import Rollout
from repertory.atari import AtariConfig, AtariPreprocessing, area_weights
from repertory.config import EnvConfig, resolve
from repertory.envs import make_env, make_vector_env, probe
from repertory.errors import UsageError
from repertory.parts import lookup
from repertory.specs import EnvSpec
from repertory.types import Acted

HEIGHT, WIDTH = 210, 160


class Game(gym.Env[Any, Any]):
    """Single grey frames, all pixels `tick`, and on odd ticks a bright spot; it ends at `length`.

    Every tick pays its own number. Of three lives one is lost at each of `lost_at`.
    """

    def __init__(self, length: int = 100, lost_at: tuple[int, ...] = ()) -> None:
        self.observation_space = spaces.Box(0, 255, (HEIGHT, WIDTH), np.uint8)
        self.action_space = spaces.Discrete(2)
        self.length, self.lost_at = length, lost_at
        self.actions: list[int] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.tick, self.lives, self.actions = 0, 3, []
        return self.frame(), {"lives": self.lives}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.tick < self.length, "stepped on after the end"
        self.tick += 1
        self.actions.append(int(action))
        self.lives -= self.tick in self.lost_at
        over = self.tick == self.length
        return self.frame(), float(self.tick), over, False, {"lives": self.lives}

    def frame(self) -> np.ndarray:
        frame = np.full((HEIGHT, WIDTH), self.tick, np.uint8)
        if self.tick % 2:
            frame[100:110, 80:90] = 200
        return frame


def game(length: int = 100, lost_at: tuple[int, ...] = (), **settings: Any) -> AtariPreprocessing:
    return AtariPreprocessing(Game(length, lost_at), AtariConfig(**({"noop_max": 0} | settings)))


def test_resize_is_the_average_over_area() -> None:
    """84 rows of 210 are 5 halves each, 84 columns of 160 are 40 of 21sts: repeat, then average."""
    image = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH)).astype(np.float64)
    fine = image.repeat(2, axis=0).repeat(21, axis=1)
    expected = fine.reshape(84, 5, 84, 40).mean((1, 3))
    ours = area_weights(HEIGHT, 84) @ image @ area_weights(WIDTH, 84).T
    np.testing.assert_allclose(ours, expected, rtol=1e-5)  # weights are float32


def test_observation_is_one_small_grey_frame_in_bytes() -> None:
    env = game()
    observation, _ = env.reset(seed=0)
    assert observation.shape == env.observation_space.shape == (1, 84, 84)
    assert observation.dtype == env.observation_space.dtype == np.uint8
    assert env.step(0)[0].shape == (1, 84, 84)


def test_action_is_held_and_rewards_are_summed() -> None:
    env = game()
    env.reset(seed=0)
    _, reward, *_ = env.step(1)
    assert env.unwrapped.actions == [1, 1, 1, 1]  # type: ignore[attr-defined]
    assert reward == 1 + 2 + 3 + 4


@pytest.mark.parametrize("skip", [1, 2, 4])
def test_observation_is_the_brighter_of_the_last_two_frames(skip: int) -> None:
    """The spot is on odd ticks only: after two or four ticks the frame before the last has it."""
    env = game(frame_skip=skip)
    env.reset(seed=0)
    image = env.step(0)[0][0]
    assert image[0, 0] == skip
    assert image[41, 44] == 200


def test_end_within_the_skipped_frames_stops_the_game() -> None:
    env = game(length=6)
    env.reset(seed=0)
    env.step(0)
    observation, reward, terminated, truncated, _ = env.step(0)
    assert (reward, terminated, truncated) == (5 + 6, True, False)
    assert observation[0, 0, 0] == 6


def test_no_op_starts_are_drawn_anew_from_the_seed_of_each_episode() -> None:
    env = game(noop_max=30)
    starts = []
    for seed in (*range(40), 0):
        env.reset(seed=seed)
        starts.append(env.unwrapped.tick)  # type: ignore[attr-defined]
        assert set(env.unwrapped.actions) <= {0}  # type: ignore[attr-defined]
    assert starts[0] == starts[-1]
    assert 1 <= min(starts) < 8
    assert 22 < max(starts) <= 30


def test_game_that_ends_while_nothing_is_done_begins_anew() -> None:
    env = game(length=5, noop_max=30)
    for seed in range(10):
        env.reset(seed=seed)
        assert env.unwrapped.tick < 5  # type: ignore[attr-defined]


def test_lost_life_is_said_once_and_the_game_goes_on() -> None:
    env = game(lost_at=(6, 12))
    env.reset(seed=0)
    steps = [env.step(0) for _ in range(4)]
    assert ["life_lost" in info for *_, info in steps] == [False, True, True, False]
    assert [info["lives"] for *_, info in steps] == [3, 2, 1, 1]
    assert not any(terminated or truncated for _, _, terminated, truncated, _ in steps)


def test_lives_of_the_last_game_do_not_count_in_the_next() -> None:
    env = game(lost_at=(2,))
    for _ in range(2):
        env.reset(seed=0)
        assert "life_lost" in env.step(0)[4]


def test_lost_life_is_not_said_where_it_is_no_end() -> None:
    env = game(lost_at=(2,), life_loss_ends=False)
    env.reset(seed=0)
    assert "life_lost" not in env.step(0)[4]


# What learners see of it, and what is reported


class Still:
    """Always the first action."""

    extras: dict[str, Any] = {}  # noqa: RUF012

    def act(self, observation: np.ndarray, rng: object) -> Acted:
        return Acted(np.zeros(len(observation), np.int64))


LIVES = EnvConfig(id="scripted_envs:Lives")


def lives_rollout(assembler: Assembler, *, copies: int = 1, **options: Any) -> Rollout:
    spec: EnvSpec = probe(LIVES)
    none = lookup("exploration", "none")
    return plain_rollout(
        make_vector_env(LIVES, copies=copies, seed=0, role="rollout"),
        spec,
        Still(),
        none(none.Config(), spec, copies),
        assembler,
        **options,
    )


@pytest.mark.parametrize("copies", [1, 3])
def test_lost_life_is_an_end_for_learning_and_the_return_is_of_the_whole_game(copies: int) -> None:
    """Six steps of 5 each, lives lost at the second and the fourth, cut at the sixth."""
    collected = lives_rollout(NStep(1, 0.9), copies=copies, clip_reward=True).collect(6 * copies)
    batch = only_batch(collected)
    assert batch is not None
    discount = batch.discount.reshape(6, copies)
    for copy in range(copies):
        np.testing.assert_allclose(discount[:, copy], [0.9, 0, 0.9, 0, 0.9, 0.9], rtol=1e-6)
    assert set(batch.reward) == {1.0}  # clipped
    assert [o.episode_return for o in collected.outcomes] == [30.0] * copies
    assert [o.length for o in collected.outcomes] == [6] * copies


def test_life_after_begins_where_the_one_before_ended() -> None:
    batch = only_batch(lives_rollout(NStep(1, 0.9)).collect(6))
    assert batch is not None
    assert batch.observation[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.next_observation[:, 0].tolist() == [1, 2, 3, 4, 5, 6]


def test_no_return_of_several_steps_reaches_over_a_lost_life() -> None:
    """Three-step windows, by first observation: (reward in steps, discount)."""
    batch = only_batch(lives_rollout(NStep(3, 0.5)).collect(6))
    assert batch is not None
    found = {
        int(first): (reward / 5, discount)
        for first, reward, discount in zip(
            batch.observation[:, 0], batch.reward, batch.discount, strict=True
        )
    }
    one, two = (1.0, 0.0), (1.5, 0.0)
    assert found == {0: two, 1: one, 2: two, 3: one, 4: (1.5, 0.25), 5: (1.0, 0.5)}


def test_segment_marks_a_lost_life() -> None:
    batch = only_batch(lives_rollout(Segments(6, 0.9)).collect(6))
    assert batch is not None
    assert batch.extras["boundary"][0].tolist() == [False, True, False, True, False, True]
    assert (batch.discount[0] == 0).tolist() == [False, True, False, True, False, False]


def test_discounted_returns_are_of_what_is_learned() -> None:
    rollout = lives_rollout(NStep(1, 0.5), clip_reward=True, return_gamma=0.5)
    batch = only_batch(rollout.collect(6))
    assert batch is not None
    assert batch.extras["discounted_return"].tolist() == [1, 1.5, 1, 1.5, 1, 1.5]


def test_rewards_are_learned_as_they_came_unless_clipped() -> None:
    batch = only_batch(lives_rollout(NStep(1, 0.9)).collect(6))
    assert batch is not None
    assert set(batch.reward) == {5.0}


def test_evaluation_knows_neither_lives_nor_clipping() -> None:
    returns = evaluate(Still(), LIVES, probe(LIVES), episodes=3, seed=0)  # type: ignore[arg-type]
    assert returns == [30.0] * 3


# Settings


def test_preprocessing_and_stack_are_on_by_themselves_for_atari() -> None:
    config = resolve("ALE/MsPacman-v5", ["dqn"], overrides={"env.atari.noop_max": 7}).env
    assert config.atari == AtariConfig(noop_max=7)
    assert config.frame_stack == 4


def test_preprocessing_can_be_switched_off() -> None:
    assert EnvConfig(id="ALE/MsPacman-v5", atari=None, frame_stack=2).atari is None
    assert EnvConfig(id="ALE/MsPacman-v5", atari=None, frame_stack=2).frame_stack == 2


def test_preprocessing_of_what_is_no_atari_game_is_refused() -> None:
    with pytest.raises(UsageError, match=r"env.atari is for the games .* not for CartPole-v1"):
        resolve("CartPole-v1", ["dqn"], overrides={"env.atari.noop_max": 3})


@pytest.mark.parametrize("settings", [{}, {"atari": None}])
def test_missing_emulator_is_named_with_the_extra(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UsageError, match=r"ALE/Pong-v5 needs ale-py.*the extra `atari`"):
        make_env(EnvConfig(id="ALE/Pong-v5", **settings))


def test_arguments_that_the_preprocessing_sets_are_refused() -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(UsageError, match=r"env.kwargs.frameskip = 2 is refused.*frame_skip"):
        make_env(EnvConfig(id="ALE/Pong-v5", kwargs={"frameskip": 2}))
