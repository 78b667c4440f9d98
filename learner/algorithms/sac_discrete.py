"""SAC-discrete: Soft Actor-Critic over discrete actions (Christodoulou 2019, arXiv 1910.07207).

    V'(s) = sum_a pi(a|s) (min_i Q'_i(s, a) - alpha log pi(a|s))
    y = r + discount V'(s')
    critics: minimise sum_i (Q_i(s, a) - y)^2
    policy:  minimise sum_a pi(a|s) (alpha log pi(a|s) - min_i Q_i(s, a))
    alpha:   minimise sum_a pi(a|s) (-log_alpha (log pi(a|s) + target entropy))

What SAC estimates by one sampled action is summed over all of them here, weighted by pi: nothing is
random in an update. The temperature is kept as its logarithm and used as its exponential, so it is
positive from the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn

from learner.adam import Adam
from learner.critics import TwinDiscreteQ
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
from repertory.policies.categorical import CategoricalPolicy
from repertory.policies.policy import policy_settings
from repertory.settings import ExplorationSettings, part_default
from repertory.specs import EnvSpec
from repertory.types import Sample, UpdateResult


@dataclass
class State:
    policy: CategoricalPolicy
    critic: TwinDiscreteQ
    target_critic: TwinDiscreteQ
    log_alpha: nn.Parameter
    policy_optimizer: Adam
    critic_optimizer: Adam
    alpha_optimizer: Adam
    target_entropy: float
    updates: int = 0


class SACDiscrete:
    data = "off_policy"
    action_kinds = frozenset({"discrete"})
    observation_kinds = frozenset({"vector", "pixels"})
    needs_bounds = False
    paper = "arXiv 1910.07207"

    class Config(OffPolicyConfig):
        algorithm: str = "sac_discrete"
        random_steps: int = Field(default=10_000, ge=0)
        learning_starts: int = Field(default=10_000, ge=0)
        exploration: ExplorationSettings = part_default("none")
        tau: float = Field(default=0.005, gt=0, le=1)
        alpha: float = Field(default=1.0, gt=0)  # the temperature, or where it starts
        learn_alpha: bool = True
        # Of the largest entropy, log n; the target that the temperature is learned for.
        target_entropy_share: float = Field(default=0.98, ge=0, le=1)

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        self.step = Step(partial(step, config=config))

    def initial_state(self, spec: EnvSpec) -> State:
        config = self.config
        policy_config = CategoricalPolicy.Config(**policy_settings(config))
        with seeded_initialisation(self.seed):
            policy = CategoricalPolicy(policy_config, spec).to(self.device)
            critic = TwinDiscreteQ(spec, config.hidden_sizes).to(self.device)
        log_alpha = nn.Parameter(torch.tensor(math.log(config.alpha), device=self.device))
        return State(
            policy=policy,
            critic=critic,
            target_critic=target_copy(critic),
            log_alpha=log_alpha,
            policy_optimizer=adam(config.lr, policy),
            critic_optimizer=adam(config.lr, critic),
            alpha_optimizer=adam(config.lr, log_alpha),
            target_entropy=config.target_entropy_share * math.log(spec.num_actions),
        )

    def policy(self, state: State) -> CategoricalPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        batch = to_tensors(sample, state.policy.normalizer, self.device, learn_moments=True)
        metrics, priorities = self.step(state, batch)
        state.updates += 1
        return UpdateResult(metrics, priorities)


def step(state: State, batch: TensorBatch, config: SACDiscrete.Config) -> tuple[Metrics, Tensor]:
    """With the priorities [B] that the batch gets."""
    alpha = state.log_alpha.detach().exp()

    target = critic_target(state, batch, alpha)
    q = chosen(state.critic(batch.observation), batch.action)  # [2, B]
    q_loss = critic_loss(q, target, batch.weights)
    norm = gradient_step(state.critic_optimizer, q_loss, config.max_grad_norm)

    log_pi = state.policy(batch.observation)  # [B, actions]
    pi_loss = policy_loss(state, batch, log_pi, alpha)
    gradient_step(state.policy_optimizer, pi_loss, config.max_grad_norm)

    q, log_pi = q.detach(), log_pi.detach()
    metrics = {
        "critic_loss": q_loss.detach(),
        "policy_loss": pi_loss.detach(),
        "q": q.mean(),
        "critic_grad_norm": norm,
        "alpha": alpha,
        "entropy": -expectation(log_pi, log_pi).mean(),
    }
    if config.learn_alpha:
        loss = temperature_loss(state.log_alpha, log_pi, state.target_entropy)
        gradient_step(state.alpha_optimizer, loss)
        metrics["alpha_loss"] = loss.detach()
    polyak_update(state.target_critic, state.critic, config.tau)
    return metrics, (q - target).abs().mean(0)


def expectation(log_pi: Tensor, values: Tensor) -> Tensor:
    """sum_a pi(a|s) values(s, a): [B, actions] each -> [B]."""
    assert log_pi.shape == values.shape
    return (log_pi.exp() * values).sum(-1)


def chosen(q: Tensor, action: Tensor) -> Tensor:
    """Both critics' Q of the given action of each row: [2, B, actions], [B] -> [2, B]."""
    index = action.unsqueeze(-1).expand(2, -1, -1)  # [2, B, 1]
    return q.gather(-1, index).squeeze(-1)


@torch.no_grad()
def critic_target(state: State, batch: TensorBatch, alpha: Tensor) -> Tensor:
    """y [B]: the soft value of s' by the current policy and the target critics."""
    log_pi = state.policy(batch.next_observation)
    next_q = state.target_critic(batch.next_observation).amin(0)
    return batch.reward + batch.discount * expectation(log_pi, next_q - alpha * log_pi)


def critic_loss(q: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Half the squared errors of both critics [2, B], each averaged over the batch."""
    assert target.shape == weights.shape == q.shape[1:]
    return 0.5 * (weights * (q - target).square()).mean(-1).sum()


def policy_loss(state: State, batch: TensorBatch, log_pi: Tensor, alpha: Tensor) -> Tensor:
    """mean sum_a pi (alpha log pi - min Q): a bare expectation, for which Q is a constant."""
    with torch.no_grad():
        q = state.critic(batch.observation).amin(0)
    return expectation(log_pi, alpha * log_pi - q).mean()


def temperature_loss(log_alpha: Tensor, log_pi: Tensor, target_entropy: float) -> Tensor:
    """Falls with log_alpha when entropy is too low, so that the temperature rises then."""
    return -(log_alpha * expectation(log_pi, log_pi + target_entropy)).mean()
