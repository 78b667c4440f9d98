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
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.optim import Adam

from learner.critics import StateValue
from learner.data_parallel import highest, joined_mean, joined_rows, replicas, share
from learner.optimization import adam, gradient_step, seeded_initialisation
from learner.returns import generalized_advantage, v_trace_advantage
from learner.tensors import TensorBatch, learn_from, to_device, to_tensors
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


@dataclass(frozen=True, slots=True)
class Experience:
    """Flat columns [N] of everything the update needs of the segments."""

    observation: Tensor
    action: Tensor
    log_prob: Tensor  # of the policy that acted; with V-trace, of the one before this update
    advantage: Tensor
    value_target: Tensor

    def select(self, index: Tensor) -> Experience:
        return Experience(*(getattr(self, name)[index] for name in self.__slots__))


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
        experience, metrics = self._experience(state, sample)
        run = self._minibatches if self.config.mode == "minibatch" else self._full_batch
        metrics |= run(state, experience)
        # Only now: the likelihood ratios above hold for the statistics that were acted with.
        learn_moments(state.policy, sample, self.device)
        state.updates += 1
        return UpdateResult(metrics)

    @torch.no_grad()
    def _experience(
        self, state: State, sample: Sample
    ) -> tuple[Experience, dict[str, Tensor | float]]:
        segments = to_tensors(sample, state.policy.normalizer, self.device, learn_moments=False)
        value, next_value = (
            state.value(observation.flatten(0, 1)).view_as(segments.reward)
            for observation in (segments.observation, segments.next_observation)
        )
        columns = (
            segments.reward,
            segments.discount,
            segments.extras["boundary"],
            value,
            next_value,
            self.config.gae_lambda,
        )
        log_prob = segments.extras["log_prob"]
        metrics: dict[str, Tensor | float] = {}
        if stale(sample):
            advantage, log_prob, metrics = self._corrected(state, segments, columns)
        else:
            advantage = generalized_advantage(*columns)
        return Experience(
            observation=segments.observation.flatten(0, 1),
            action=segments.extras["policy_action"].flatten(0, 1),
            log_prob=log_prob.flatten(),
            advantage=advantage.flatten(),
            value_target=(advantage + value).flatten(),
        ), metrics

    def _corrected(
        self,
        state: State,
        segments: TensorBatch,
        columns: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float],
    ) -> tuple[Tensor, Tensor, dict[str, Tensor | float]]:
        """Advantages by V-trace, the log density of the policy as it is now, what to report."""
        config, acted = self.config, segments.extras["log_prob"]
        now, _ = state.policy.log_prob_and_entropy(
            segments.observation.flatten(0, 1), segments.extras["policy_action"].flatten(0, 1)
        )
        now = now.view_as(acted)
        ratio = (now - acted).exp()
        advantage = v_trace_advantage(*columns, ratio, config.rho_clip, config.c_clip)
        metrics: dict[str, Tensor | float] = {
            "age": segments.extras["age"].to(acted.dtype).mean(),
            "rho": ratio.clamp(max=config.rho_clip).mean(),
        }
        return advantage, now, metrics

    def _minibatches(self, state: State, experience: Experience) -> dict[str, Tensor | float]:
        config, size = self.config, len(experience.advantage)
        batch_size = share(config.batch_size, replicas(), "learner.batch_size")
        metrics: dict[str, Tensor | float] = {}
        stop_iteration = config.epochs
        minibatches = (
            (epoch, index)
            for epoch in range(config.epochs)
            for index in torch.randperm(size, generator=state.generator).split(batch_size)
        )
        for epoch, index in minibatches:
            minibatch = experience.select(index.to(self.device))
            pi_loss, of_policy = policy_loss(state.policy, minibatch, config)
            v_loss = value_loss(state.value, minibatch)
            metrics |= of_policy | {"value_loss": v_loss.detach()}
            if config.target_kl and everyones_kl(of_policy) > 1.5 * config.target_kl:
                stop_iteration = epoch
                break
            loss = pi_loss + config.value_coefficient * v_loss
            metrics["grad_norm"] = gradient_step(state.optimizer, loss, config.max_grad_norm)
        return metrics | {
            "stop_iteration": stop_iteration,
            "explained_variance": explained_variance(state.value, experience),
        }

    def _full_batch(self, state: State, experience: Experience) -> dict[str, Tensor | float]:
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
        v_loss = value_loss(state.value, experience)
        first_v_loss = v_loss.detach()
        for _ in range(config.value_steps):
            v_loss = value_loss(state.value, experience)
            gradient_step(state.value_optimizer, v_loss, config.max_grad_norm)
        return metrics | {
            "policy_loss_change": metrics["policy_loss"] - before["policy_loss"],
            "value_loss": v_loss.detach(),
            "value_loss_change": v_loss.detach() - first_v_loss,
            "stop_iteration": stop_iteration,
            "explained_variance": explained_variance(state.value, experience),
        }


def policy_loss(
    policy: StochasticPolicy, experience: Experience, config: PPO.Config
) -> tuple[Tensor, dict[str, Tensor | float]]:
    log_prob, entropy = policy.log_prob_and_entropy(experience.observation, experience.action)
    advantage = experience.advantage
    assert log_prob.shape == advantage.shape
    if config.normalize_advantage:
        everyones = joined_rows(advantage)
        if len(everyones) > 1:
            advantage = (advantage - everyones.mean()) / (everyones.std() + 1e-8)
    log_ratio = log_prob - experience.log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage).mean()
    loss = -surrogate - config.entropy_coefficient * entropy.mean()
    with torch.no_grad():
        metrics: dict[str, Tensor | float] = {
            "policy_loss": -surrogate.detach(),
            "entropy": entropy.mean(),
            "kl": (ratio - 1 - log_ratio).mean(),  # Schulman's low-variance estimate
            "clip_fraction": ((ratio - 1).abs() > config.clip).float().mean(),
        }
    return loss, metrics


def everyones_kl(metrics: Mapping[str, Tensor | float]) -> float:
    """Over the joined batch: all replicas stop at the same step."""
    return float(joined_mean(torch.as_tensor(metrics["kl"])))


def value_loss(value: StateValue, experience: Experience) -> Tensor:
    predicted = value(experience.observation)
    assert predicted.shape == experience.value_target.shape
    return (predicted - experience.value_target).square().mean()


def stale(sample: Sample) -> bool:
    """Whether any step was made by older weights, where somebody has looked at their age."""
    age = sample.batch.extras.get("age")
    if age is None:
        return False
    return bool(highest(torch.tensor(int(age.max()))) > 0)  # replicas take one way or the other


@torch.no_grad()
def explained_variance(value: StateValue, experience: Experience) -> Tensor:
    """1: perfect; 0: no better than a constant."""
    residual = experience.value_target - value(experience.observation)
    return 1 - residual.var() / (experience.value_target.var() + 1e-8)


def learn_moments(policy: StochasticPolicy, sample: Sample, device: torch.device) -> None:
    extras = sample.batch.extras
    returns = extras.get("discounted_return")
    learn_from(
        policy.normalizer,
        to_device(sample.batch.observation, device).flatten(0, 1),
        None if returns is None else to_device(returns, device).flatten(),
    )
