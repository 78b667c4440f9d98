"""What VPG and actor-critic share: a policy, a value function, and one step along the gradient.

    minimise -E[log pi(a|s) A]

`a` is what was sampled while acting, a number: only log pi depends on the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from learner.adam import Adam
from learner.critics import StateValue
from learner.experience import Experience, Metrics
from learner.optimization import adam, gradient_step, seeded_initialisation
from repertory.config import OnPolicyConfig
from repertory.policies.policy import policy_settings
from repertory.policies.stochastic import StochasticPolicy
from repertory.specs import EnvSpec


@dataclass
class State:
    policy: StochasticPolicy
    value: StateValue
    optimizer: Adam  # of the policy
    value_optimizer: Adam
    updates: int = 0


def first_state(
    config: OnPolicyConfig,
    spec: EnvSpec,
    seed: int,
    device: torch.device,
    *,
    initial_log_std: float,
    value_lr: float,
) -> State:
    policy_config = StochasticPolicy.Config(
        **policy_settings(config), initial_log_std=initial_log_std
    )
    with seeded_initialisation(seed):
        policy = StochasticPolicy(policy_config, spec).to(device)
        value = StateValue(spec, config.hidden_sizes).to(device)
    return State(
        policy=policy,
        value=value,
        optimizer=adam(config.lr, policy),
        value_optimizer=adam(value_lr, value),
    )


def policy_step(
    policy: StochasticPolicy, optimizer: Adam, experience: Experience, max_grad_norm: float | None
) -> Metrics:
    """One gradient step, and how far it went."""
    with torch.no_grad():
        before = policy.distribution(experience.observation)
    loss, entropy = policy_loss(policy, experience)
    grad_norm = gradient_step(optimizer, loss, max_grad_norm)
    with torch.no_grad():
        after = policy.distribution(experience.observation)
        loss_after, _ = policy_loss(policy, experience)
        return {
            "policy_loss": loss.detach(),
            "policy_loss_change": loss_after - loss.detach(),
            "entropy": entropy.detach(),
            "kl": policy.divergence(before, after).mean(),
            "grad_norm": grad_norm,
        }


def policy_loss(policy: StochasticPolicy, experience: Experience) -> tuple[Tensor, Tensor]:
    """-E[log pi(a|s) A], whose gradient is the policy's; and the mean entropy."""
    log_prob, entropy = policy.log_prob_and_entropy(experience.observation, experience.action)
    assert log_prob.shape == experience.advantage.shape
    return -(log_prob * experience.advantage).mean(), entropy.mean()
