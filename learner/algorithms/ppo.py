"""PPO, Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347).

    ratio  = pi(a|s) / pi_old(a|s)
    policy: maximise min(ratio A, clip(ratio, 1 - c, 1 + c) A) + entropy_coefficient H(pi)
    value:  minimise (V(s) - (A + V_old(s)))^2

with A by GAE(lambda). Two ways to run over the collected segments: `minibatch` (several epochs of
shuffled minibatches) and `full_batch` (Spinning Up's: many steps on the whole batch, policy steps
until the KL divergence passes 1.5 times its target, then the value function by itself).

Segments that older weights made (`extras["age"]` above 0) are corrected by V-trace (arXiv
1802.01561): A holds the ratio of the policy before this update to the one that acted, and pi_old is
the policy before this update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from learner.adam import Adam
from learner.critics import StateValue
from learner.data_parallel import joined_mean, replicas, share
from learner.experience import Experience, Metrics, gather, learn_moments, standardized
from learner.optimization import adam, gradient_step, seeded_initialisation
from learner.steps import Step
from learner.value_regression import explained_variance, fit_value, value_loss
from repertory.config import HiddenSizes, OnPolicyConfig
from repertory.policies.policy import policy_settings
from repertory.policies.stochastic import StochasticPolicy
from repertory.specs import EnvSpec
from repertory.types import Sample, UpdateResult


@dataclass
class State:
    policy: StochasticPolicy
    value: StateValue
    optimizer: Adam  # of the policy and, in minibatch mode, the value function
    value_optimizer: Adam  # of the value function by itself, in full-batch mode
    generator: torch.Generator
    updates: int = 0


class PPO:
    data = "on_policy"
    action_kinds = frozenset({"continuous", "discrete", "multi_discrete"})
    observation_kinds = frozenset({"vector", "pixels"})
    needs_bounds = False
    paper = "arXiv 1707.06347"

    class Config(OnPolicyConfig):
        algorithm: str = "ppo"
        hidden_sizes: HiddenSizes = (64, 64)
        max_grad_norm: float | None = Field(default=0.5, gt=0)
        mode: Literal["minibatch", "full_batch"] = "minibatch"
        clip: float = Field(default=0.2, gt=0, lt=1)
        gae_lambda: float = Field(default=0.95, ge=0, le=1)
        entropy_coefficient: float = Field(default=0.0, ge=0)
        normalize_advantage: bool = True
        rho_clip: float = Field(default=1.0, gt=0)  # V-trace, for segments of older weights
        c_clip: float = Field(default=1.0, gt=0)
        initial_log_std: float = 0.0
        # minibatch mode
        epochs: int = Field(default=10, ge=1)
        batch_size: int = Field(default=64, ge=1)
        value_coefficient: float = Field(default=0.5, ge=0)
        # full-batch mode, and a stop for minibatch mode where set
        policy_steps: int = Field(default=80, ge=1)
        value_steps: int = Field(default=80, ge=1)
        value_lr: float = Field(default=1e-3, ge=0, le=1)
        target_kl: float | None = Field(default=None, gt=0)  # full batch: 0.01 where not set

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        self.minibatch_step = Step(partial(minibatch_step, config=config))

    def initial_state(self, spec: EnvSpec) -> State:
        config = self.config
        policy_config = StochasticPolicy.Config(
            **policy_settings(config), initial_log_std=config.initial_log_std
        )
        with seeded_initialisation(self.seed):
            policy = StochasticPolicy(policy_config, spec).to(self.device)
            value = StateValue(spec, config.hidden_sizes).to(self.device)
        minibatch = config.mode == "minibatch"
        return State(
            policy=policy,
            value=value,
            optimizer=adam(config.lr, policy, value) if minibatch else adam(config.lr, policy),
            value_optimizer=adam(config.value_lr, value),
            generator=torch.Generator().manual_seed(self.seed),
        )

    def policy(self, state: State) -> StochasticPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        """One iteration: everything in `sample` (segments [B, T]) is used, then forgotten."""
        experience, metrics = gather(state.policy, state.value, sample, self.config, self.device)
        run = self._minibatches if self.config.mode == "minibatch" else self._full_batch
        metrics |= run(state, experience)
        learn_moments(state.policy, sample, self.device)
        state.updates += 1
        return UpdateResult(metrics)

    def _minibatches(self, state: State, experience: Experience) -> Metrics:
        config, size = self.config, len(experience.advantage)
        batch_size = share(config.batch_size, replicas(), "learner.batch_size")
        metrics: Metrics = {}
        stop_iteration = config.epochs
        minibatches = (
            (epoch, index)
            for epoch in range(config.epochs)
            for index in torch.randperm(size, generator=state.generator).split(batch_size)
        )
        for epoch, index in minibatches:
            rows = index.to(self.device)
            if config.target_kl:
                with torch.no_grad():
                    _, before = policy_loss(state.policy, experience.select(rows), config)
                if everyones_kl(before) > 1.5 * config.target_kl:
                    metrics |= before
                    stop_iteration = epoch
                    break
            metrics |= self.minibatch_step(state, experience, rows)
        return metrics | {
            "stop_iteration": stop_iteration,
            "explained_variance": explained_variance(state.value, experience),
        }

    def _full_batch(self, state: State, experience: Experience) -> Metrics:
        config = self.config
        limit = 1.5 * (config.target_kl or 0.01)
        _, before = policy_loss(state.policy, experience, config)
        metrics = before
        stop_iteration = config.policy_steps
        for iteration in range(config.policy_steps):
            loss, metrics = policy_loss(state.policy, experience, config)
            if everyones_kl(metrics) > limit:
                stop_iteration = iteration
                break
            gradient_step(state.optimizer, loss, config.max_grad_norm)
        metrics |= {
            "policy_loss_change": metrics["policy_loss"] - before["policy_loss"],
            "stop_iteration": stop_iteration,
        }
        return metrics | fit_value(
            state.value, state.value_optimizer, experience, config.value_steps, config.max_grad_norm
        )


def minibatch_step(
    state: State, experience: Experience, rows: Tensor, config: PPO.Config
) -> Metrics:
    minibatch = experience.select(rows)
    pi_loss, metrics = policy_loss(state.policy, minibatch, config)
    v_loss = value_loss(state.value, minibatch)
    loss = pi_loss + config.value_coefficient * v_loss
    norm = gradient_step(state.optimizer, loss, config.max_grad_norm)
    return metrics | {"value_loss": v_loss.detach(), "grad_norm": norm}


def policy_loss(
    policy: StochasticPolicy, experience: Experience, config: PPO.Config
) -> tuple[Tensor, Metrics]:
    log_prob, entropy = policy.log_prob_and_entropy(experience.observation, experience.action)
    advantage = experience.advantage
    assert log_prob.shape == advantage.shape
    if config.normalize_advantage:
        advantage = standardized(advantage)
    log_ratio = log_prob - experience.log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage).mean()
    loss = -surrogate - config.entropy_coefficient * entropy.mean()
    with torch.no_grad():
        metrics: Metrics = {
            "policy_loss": -surrogate.detach(),
            "entropy": entropy.mean(),
            "kl": (ratio - 1 - log_ratio).mean(),  # Schulman's low-variance estimate
            "clip_fraction": ((ratio - 1).abs() > config.clip).float().mean(),
        }
    return loss, metrics


def everyones_kl(metrics: Mapping[str, Tensor | float]) -> float:
    """Over the joined batch: all replicas stop at the same step."""
    return float(joined_mean(torch.as_tensor(metrics["kl"])))
