"""SAC, Soft Actor-Critic, with a fixed (arXiv 1801.01290) or a learned temperature (1812.05905).

    y = r + discount (min_i Q'_i(s', a') - alpha log pi(a'|s')),  a' ~ pi(.|s')
    critics: minimise sum_i (Q_i(s, a) - y)^2
    policy:  minimise alpha log pi(a~|s) - min_i Q_i(s, a~),  a~ ~ pi(.|s), reparametrised
    alpha:   minimise -log_alpha (log pi(a~|s) + target entropy)

The temperature is kept as its logarithm and used as its exponential, so it is positive from the
start. The density of the squashed actions is in `repertory.policies.squashed_gaussian`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn

from learner.adam import Adam
from learner.critics import TwinQ
from learner.data_parallel import normal_noise
from learner.optimization import (
    Metrics,
    adam,
    gradient_step,
    polyak_update,
    seeded_initialisation,
    target_copy,
)
from learner.steps import Step
from learner.tensors import TensorBatch, to_tensors
from repertory.config import OffPolicyConfig
from repertory.policies.policy import policy_settings
from repertory.policies.squashed_gaussian import SquashedGaussianPolicy
from repertory.settings import ExplorationSettings, part_default
from repertory.specs import EnvSpec
from repertory.types import Sample, UpdateResult


@dataclass
class State:
    policy: SquashedGaussianPolicy
    critic: TwinQ
    target_critic: TwinQ
    log_alpha: nn.Parameter
    policy_optimizer: Adam
    critic_optimizer: Adam
    alpha_optimizer: Adam
    generator: torch.Generator
    target_entropy: float
    updates: int = 0


class SAC:
    data = "off_policy"
    action_kinds = frozenset({"continuous"})
    observation_kinds = frozenset({"vector"})
    needs_bounds = True
    paper = "arXiv 1812.05905"

    class Config(OffPolicyConfig):
        algorithm: str = "sac"
        random_steps: int = Field(default=10_000, ge=0)
        learning_starts: int = Field(default=10_000, ge=0)
        exploration: ExplorationSettings = part_default("none")
        tau: float = Field(default=0.005, gt=0, le=1)
        alpha: float = Field(default=1.0, gt=0)  # the temperature, or where it starts
        learn_alpha: bool = True
        target_entropy: float | None = None  # default: minus the number of action dimensions

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        self.step = Step(partial(step, config=config))

    def initial_state(self, spec: EnvSpec) -> State:
        config = self.config
        policy_config = SquashedGaussianPolicy.Config(**policy_settings(config))
        with seeded_initialisation(self.seed):
            policy = SquashedGaussianPolicy(policy_config, spec).to(self.device)
            critic = TwinQ(spec, config.hidden_sizes).to(self.device)
        log_alpha = nn.Parameter(torch.tensor(math.log(config.alpha), device=self.device))
        default_entropy = -float(spec.action_size)
        return State(
            policy=policy,
            critic=critic,
            target_critic=target_copy(critic),
            log_alpha=log_alpha,
            policy_optimizer=adam(config.lr, policy),
            critic_optimizer=adam(config.lr, critic),
            alpha_optimizer=adam(config.lr, log_alpha),
            generator=torch.Generator(self.device).manual_seed(self.seed),
            target_entropy=(
                default_entropy if config.target_entropy is None else config.target_entropy
            ),
        )

    def policy(self, state: State) -> SquashedGaussianPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        batch = to_tensors(sample, state.policy.normalizer, self.device, learn_moments=True)
        noise = normal_noise((2, *batch.action.shape), state.generator, self.device)
        metrics, priorities = self.step(state, batch, noise)
        state.updates += 1
        return UpdateResult(metrics, priorities)


def step(
    state: State, batch: TensorBatch, noise: Tensor, config: SAC.Config
) -> tuple[Metrics, Tensor]:
    """With the priorities [B] that the batch gets; `noise` [2, B, A] is of both actions."""
    alpha = state.log_alpha.detach().exp()

    target = critic_target(state, batch, noise[1], alpha)
    q = state.critic(batch.observation, batch.action)  # [2, B]
    q_loss = critic_loss(q, target, batch.weights)
    norm = gradient_step(state.critic_optimizer, q_loss, config.max_grad_norm)

    action, log_prob = state.policy.sample(batch.observation, noise[0])
    pi_loss = policy_loss(state, batch, action, log_prob, alpha)
    gradient_step(state.policy_optimizer, pi_loss, config.max_grad_norm)

    q = q.detach()
    metrics = {
        "critic_loss": q_loss.detach(),
        "policy_loss": pi_loss.detach(),
        "q": q.mean(),
        "critic_grad_norm": norm,
        "alpha": alpha,
        "entropy": -log_prob.detach().mean(),
    }
    if config.learn_alpha:
        loss = temperature_loss(state.log_alpha, log_prob.detach(), state.target_entropy)
        gradient_step(state.alpha_optimizer, loss)
        metrics["alpha_loss"] = loss.detach()
    polyak_update(state.target_critic, state.critic, config.tau)
    return metrics, (q - target).abs().mean(0)


@torch.no_grad()
def critic_target(state: State, batch: TensorBatch, noise: Tensor, alpha: Tensor) -> Tensor:
    """y [B], for the standard normal `noise` [B, A] of the next action."""
    next_action, next_log_prob = state.policy.sample(batch.next_observation, noise)
    next_q = state.target_critic(batch.next_observation, next_action).amin(0)
    return batch.reward + batch.discount * (next_q - alpha * next_log_prob)


def critic_loss(q: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Half the squared errors of both critics [2, B], each averaged over the batch."""
    assert target.shape == weights.shape == q.shape[1:]
    return 0.5 * (weights * (q - target).square()).mean(-1).sum()


def policy_loss(
    state: State, batch: TensorBatch, action: Tensor, log_prob: Tensor, alpha: Tensor
) -> Tensor:
    """mean(alpha log pi - min Q); its gradient goes through the critic, not into it."""
    q = state.critic(batch.observation, action).amin(0)
    assert q.shape == log_prob.shape
    return (alpha * log_prob - q).mean()


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Falls with log_alpha when entropy is too low, so that the temperature rises then."""
    return -(log_alpha * (log_prob + target_entropy)).mean()
