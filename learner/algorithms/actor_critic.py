"""Actor-critic with a bootstrapped critic (Sutton & Barto 2018, 13.5), batch by batch as in CS285.

    critic: `target_updates` times: y = r + discount V(s'), then
            `gradient_steps_per_target_update` steps to minimise (V(s) - y)^2 with y held
    policy: one step to minimise -E[log pi(a|s) A] with A = r + discount V(s') - V(s)

A is that of the critic after it has learned. Where older weights made a segment, both are
V-trace's (arXiv 1802.01561) of one step: y = V(s) + rho (r + discount V(s') - V(s)) and
A = rho (r + discount V(s') - V(s)), with rho = min(rho_clip, pi / mu).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor

from learner.critics import StateValue
from learner.experience import (
    Experience,
    Metrics,
    age_metrics,
    learn_moments,
    since_acted,
    stale,
    standardized,
)
from learner.optimization import gradient_step
from learner.policy_gradient import State, first_state, policy_step
from learner.tensors import to_tensors
from learner.value_regression import explained_variance, value_loss
from repertory.config import HiddenSizes, OnPolicyConfig
from repertory.policies.stochastic import StochasticPolicy
from repertory.specs import EnvSpec
from repertory.types import Sample, UpdateResult


@dataclass(frozen=True, slots=True)
class Transitions:
    """Flat columns [N]; where a segment is cut makes no difference to one-step targets."""

    observation: Tensor
    action: Tensor
    log_prob: Tensor  # of the policy that acted; where segments are old, of the one now
    reward: Tensor
    discount: Tensor
    next_observation: Tensor
    rho: Tensor  # 1 where the policy that acted is the one that learns


class ActorCritic:
    data = "on_policy"
    action_kinds = frozenset({"continuous", "discrete", "multi_discrete"})
    observation_kinds = frozenset({"vector", "pixels"})
    needs_bounds = False
    paper = "Sutton & Barto 2018, 13.5"

    class Config(OnPolicyConfig):
        algorithm: str = "actor_critic"
        lr: float = Field(default=5e-3, ge=0, le=1)  # of the policy
        hidden_sizes: HiddenSizes = (64, 64)
        segment_length: int = Field(default=1000, ge=1)
        value_lr: float = Field(default=5e-3, ge=0, le=1)
        target_updates: int = Field(default=10, ge=1)
        gradient_steps_per_target_update: int = Field(default=10, ge=1)
        normalize_advantage: bool = True
        rho_clip: float = Field(default=1.0, gt=0)  # V-trace, for segments of older weights
        initial_log_std: float = 0.0

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed

    def initial_state(self, spec: EnvSpec) -> State:
        config = self.config
        return first_state(
            config,
            spec,
            self.seed,
            self.device,
            initial_log_std=config.initial_log_std,
            value_lr=config.value_lr,
        )

    def policy(self, state: State) -> StochasticPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        """One iteration: everything in `sample` (segments [B, T]) is used, then forgotten."""
        config = self.config
        transitions, metrics = self._transitions(state, sample)
        metrics |= self._fit_critic(state, transitions)
        experience = bootstrapped(state.value, transitions)
        if config.normalize_advantage:
            experience = replace(experience, advantage=standardized(experience.advantage))
        metrics |= policy_step(state.policy, state.optimizer, experience, config.max_grad_norm)
        learn_moments(state.policy, sample, self.device)
        state.updates += 1
        return UpdateResult(metrics)

    def _transitions(self, state: State, sample: Sample) -> tuple[Transitions, Metrics]:
        segments = to_tensors(sample, state.policy.normalizer, self.device, learn_moments=False)
        log_prob, rho = segments.extras["log_prob"], torch.ones_like(segments.reward)
        metrics: Metrics = {}
        if stale(sample):
            log_prob, ratio = since_acted(state.policy, segments)
            rho = ratio.clamp(max=self.config.rho_clip)
            metrics = age_metrics(segments, ratio, self.config.rho_clip)
        return Transitions(
            observation=segments.observation.flatten(0, 1),
            action=segments.extras["policy_action"].flatten(0, 1),
            log_prob=log_prob.flatten(),
            reward=segments.reward.flatten(),
            discount=segments.discount.flatten(),
            next_observation=segments.next_observation.flatten(0, 1),
            rho=rho.flatten(),
        ), metrics

    def _fit_critic(self, state: State, transitions: Transitions) -> Metrics:
        config, losses = self.config, []
        for _ in range(config.target_updates):
            experience = bootstrapped(state.value, transitions)
            for _ in range(config.gradient_steps_per_target_update):
                loss = value_loss(state.value, experience)
                gradient_step(state.value_optimizer, loss, config.max_grad_norm)
                losses.append(loss.detach())
        return {
            "value_loss": losses[-1],
            "value_loss_change": losses[-1] - losses[0],
            "explained_variance": explained_variance(state.value, experience),
        }


@torch.no_grad()
def bootstrapped(value: StateValue, transitions: Transitions) -> Experience:
    """Targets and advantages by the critic as it is now, held fixed."""
    now = value(transitions.observation)
    target = transitions.reward + transitions.discount * value(transitions.next_observation)
    assert now.shape == target.shape == transitions.rho.shape
    target = torch.lerp(now, target, transitions.rho)  # exactly r + discount V(s') where rho is 1
    return Experience(
        observation=transitions.observation,
        action=transitions.action,
        log_prob=transitions.log_prob,
        advantage=target - now,
        value_target=target,
    )
