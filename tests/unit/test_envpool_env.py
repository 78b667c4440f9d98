"""EnvPool's copies against Gymnasium's: the same episodes, ends and transitions from one policy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from actors.casting import Solo
from actors.rollout import Rollout, WorkerPlace, rollout_for
from actors.stepper import Stepper
from repertory.config import EnvConfig, RunConfig, resolve
from repertory.envs import make_vector_env, probe
from repertory.errors import EnvironmentFailure, UsageError
from repertory.parts import lookup
from repertory.types import TransitionBatch

pytest.importorskip("envpool")
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered.*")

COPIES = 4
CARTPOLE = EnvConfig(id="CartPole-v1", vector="envpool", copies=COPIES)


def balance(observation: np.ndarray) -> np.ndarray:
    """Keeps CartPole's pole up for as long as it is asked to."""
    return (observation[:, 2] + 0.5 * observation[:, 3] > 0).astype(np.int64)


def push_right(observation: np.ndarray) -> np.ndarray:
    return np.ones(len(observation), np.int64)


def swing(observation: np.ndarray) -> np.ndarray:
    """Pendulum without a torque."""
    return np.zeros((len(observation), 1), np.float32)


def pool_episodes(config: EnvConfig, act: Any, episodes: int) -> list[dict[str, Any]]:
    """The first finished ones, with where they began."""
    env = make_vector_env(config, copies=COPIES, seed=3, role="rollout")
    stepper = Stepper(env)
    observation = stepper.reset()
    running = [{"first": observation[copy], "rewards": []} for copy in range(COPIES)]
    finished: list[dict[str, Any]] = []
    while len(finished) < episodes:
        step = stepper.step(act(observation))
        assert step.valid.all()
        for copy in range(COPIES):
            running[copy]["rewards"].append(float(step.reward[copy]))
            if step.boundary[copy]:
                end = {"terminated": bool(step.terminated[copy]),
                       "truncated": bool(step.truncated[copy]),
                       "last": step.next_observation[copy]}  # fmt: skip
                finished.append({**running[copy], **end})
                running[copy] = {"first": step.observation[copy], "rewards": []}
        observation = step.observation
    env.close()
    return finished


def gymnasium_episode(config: EnvConfig, act: Any, first: np.ndarray) -> dict[str, Any]:
    """Gymnasium's environment, put where the other one began."""
    env = gym.make(config.id, max_episode_steps=config.max_episode_steps)
    env.reset(seed=0)
    inner: Any = env.unwrapped
    if config.id == "Pendulum-v1":
        inner.state = np.array([np.arctan2(first[1], first[0]), first[2]], np.float64)
    else:
        inner.state = first.astype(np.float64)
    observation, rewards, over = first, [], False
    while not over:
        action = act(observation[np.newaxis])[0]
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        over = terminated or truncated
    return {"rewards": rewards, "terminated": terminated, "truncated": truncated,
            "last": observation}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "act", "terminates"),
    [
        (CARTPOLE, push_right, True),
        (CARTPOLE, balance, False),  # to its limit of 500 steps
        (EnvConfig(id="CartPole-v1", vector="envpool", max_episode_steps=20), balance, False),
        (EnvConfig(id="Pendulum-v1", vector="envpool"), swing, False),
    ],
    ids=["falls", "stands", "short", "pendulum"],
)
def test_episodes_are_those_of_gymnasium(config: EnvConfig, act: Any, terminates: bool) -> None:
    for ours in pool_episodes(config, act, 6):
        theirs = gymnasium_episode(config, act, ours["first"])
        assert len(ours["rewards"]) == len(theirs["rewards"])
        assert (ours["terminated"], ours["truncated"]) == (terminates, not terminates)
        assert theirs["terminated"] == terminates
        # Float32 here and float64 there; Pendulum's angle went through a cosine.
        np.testing.assert_allclose(ours["rewards"], theirs["rewards"], rtol=1e-3, atol=1e-3)
        if act is not balance or len(ours["rewards"]) < 50:  # its switching amplifies rounding
            np.testing.assert_allclose(ours["last"], theirs["last"], rtol=1e-2, atol=1e-2)


def test_an_episode_that_terminates_with_its_last_step_is_not_truncated() -> None:
    lengths = [len(one["rewards"]) for one in pool_episodes(CARTPOLE, push_right, 8)]
    limit = max(lengths)  # the longest falls just then
    config = CARTPOLE.model_copy(update={"max_episode_steps": limit})
    episodes = pool_episodes(config, push_right, 8)
    assert [len(one["rewards"]) for one in episodes] == lengths
    assert all(one["terminated"] and not one["truncated"] for one in episodes)


