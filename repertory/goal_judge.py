"""What a goal environment says of goals that it was not given: rewards and terminations.

A goal environment has dict observations (`observation`, `achieved_goal`, `desired_goal`) and

    compute_reward(achieved_goal, desired_goal, info)        the reward of arriving at achieved_goal
    compute_terminated(achieved_goal, desired_goal, info)    whether that ends the episode; optional

as Gymnasium-Robotics defines them. The judge asks an environment of its own, so that it makes no
difference in which process the copies of a rollout live. Nobody has recorded `info`: it is empty.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation

from repertory.config import EnvConfig
from repertory.envs import make_env
from repertory.errors import EnvironmentFailure, UsageError
from repertory.specs import EnvSpec, GoalSpec
from repertory.types import Array

TRIED_STEPS = 20
TOLERANCE = 1e-4  # goals went through float32


class GoalJudge:
    """Goals are rows of flat observations, [N, G]; each is judged by itself, as the API has it."""

    def __init__(self, config: EnvConfig, spec: EnvSpec) -> None:
        self.goals = _goals_of(config, spec)
        self._env_id = spec.env_id
        self._env = make_env(config)
        self._goal_space = _goal_space(self._env)
        if not self._env.has_wrapper_attr("compute_reward"):
            self._env.close()
            raise UsageError(
                f"learner.relabel is refused: {spec.env_id} has no compute_reward(achieved_goal, "
                "desired_goal, info); give it one, or set learner.relabel=null"
            )
        self._compute_reward = self._env.get_wrapper_attr("compute_reward")
        self._compute_terminated = (
            self._env.get_wrapper_attr("compute_terminated")
            if self._env.has_wrapper_attr("compute_terminated")
            else None
        )
        self._env.reset()  # some know their goals only then

    def rewards(self, achieved: Array, desired: Array) -> Array:
        """[N] float32, of the steps that led to `achieved` [N, G] when `desired` was wanted."""
        values = self._judged(self._compute_reward, "compute_reward", achieved, desired)
        return np.array(values, np.float32)

    def terminated(self, achieved: Array, desired: Array) -> Array | None:
        """[N] bool; None where the environment does not say that it depends on the goal."""
        if self._compute_terminated is None:
            return None
        return np.array(
            self._judged(self._compute_terminated, "compute_terminated", achieved, desired), bool
        )

    def _judged(self, method: Any, name: str, achieved: Array, desired: Array) -> list[Any]:
        space = self._goal_space
        try:
            return [
                # Where it is written for many at once, one gives an array of one.
                np.asarray(
                    method(spaces.unflatten(space, here), spaces.unflatten(space, wanted), {})
                ).item()
                for here, wanted in zip(achieved, desired, strict=True)
            ]
        except Exception as error:
            reason = " ".join(str(error).split())
            raise EnvironmentFailure(
                f"{self._env_id}: {name}(achieved_goal, desired_goal, {{}}) raised "
                f"{type(error).__name__}: {reason}"
            ) from error

    def check(self, spec: EnvSpec) -> None:
        """Plays a few random steps: what `step` returns must be what the methods say of it."""
        rng = np.random.default_rng(0)
        self._env.reset()
        for _ in range(TRIED_STEPS):
            action = spec.to_env_action(spec.random_actions(1, rng))[0]
            observation, reward, terminated, truncated, _ = self._env.step(
                int(action) if spec.action_kind == "discrete" else action
            )
            achieved = observation[None, slice(*self.goals.achieved)]  # [1, G]
            desired = observation[None, slice(*self.goals.desired)]
            judged = float(self.rewards(achieved, desired)[0])
            if not math.isclose(float(reward), judged, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                raise UsageError(
                    f"learner.relabel is refused: {self._env_id} gave the reward {float(reward):g} "
                    f"where its compute_reward says {judged:g} with an empty info; make the two "
                    "agree, or set learner.relabel=null"
                )
            ends = self.terminated(achieved, desired)
            if ends is not None and bool(ends[0]) != bool(terminated):
                raise UsageError(
                    f"learner.relabel is refused: {self._env_id} says terminated = {terminated} "
                    f"where its compute_terminated says {bool(ends[0])}; make the two agree, or "
                    "set learner.relabel=null"
                )
            if terminated or truncated:
                self._env.reset()

    def close(self) -> None:
        self._env.close()


def check_goals(config: EnvConfig, spec: EnvSpec) -> None:
    """Whether goals can be relabelled here, said before anything starts."""
    judge = GoalJudge(config, spec)
    try:
        judge.check(spec)
    finally:
        judge.close()


def _goals_of(config: EnvConfig, spec: EnvSpec) -> GoalSpec:
    if config.reward_function is not None:
        raise UsageError(
            f"learner.relabel with env.reward_function = {config.reward_function} is refused: "
            "rewards for other goals come from the environment's compute_reward; change that "
            "with a wrapper instead"
        )
    if config.frame_stack > 1:
        raise UsageError(
            f"learner.relabel with env.frame_stack = {config.frame_stack} is refused: goals are "
            "not stacked; set env.frame_stack=1"
        )
    if spec.goals is None:
        raise UsageError(
            f"learner.relabel is refused: the observations of {spec.env_id} are not a dict of "
            "observation, achieved_goal and desired_goal, both goals of one shape; set "
            "learner.relabel=null"
        )
    return spec.goals


def _goal_space(env: gym.Env[Any, Any]) -> spaces.Space[Any]:
    while not isinstance(env, FlattenObservation):
        assert isinstance(env, gym.Wrapper)
        env = env.env
    space = env.env.observation_space
    assert isinstance(space, spaces.Dict)
    return space["desired_goal"]
