"""h-DQN, hierarchical deep Q-learning (Kulkarni et al. 2016, arXiv 1604.06057).

    controller        y = 1{s' reaches g} + discount max_a Q'(s', g, a)     nothing follows a goal
    meta-controller   y = F + discount max_h Q'(s_N, h)

F is the sum of the environment's rewards from s, where the goal g was set, until s_N, where it was
reached, given up or cut by the episode's end. The controller never sees the environment's reward,
and the meta-controller never sees the intrinsic one.

There are two tables: one of steps, which other learners may share, and one of such stretches
(`actors.stretches`). The intrinsic reward is a function of what a step holds, its goal and where it
led, so it is computed here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from learner.adam import Adam
from learner.optimization import (
    adam,
    gradient_step,
    polyak_update,
    seeded_initialisation,
    target_copy,
)
from learner.tensors import TensorBatch, to_tensors
from repertory.config import OffPolicyConfig
from repertory.goals import FROM_ENVIRONMENT
from repertory.policies.goal_directed import NO_GOAL, GoalDirectedPolicy
from repertory.policies.policy import policy_settings
from repertory.schedule import Schedule
from repertory.settings import ExplorationSettings, part_default
from repertory.specs import EnvSpec
from repertory.types import Array, Sample, TransitionBatch, UpdateResult


@dataclass
class State:
    policy: GoalDirectedPolicy  # both networks
    target: GoalDirectedPolicy
    controller_optimizer: Adam
    meta_optimizer: Adam
    updates: int = 0


class HDQN:
    data = "off_policy"
    action_kinds = frozenset({"discrete"})
    observation_kinds = frozenset({"vector"})
    needs_bounds = False
    paper = "arXiv 1604.06057"

    class Config(OffPolicyConfig):
        stretches: ClassVar[bool] = True
        algorithm: str = "h_dqn"
        lr: float = Field(default=2.5e-4, ge=0, le=1)
        batch_size: int = Field(default=64, ge=1)
        n_step: int = Field(default=1, ge=1, le=1)  # within n steps the goal may have changed
        normalize_reward: Literal[False] = False  # the controller's are 0 and 1
        random_steps: int = Field(default=0, ge=0)  # both epsilons start at 1 anyway
        train_every: int = Field(default=4, ge=1)
        updates_per_step: float = Field(default=0.25, gt=0)
        own_share: float = Field(default=1.0, ge=1, le=1)  # others know nothing of its goals
        exploration: ExplorationSettings = part_default("epsilon_greedy")  # of the controller
        goals: str = FROM_ENVIRONMENT  # or `package.module:function`, see repertory.goals
        goal_steps: int = Field(default=500, ge=1)  # after which a goal is given up
        goal_epsilon: Schedule = Schedule(start=1.0, final=0.1, steps=10_000)
        target_period: int = Field(default=500, ge=1)  # updates from one move to the next
        tau: float = Field(default=1.0, gt=0, le=1)  # how far the targets move: 1 is a copy

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed

    def initial_state(self, spec: EnvSpec) -> State:
        config = self.config
        policy_config = GoalDirectedPolicy.Config(
            **policy_settings(config),
            goals=config.goals,
            goal_steps=config.goal_steps,
            goal_epsilon=config.goal_epsilon,
        )
        with seeded_initialisation(self.seed):
            policy = GoalDirectedPolicy(policy_config, spec).to(self.device)
        return State(
            policy=policy,
            target=target_copy(policy),
            controller_optimizer=adam(config.lr, policy.controller),
            meta_optimizer=adam(config.lr, policy.meta_controller),
        )

    def policy(self, state: State) -> GoalDirectedPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        config, policy = self.config, state.policy
        steps = replace(sample, batch=with_intrinsic_reward(sample.batch, policy))
        batch = to_tensors(steps, policy.normalizer, self.device, learn_moments=True)
        goal = batch.extras["goal"]
        index = (goal - 1).clamp(min=0)
        target = controller_target(state, batch, index)
        q = chosen(policy.controller(batch.observation, index), batch.action)
        loss = td_loss(q, target, batch.weights * (goal != NO_GOAL))
        norm = gradient_step(state.controller_optimizer, loss, config.max_grad_norm)
        metrics = {
            "controller_loss": loss.detach(),
            "controller_q": q.detach().mean(),
            "controller_grad_norm": norm,
            "intrinsic_reward": batch.reward.mean(),
        }
        if sample.stretches is not None:
            metrics |= self._update_meta(state, sample.stretches)

        state.updates += 1
        if state.updates % config.target_period == 0:
            polyak_update(state.target, policy, config.tau)
        return UpdateResult(metrics, priorities=(q.detach() - target).abs())

    def _update_meta(self, state: State, stretches: TransitionBatch) -> dict[str, Tensor]:
        ones = np.ones(len(stretches), stretches.reward.dtype)
        sample = Sample(stretches, np.zeros(len(stretches), np.int64), ones)
        batch = to_tensors(sample, state.policy.normalizer, self.device, learn_moments=False)
        target = meta_target(state, batch)
        q = chosen(state.policy.meta_controller(batch.observation), batch.extras["goal"] - 1)
        loss = td_loss(q, target, batch.weights)
        norm = gradient_step(state.meta_optimizer, loss, self.config.max_grad_norm)
        return {
            "meta_loss": loss.detach(),
            "meta_q": q.detach().mean(),
            "meta_grad_norm": norm,
            "stretch_return": batch.reward.mean(),
        }


def with_intrinsic_reward(batch: TransitionBatch, policy: GoalDirectedPolicy) -> TransitionBatch:
    """The controller's view of its steps: 1 where the goal is reached, and nothing after it."""
    reached: Array = policy.is_reached(batch.next_observation, batch.extras["goal"])
    return replace(
        batch,
        reward=reached.astype(batch.reward.dtype),
        discount=np.where(reached, 0, batch.discount).astype(batch.discount.dtype),
    )


@torch.no_grad()
def controller_target(state: State, batch: TensorBatch, index: Tensor) -> Tensor:
    """y [B]; `index` [B] are the goals from 0, and the reward is the intrinsic one."""
    next_q = state.target.controller(batch.next_observation, index)
    return batch.reward + batch.discount * next_q.amax(-1)


@torch.no_grad()
def meta_target(state: State, batch: TensorBatch) -> Tensor:
    """y [B] of stretches."""
    next_q = state.target.meta_controller(batch.next_observation)
    return batch.reward + batch.discount * next_q.amax(-1)


def chosen(q: Tensor, index: Tensor) -> Tensor:
    """Q of one choice of each row: [B, choices], [B] -> [B]."""
    return q.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def td_loss(q: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    assert q.shape == target.shape == weights.shape
    return (weights * F.smooth_l1_loss(q, target, reduction="none")).mean()