def test_half_cheetah_is_that_of_gymnasium() -> None:
    config = EnvConfig(id="HalfCheetah-v5", vector="envpool")
    env = make_vector_env(config, copies=1, seed=0, role="rollout")
    other = gym.make(config.id)
    other.reset(seed=0)
    inner: Any = other.unwrapped
    observation, _ = env.reset()
    assert observation.dtype == np.float32
    inner.set_state(np.concatenate([[0.0], observation[0, :8]]), observation[0, 8:])
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = rng.uniform(-1, 1, (1, 6)).astype(np.float32)
        observation, reward, *_ = env.step(action)
        theirs, their_reward, *_ = other.step(action[0])
        # The state was given in float32 and contacts amplify what is missing.
        np.testing.assert_allclose(observation[0], theirs, rtol=1e-2, atol=1e-2)
        assert reward[0] == pytest.approx(float(their_reward), rel=1e-2, abs=1e-2)
    env.close()


def test_copies_and_runs_have_seeds_of_their_own() -> None:
    def first(seed: int) -> np.ndarray:
        env = make_vector_env(CARTPOLE, copies=COPIES, seed=seed, role="rollout")
        observation = env.reset()[0].copy()
        env.close()
        return observation

    np.testing.assert_array_equal(first(1), first(1))
    everything = np.concatenate([first(1), first(2)])
    assert len(np.unique(everything[:, 0])) == 2 * COPIES


def test_what_was_seen_stays_as_it_was() -> None:
    env = make_vector_env(CARTPOLE, copies=COPIES, seed=0, role="rollout")
    kept, _ = env.reset()
    before = kept.copy()
    for _ in range(50):
        env.step(np.ones(COPIES, np.int64))
    np.testing.assert_array_equal(kept, before)
    env.close()


# --- a rollout on it ----------------------------------------------------------------------------


def run_config(env_id: str = "CartPole-v1", algorithm: str = "dqn", **overrides: Any) -> RunConfig:
    given = {"env.vector": "envpool", "env.copies": COPIES, **overrides}
    if algorithm == "dqn":
        given["learner.random_steps"] = 0
    return resolve(env_id, [algorithm], overrides=given)


def rollout(config: RunConfig, worker: WorkerPlace | None = None) -> Rollout:
    spec = probe(config.env)
    torch.manual_seed(0)
    ((name, learner),) = config.learners.items()
    algorithm = lookup("algorithm", learner.algorithm)(learner, device=torch.device("cpu"), seed=0)
    policies = {name: algorithm.policy(algorithm.initial_state(spec))}
    return rollout_for(config, spec, policies, Solo(), worker)


def batch_of(made: Rollout, env_steps: int) -> tuple[TransitionBatch, Any]:
    collected = made.collect(env_steps)
    (batch,) = collected.batches.values()
    return batch, collected


@pytest.mark.parametrize("worker", [None, WorkerPlace(2, 1)])
def test_no_transition_crosses_a_reset(worker: WorkerPlace | None) -> None:
    made = rollout(run_config(), worker)
    batch, collected = batch_of(made, 2000)
    assert len(batch) == collected.env_steps == 2000
    assert len(collected.outcomes) > 20
    # From one step to the next the cart moves by its speed and no more: a reset would jump.
    moved = batch.next_observation[:, 0] - batch.observation[:, 0]
    np.testing.assert_allclose(moved, 0.02 * batch.observation[:, 1], atol=1e-5)
    # Each copy goes on from where it was, except where an episode ended.
    steps = len(batch) // COPIES
    following = batch.observation.reshape(steps, COPIES, -1)[1:]
    reached = batch.next_observation.reshape(steps, COPIES, -1)[:-1]
    ended = batch.discount.reshape(steps, COPIES)[:-1] == 0
    np.testing.assert_array_equal((following == reached).all(-1), ~ended)
    assert ended.any()
    fallen = np.abs(batch.next_observation[:, 2]) > 12 * 2 * np.pi / 360
    np.testing.assert_array_equal(batch.discount == 0, fallen)
    assert batch.observation.dtype == np.float32
    made.close()


