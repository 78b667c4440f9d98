"""DDPG, Deep Deterministic Policy Gradient (Lillicrap et al. 2015, arXiv 1509.02971).

    y = r + discount Q'(s', mu'(s'))
    critic:  minimise (Q(s, a) - y)^2
    policy:  maximise Q(s, mu(s))
    targets: Q' and mu' follow Q and mu by tau, at every update

One critic, no noise in the target, a policy that moves with every update: what TD3 was made to
repair. Noise is the exploration's alone, a part of its own (`learner.exploration`). For goals with
rewards of -1 and 0, `target_range` and `action_penalty` are those of HER (arXiv 1707.01495).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from pydantic import Field, field_validator
from torch import Tensor

from learner.adam import Adam
from learner.critics import ActionValue
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
    critic: ActionValue
    target_policy: DeterministicPolicy
    target_critic: ActionValue
    policy_optimizer: Adam
    critic_optimizer: Adam
    updates: int = 0


class DDPG:
    data = "off_policy"
    action_kinds = frozenset({"continuous"})
    observation_kinds = frozenset({"vector", "pixels"})
    needs_bounds = True
    paper = "arXiv 1509.02971"

    class Config(OffPolicyConfig):
        algorithm: str = "ddpg"
        lr: float = Field(default=1e-3, ge=0, le=1)  # of the critic, and of the policy
        policy_lr: float | None = Field(default=None, ge=0, le=1)  # where it has one of its own
        batch_size: int = Field(default=100, ge=1)
        random_steps: int = Field(default=10_000, ge=0)
        learning_starts: int = Field(default=1000, ge=0)
        exploration: ExplorationSettings = part_default("gaussian")
        tau: float = Field(default=0.005, gt=0, le=1)  # how far the targets move
        target_range: tuple[float, float] | None = None  # what y is clipped to
        action_penalty: float = Field(default=0.0, ge=0)  # of the mean squared action

        @field_validator("target_range")
        @classmethod
        def _low_before_high(
            cls, target_range: tuple[float, float] | None
        ) -> tuple[float, float] | None:
            if target_range is not None and target_range[0] >= target_range[1]:
                raise ValueError(
                    f"learner.target_range = {list(target_range)} is refused: the low end comes "
                    "first and is below the high one, as [-50, 0]"
                )
            return target_range

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        self.step = Step(partial(step, config=config))

    def initial_state(self, spec: EnvSpec) -> State:
        config = self.config
        policy_config = DeterministicPolicy.Config(**policy_settings(config))
        with seeded_initialisation(self.seed):
            policy = DeterministicPolicy(policy_config, spec).to(self.device)
            critic = ActionValue(spec, config.hidden_sizes).to(self.device)
        policy_lr = config.lr if config.policy_lr is None else config.policy_lr
        return State(
            policy=policy,
            critic=critic,
            target_policy=target_copy(policy),
            target_critic=target_copy(critic),
            policy_optimizer=adam(policy_lr, policy),
            critic_optimizer=adam(config.lr, critic),
        )

    def policy(self, state: State) -> DeterministicPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        batch = to_tensors(sample, state.policy.normalizer, self.device, learn_moments=True)
        metrics, priorities = self.step(state, batch)
        state.updates += 1
        return UpdateResult(metrics, priorities)


def step(state: State, batch: TensorBatch, config: DDPG.Config) -> tuple[Metrics, Tensor]:
    """With the priorities [B] that the batch gets."""
    target = critic_target(state, batch, config)
    q = state.critic(batch.observation, batch.action)  # [B]
    q_loss = critic_loss(q, target, batch.weights)
    norm = gradient_step(state.critic_optimizer, q_loss, config.max_grad_norm)

    pi_loss = policy_loss(state, batch, config)
    gradient_step(state.policy_optimizer, pi_loss, config.max_grad_norm)

    polyak_update(state.target_policy, state.policy, config.tau)
    polyak_update(state.target_critic, state.critic, config.tau)
    q = q.detach()
    metrics = {
        "critic_loss": q_loss.detach(),
        "policy_loss": pi_loss.detach(),
        "q": q.mean(),
        "critic_grad_norm": norm,
    }
    return metrics, (q - target).abs()


@torch.no_grad()
def critic_target(state: State, batch: TensorBatch, config: DDPG.Config) -> Tensor:
    """y [B]: both the next action and its value by the targets."""
    next_action = state.target_policy(batch.next_observation)
    next_q = state.target_critic(batch.next_observation, next_action)
    target = batch.reward + batch.discount * next_q
    return target if config.target_range is None else target.clamp(*config.target_range)


def critic_loss(q: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    assert q.shape == target.shape == weights.shape
    return (weights * (q - target).square()).mean()


def policy_loss(state: State, batch: TensorBatch, config: DDPG.Config) -> Tensor:
    """-mean Q(s, mu(s)); its gradient goes through the critic, not into it."""
    action = state.policy(batch.observation)
    loss = -state.critic(batch.observation, action).mean()
    return loss + config.action_penalty * action.square().mean()
