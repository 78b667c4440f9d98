"""Evaluation: no noise, nothing learned, environments and seeds of its own, no favourites."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from plain_rollouts import only_batch, plain_rollout

from actors.assemblers import NStep
from actors.evaluator import MAX_COPIES, evaluate
from actors.rollout import Rollout
from repertory.config import EnvConfig
from repertory.envs import make_env, make_vector_env, probe
from repertory.parts import lookup
from repertory.policies.policy import build_policy
from repertory.types import Acted, Array, ColumnSpec


class Scripted:
    """Always the same action, in our units; with a generator a wild one."""

    def __init__(self, action) -> None:
        self.extras: Mapping[str, ColumnSpec] = {}
        self.seen: list[Array] = []
        self.generators: list[np.random.Generator | None] = []
        self._action = np.asarray(action)

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        self.seen.append(observation.copy())
        self.generators.append(rng)
        action = np.broadcast_to(self._action, (len(observation), *self._action.shape)).copy()
        return Acted(action if rng is None else np.zeros_like(action))

    def weights(self) -> dict[str, Array]:
        return {}

    def load_weights(self, arrays: Mapping[str, Array]) -> None:
        pass


def returns(policy, config: EnvConfig, *, episodes: int, seed: int = 0, **options) -> list[float]:
    return evaluate(policy, config, probe(config), episodes=episodes, seed=seed, **options)


PENDULUM = EnvConfig(id="Pendulum-v1", max_episode_steps=20)
LENGTHS = EnvConfig(id="scripted_envs:Seeded", kwargs={"longest": 30})  # the return is the length


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("deterministic", "Pendulum-v1"),
        ("squashed_gaussian", "Pendulum-v1"),
        ("stochastic", "Pendulum-v1"),
        ("stochastic", "CartPole-v1"),
        ("greedy_q", "CartPole-v1"),
    ],
)
def test_twice_the_same_policy_gives_twice_the_same_returns(name, id):
    config = EnvConfig(id=id, max_episode_steps=20)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = build_policy(lookup("policy", name).Config(hidden_sizes=(16,)), probe(config))
    first, second = (returns(policy, config, episodes=3) for _ in range(2))
    assert first == second


def test_policy_is_asked_for_its_deterministic_action():
    policy = Scripted(1)
    returns(policy, LENGTHS, episodes=3)
    assert set(policy.generators) == {None}


def test_policy_does_not_change_by_being_evaluated():
    spec = probe(PENDULUM)
    config = lookup("policy", "squashed_gaussian").Config(
        hidden_sizes=(8,), normalize_observation=True
    )
    policy = build_policy(config, spec)
    before = policy.weights()
    returns(policy, PENDULUM, episodes=2)
    np.testing.assert_equal(policy.weights(), before)


@pytest.mark.parametrize("exploration", ["gaussian", "ornstein_uhlenbeck"])
def test_training_goes_on_as_if_there_had_been_no_evaluation(exploration):
    spec, part = probe(PENDULUM), lookup("exploration", exploration)
    settings = part.Config(std={"start": 0.5, "final": 0.1, "steps": 100})

    def make_rollout() -> Rollout:
        return plain_rollout(
            make_vector_env(PENDULUM, copies=2, seed=0, role="rollout"),
            spec,
            Scripted(np.float32([0.5])),
            part(settings, spec, 2),
            NStep(1, 0.9),
        )

    undisturbed, disturbed = make_rollout(), make_rollout()
    for rollout in (undisturbed, disturbed):
        rollout.collect(30)
    before = copy.deepcopy(disturbed.state())
    returns(disturbed.players[0].policy, PENDULUM, episodes=3)
    np.testing.assert_equal(disturbed.state(), before)
    np.testing.assert_equal(
        only_batch(disturbed.collect(60)).columns(), only_batch(undisturbed.collect(60)).columns()
    )
    undisturbed.close()
    disturbed.close()


@pytest.mark.parametrize("episodes", [1, 7, MAX_COPIES, 23])
def test_exactly_so_many_returns(episodes):
    assert len(returns(Scripted(0), LENGTHS, episodes=episodes)) == episodes


def played_by_hand(copy_number: int, episodes: int, role: str = "evaluation") -> list[float]:
    env = make_env(LENGTHS, seed=5, role=role, copy=copy_number)
    found = []
    for _ in range(episodes):
        env.reset()
        total, terminated = 0.0, False
        while not terminated:
            _, reward, terminated, _, _ = env.step(0)
            total += float(reward)
        found.append(total)
    return found


def test_each_copy_plays_its_share_whatever_the_lengths():
    # 23 episodes of 10 copies: three each for the first three, two for the others. Taking the
    # first 23 to finish instead would favour short ones.
    quota = [3, 3, 3] + [2] * 7
    expected = [value for k, share in enumerate(quota) for value in played_by_hand(k, share)]
    assert len(set(expected)) > 5
    assert returns(Scripted(0), LENGTHS, episodes=23, seed=5) == expected


def test_mean_is_not_biased_to_short_episodes():
    found = returns(Scripted(0), LENGTHS, episodes=400)
    # Lengths are uniform from 1 to 30: mean 15.5, deviation 8.66; five deviations of the mean.
    assert np.mean(found) == pytest.approx(15.5, abs=5 * 8.66 / np.sqrt(400))


def test_episodes_are_not_those_of_training():
    evaluated = Scripted(0)
    returns(evaluated, EnvConfig(id="CartPole-v1"), episodes=4, seed=0)
    env = make_vector_env(EnvConfig(id="CartPole-v1"), copies=4, seed=0, role="rollout")
    trained, _ = env.reset()
    env.close()
    assert not np.isin(evaluated.seen[0], trained).any()


def test_play_has_episodes_of_its_own():
    first = []
    for role in ("evaluation", "play"):
        policy = Scripted(0)
        returns(policy, EnvConfig(id="CartPole-v1"), episodes=4, role=role)
        first.append(policy.seen[0])
    assert not np.isin(*first).any()


def test_other_seeds_give_other_episodes():
    assert returns(Scripted(0), LENGTHS, episodes=9, seed=0) != returns(
        Scripted(0), LENGTHS, episodes=9, seed=1
    )


def test_actions_are_mapped_to_the_environments_range():
    config = EnvConfig(id="probes:P7ShiftedRange")  # pays 1 at 2.4 of [0, 3]
    found = returns(Scripted(np.float32([0.6])), config, episodes=3)
    assert found == pytest.approx([1, 1, 1], abs=1e-12)  # squares of float32 roundings


def test_rewards_are_those_of_the_reward_function():
    config = EnvConfig(
        id="scripted_envs:Counter",
        kwargs={"lengths": [2]},
        reward_function="scripted_envs:shaped_reward",
    )
    assert returns(Scripted(0), config, episodes=2) == [1 + 1000 + 3] * 2


def test_copies_stay_in_this_process_even_where_training_has_others():
    config = LENGTHS.model_copy(update={"vector": "async"})
    assert returns(Scripted(0), config, episodes=5) == returns(Scripted(0), LENGTHS, episodes=5)


def test_episode_without_an_end_is_cut():
    config = EnvConfig(id="scripted_envs:Counter", kwargs={"lengths": [10**6]})
    assert returns(Scripted(0), config, episodes=2, step_limit=3) == [1 + 2 + 3] * 2


def test_episode_after_one_that_was_cut_is_a_new_one():
    config = EnvConfig(id="scripted_envs:Counter", kwargs={"lengths": [10**6]})
    found = returns(Scripted(0), config, episodes=2 * MAX_COPIES, step_limit=3)
    assert found[:2] == [1 + 2 + 3, 11 + 12 + 13]
