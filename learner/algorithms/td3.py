"""TD3, Twin Delayed Deep Deterministic policy gradient (Fujimoto et al. 2018, arXiv 1802.09477).

    a' = clip(mu'(s') + clip(sigma N(0, 1), -c, c), -1, 1)
    y  = r + discount min_i Q'_i(s', a')
    critics: minimise sum_i (Q_i(s, a) - y)^2 at every update
    policy:  maximise Q_1(s, mu(s)) at every second update, and then move the targets

Three differences to DDPG: the smaller of two critics, noise on the target action, and a policy that
waits for its critics. Actions are in [-1, 1], so the noise is in units of half the action range.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

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
from repertory.policies.deterministic import DeterministicPolicy
from repertory.policies.policy import policy_settings
from repertory.settings import ExplorationSettings, part_default
from repertory.specs import EnvSpec
from repertory.types import Sample, UpdateResult


@dataclass
class State:
    policy: DeterministicPolicy
    critic: TwinQ
    target_policy: DeterministicPolicy
    target_critic: TwinQ
    policy_optimizer: Adam
    critic_optimizer: Adam
    generator: torch.Generator
    updates: int = 0


class TD3:
    data = "off_policy"
    action_kinds = frozenset({"continuous"})
    observation_kinds = frozenset({"vector"})
    needs_bounds = True
    paper = "arXiv 1802.09477"

    class Config(OffPolicyConfig):
        algorithm: str = "td3"
        random_steps: int = Field(default=25_000, ge=0)
        learning_starts: int = Field(default=25_000, ge=0)
        exploration: ExplorationSettings = part_default("gaussian")
        tau: float = Field(default=0.005, gt=0, le=1)  # how far the targets move
        target_noise: float = Field(default=0.2, ge=0)
        target_noise_clip: float = Field(default=0.5, ge=0)
        policy_period: int = Field(default=2, ge=1)  # critic updates per policy update

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        self.critic_step = Step(partial(critic_step, config=config))
        self.policy_step = Step(partial(policy_step, config=config))

    def initial_state(self, spec: EnvSpec) -> State:
        config = self.config
        policy_config = DeterministicPolicy.Config(**policy_settings(config))
        with seeded_initialisation(self.seed):
            policy = DeterministicPolicy(policy_config, spec).to(self.device)
            critic = TwinQ(spec, config.hidden_sizes).to(self.device)
        return State(
            policy=policy,
            critic=critic,
            target_policy=target_copy(policy),
            target_critic=target_copy(critic),
            policy_optimizer=adam(config.lr, policy),
            critic_optimizer=adam(config.lr, critic),
            generator=torch.Generator(self.device).manual_seed(self.seed),
        )

    def policy(self, state: State) -> DeterministicPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        batch = to_tensors(sample, state.policy.normalizer, self.device, learn_moments=True)
        noise = normal_noise(batch.action.shape, state.generator, self.device)
        metrics, priorities = self.critic_step(state, batch, noise)
        state.updates += 1
        if state.updates % self.config.policy_period == 0:
            metrics |= self.policy_step(state, batch)
        return UpdateResult(metrics, priorities)


def critic_step(
    state: State, batch: TensorBatch, noise: Tensor, config: TD3.Config
) -> tuple[Metrics, Tensor]:
    """With the priorities [B] that the batch gets."""
    target = critic_target(state, batch, noise, config)
    q = state.critic(batch.observation, batch.action)  # [2, B]
    loss = critic_loss(q, target, batch.weights)
    norm = gradient_step(state.critic_optimizer, loss, config.max_grad_norm)
    q = q.detach()
    metrics = {"critic_loss": loss.detach(), "q": q.mean(), "critic_grad_norm": norm}
    return metrics, (q - target).abs().mean(0)


def policy_step(state: State, batch: TensorBatch, config: TD3.Config) -> Metrics:
    loss = policy_loss(state, batch)
    gradient_step(state.policy_optimizer, loss, config.max_grad_norm)
    polyak_update(state.target_policy, state.policy, config.tau)
    polyak_update(state.target_critic, state.critic, config.tau)
    return {"policy_loss": loss.detach()}


@torch.no_grad()
def critic_target(state: State, batch: TensorBatch, noise: Tensor, config: TD3.Config) -> Tensor:
    """y [B], for standard normal `noise` [B, A]."""
    clip = config.target_noise_clip
    smoothing = (config.target_noise * noise).clamp(-clip, clip)
    next_action = (state.target_policy(batch.next_observation) + smoothing).clamp(-1, 1)
    next_q = state.target_critic(batch.next_observation, next_action).amin(0)
    return batch.reward + batch.discount * next_q


def critic_loss(q: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Squared errors of both critics [2, B], each averaged over the batch."""
    assert target.shape == weights.shape == q.shape[1:]
    return (weights * (q - target).square()).mean(-1).sum()


def policy_loss(state: State, batch: TensorBatch) -> Tensor:
    """-mean Q_1(s, mu(s)); its gradient goes through the critic, not into it."""
    return -state.critic.first(batch.observation, state.policy(batch.observation)).mean()