def test_a_truncated_episode_still_has_a_future() -> None:
    made = rollout(run_config("Pendulum-v1", "sac"))
    batch, collected = batch_of(made, COPIES * 450)
    assert [outcome.length for outcome in collected.outcomes] == [200] * 2 * COPIES
    assert not any(outcome.terminated for outcome in collected.outcomes)
    assert (batch.discount > 0).all()
    assert np.abs(batch.action).max() <= 1
    made.close()


def test_a_run_repeats_itself() -> None:
    first, second = rollout(run_config()), rollout(run_config())
    ours, theirs = batch_of(first, 500)[0].columns(), batch_of(second, 500)[0].columns()
    for name, column in ours.items():
        np.testing.assert_array_equal(column, theirs[name])
    first.close()
    second.close()


def test_a_resumed_rollout_begins_new_episodes() -> None:
    made, resumed = rollout(run_config()), rollout(run_config())
    made.collect(1000)
    resumed.load_state(made.state())
    assert resumed.env_steps == made.env_steps
    batch, collected = batch_of(resumed, 400)
    assert len(batch) == 400
    assert all(outcome.length == outcome.episode_return for outcome in collected.outcomes)
    made.close()
    resumed.close()


def test_values_that_are_not_finite_lose_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rollout(run_config(**{"env.max_faults": 2}), WorkerPlace(0, 1))
    made.collect(COPIES)
    env: Any = made._stepper.env
    step = env._pool.step

    def poisoned(actions: Any) -> Any:
        seen, *rest = step(actions)
        seen = seen.copy()
        seen[1] = np.nan
        return seen, *rest

    monkeypatch.setattr(env, "_pool", _Replaced(env._pool, poisoned))
    batch, _ = batch_of(made, 1)
    assert made.broken_episodes == 1
    assert len(batch) == COPIES - 1
    assert np.isfinite(batch.next_observation).all()
    with pytest.raises(EnvironmentFailure, match=r"3 times in a row, env.max_faults is 2"):
        made.collect(10 * COPIES)


class _Replaced:
    """A pool that steps differently."""

    def __init__(self, pool: Any, step: Any) -> None:
        self._pool = pool
        self.step = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


# --- Atari --------------------------------------------------------------------------------------


def test_atari_games_have_our_preprocessing() -> None:
    pytest.importorskip("ale_py")
    config = run_config("ALE/Breakout-v5", **{"env.copies": 2, "replay.capacity": 1000})
    spec = probe(config.env)
    env = make_vector_env(config.env, copies=2, seed=0, role="rollout")
    stepper = Stepper(env)
    assert stepper.reset().shape == (2, *spec.observation_shape)
    rng = np.random.default_rng(0)
    lost, ends = 0, 0
    for _ in range(600):
        step = stepper.step(spec.to_env_action(spec.random_actions(2, rng)))
        assert step.next_observation.dtype == np.uint8
        lost += int(step.life_lost.sum())
        ends += int(step.terminated.sum())
    assert ends > 0
    assert lost >= 5 * ends  # Breakout has five lives, and a game goes on after each but the last
    env.close()


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"wrappers": ["a:B"]}, r"env.wrappers = \('a:B',\)"),
        ({"reward_function": "a:b"}, "env.reward_function = a:b"),
        ({"frame_stack": 4}, "env.frame_stack = 4"),
        ({"id": "package:Env-v0"}, "env.id = package:Env-v0"),
        ({"id": "ALE/Pong-v5", "atari": None}, "env.atari = None"),
    ],
)
def test_what_is_python_is_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"{named} with env.vector = envpool is refused"):
        EnvConfig(**{"id": "CartPole-v1", "vector": "envpool", **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id": "FrozenLake-v1"}, "must be the same: set env.vector to sync or async"),
        ({"kwargs": {"sutton_barto_reward": True}}, "env.kwargs.sutton_barto_reward is refused"),
    ],
)
def test_what_differs_is_refused_before_a_run(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        probe(EnvConfig(**{"id": "CartPole-v1", "vector": "envpool", **settings}))


def test_an_environment_that_it_does_not_have_is_named() -> None:
    gym.register("OnlyHere-v0", entry_point=lambda: gym.make("CartPole-v1").unwrapped)
    try:
        with pytest.raises(UsageError, match="has no environment OnlyHere-v0"):
            probe(EnvConfig(id="OnlyHere-v0", vector="envpool"))
    finally:
        del gym.registry["OnlyHere-v0"]
