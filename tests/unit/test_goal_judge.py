"""Rewards and terminations for other goals, and environments that cannot tell them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from repertory.config import EnvConfig
from repertory.envs import make_env, probe
from repertory.errors import EnvironmentFailure, UsageError
from repertory.goal_judge import GoalJudge, check_goals
from repertory.specs import EnvSpec, GoalSpec

BIT_FLIP = "repertory.environments.bit_flip:BitFlip"


def config_of(name: str, **settings: Any) -> EnvConfig:
    return EnvConfig(id=f"goal_envs:{name}", **settings)


def judge_of(config: EnvConfig) -> GoalJudge:
    return GoalJudge(config, probe(config))


# Where the goals are


def test_goals_are_found_in_the_flat_observation():
    config = EnvConfig(id=BIT_FLIP, kwargs={"bits": 3})
    spec = probe(config)
    assert spec.goals == GoalSpec(achieved=(0, 3), desired=(3, 6))
    env = make_env(config)
    observation, _ = env.reset()
    own = env.unwrapped._observation()
    np.testing.assert_array_equal(observation[slice(*spec.goals.achieved)], own["achieved_goal"])
    np.testing.assert_array_equal(observation[slice(*spec.goals.desired)], own["desired_goal"])


def test_place_of_the_goals_survives_json():
    spec = probe(EnvConfig(id=BIT_FLIP, kwargs={"bits": 3}))
    assert EnvSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    "config",
    [
        EnvConfig(id="CartPole-v1"),
        EnvConfig(id="scripted_envs:Odd", kwargs={"space": "dict"}),
        config_of("UnevenGoals"),
    ],
    ids=["a vector", "another dict", "goals of two shapes"],
)
def test_environment_without_two_goals_of_one_shape_has_none(config):
    spec = probe(config)
    assert spec.goals is None
    with pytest.raises(UsageError, match=rf"observations of {spec.env_id} are not a dict of"):
        check_goals(config, spec)


# What the environment says of them


@pytest.mark.parametrize("name", ["Line", "ManyAtOnce"])
def test_rewards_are_the_environments_own(name):
    judge = judge_of(config_of(name))
    rewards = judge.rewards(np.float32([[1], [2], [2]]), np.float32([[4], [2.5], [2]]))
    np.testing.assert_array_equal(rewards, np.float32([-3, -0.5, 0]))
    assert rewards.dtype == np.float32


def test_termination_is_the_environments_own():
    judge = judge_of(config_of("Line"))
    ends = judge.terminated(np.float32([[1], [2]]), np.float32([[4], [2]]))
    np.testing.assert_array_equal(ends, [False, True])


def test_environment_without_compute_terminated_says_nothing_of_it():
    assert judge_of(config_of("EndsByItself")).terminated(np.ones((1, 1)), np.ones((1, 1))) is None


@pytest.mark.parametrize(
    "config",
    [config_of("Line"), config_of("ManyAtOnce"), config_of("EndsByItself"), EnvConfig(id=BIT_FLIP)],
    ids=lambda config: config.id,
)
def test_environments_that_keep_their_promises_are_taken(config):
    check_goals(config, probe(config))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (config_of("NoReward"), r"goal_envs:NoReward has no compute_reward\("),
        (config_of("PaysMore"), r"PaysMore gave the reward .* where its compute_reward says"),
        (config_of("EndsEarlier"), r"EndsEarlier says terminated = True .* says False"),
        (
            config_of("Line", wrappers=("scripted_envs:TimesTen",)),
            r"Line gave the reward -.*0 where its compute_reward says",
        ),
        (
            config_of("Line", reward_function="scripted_envs:shaped_reward"),
            r"env.reward_function = scripted_envs:shaped_reward is refused: .* wrapper instead",
        ),
    ],
    ids=["no reward", "pays more", "ends earlier", "rewards scaled by a wrapper", "shaped reward"],
)
def test_environments_that_cannot_judge_are_refused_by_name(config, message):
    spec = probe(config_of(config.id.partition(":")[2]))
    with pytest.raises(UsageError, match=message):
        check_goals(config, spec)


def test_stacked_goals_are_refused():
    spec = probe(config_of("Line"))
    with pytest.raises(UsageError, match=r"env.frame_stack = 2 is refused.*set env.frame_stack=1"):
        check_goals(config_of("Line", frame_stack=2), spec)


def test_reward_that_needs_what_nobody_recorded_is_refused():
    config = config_of("NeedsInfo")
    with pytest.raises(EnvironmentFailure, match=r"NeedsInfo: compute_reward.* raised KeyError"):
        check_goals(config, probe(config))
