"""Option-Critic (Bacon, Harb, Precup 2017, arXiv 1609.05140), learned from a replay.

    y = r + discount [(1 - b'(s', w)) Q'(s', w) + b'(s', w) max_v Q'(s', v)]
    values:       minimise 1/2 (Q(s, w) - y)^2
    policies:     minimise -rho log pi(a|s, w) (y - Q(s, w)) - entropy_coefficient H(pi(.|s, w))
    terminations: minimise b(s', w) (Q(s', w) - max_v Q(s', v) + termination_margin)

w is the option that was in force when a was taken. All of y comes from the target network, its own
features included. Advantages are constants where the policies and the terminations learn. An option
ends where another promises more; the margin makes it end later, so that it lasts.

The paper learns its policies from each step as it is taken. What a replay holds was done by older
ones, so the gradient is weighted by rho = min(rho_clip, pi(a|s, w) / mu(a|s, w)), as V-trace does;
`rho_clip: null` leaves it out. Steps without an option (uniformly random ones, or somebody else's)
weigh nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

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
from repertory.policies.options import NO_OPTION, OptionHeads, OptionsPolicy, of_option
from repertory.policies.policy import policy_settings
from repertory.schedule import Schedule
from repertory.specs import EnvSpec
from repertory.types import Sample, UpdateResult


@dataclass
class State:
    policy: OptionsPolicy  # values, terminations and policies of all options
    target: OptionsPolicy
    optimizer: Adam
    updates: int = 0


class OptionCritic:
    data = "off_policy"
    action_kinds = frozenset({"continuous", "discrete"})
    observation_kinds = frozenset({"vector"})
    needs_bounds = False
    paper = "arXiv 1609.05140"

    class Config(OffPolicyConfig):
        algorithm: str = "option_critic"
        batch_size: int = Field(default=64, ge=1)
        n_step: int = Field(default=1, ge=1, le=1)  # within n steps the option may have changed
        random_steps: int = Field(default=0, ge=0)  # epsilon starts at 1 anyway
        train_every: int = Field(default=4, ge=1)
        updates_per_step: float = Field(default=0.25, gt=0)
        own_share: float = Field(default=1.0, ge=1, le=1)  # others know nothing of its options
        options: int = Field(default=4, ge=1, le=1024)
        option_epsilon: Schedule = Schedule(start=1.0, final=0.01, steps=10_000)
        initial_log_std: float = 0.0  # of continuous actions
        target_period: int = Field(default=50, ge=1)  # updates from one move to the next
        tau: float = Field(default=1.0, gt=0, le=1)  # how far the target moves: 1 is a copy
        termination_margin: float = Field(default=0.01, ge=0)
        entropy_coefficient: float = Field(default=0.01, ge=0)
        rho_clip: float | None = Field(default=1.0, gt=0)

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed

    def initial_state(self, spec: EnvSpec) -> State:
        config = self.config
        policy_config = OptionsPolicy.Config(
            **policy_settings(config),
            options=config.options,
            option_epsilon=config.option_epsilon,
            initial_log_std=config.initial_log_std,
        )
        with seeded_initialisation(self.seed):
            policy = OptionsPolicy(policy_config, spec).to(self.device)
        return State(policy=policy, target=target_copy(policy), optimizer=adam(config.lr, policy))

    def policy(self, state: State) -> OptionsPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        config = self.config
        batch = to_tensors(sample, state.policy.normalizer, self.device, learn_moments=True)
        option = batch.extras["option"]
        index = (option - 1).clamp(min=0)
        weights = batch.weights * (option != NO_OPTION)

        target = q_target(state, batch, index)
        heads = state.policy(batch.observation)
        q = of_option(heads.q, index)
        critic = critic_loss(q, target, weights)
        policy, entropy = policy_loss(
            state, batch, heads, index, (target - q).detach(), weights, config
        )
        next_heads = state.policy(batch.next_observation)
        termination = termination_loss(next_heads, index, batch.discount, weights, config)
        norm = gradient_step(state.optimizer, critic + policy + termination, config.max_grad_norm)

        state.updates += 1
        if state.updates % config.target_period == 0:
            polyak_update(state.target, state.policy, config.tau)
        return UpdateResult(
            {
                "critic_loss": critic.detach(),
                "policy_loss": policy.detach(),
                "termination_loss": termination.detach(),
                "q": q.detach().mean(),
                "entropy": entropy.detach().mean(),
                "termination": of_option(next_heads.termination, index).detach().mean(),
                "option_beginnings": batch.extras["beginning"].to(q.dtype).mean(),
                "grad_norm": norm,
                **usage(option, config.options),
            },
            priorities=(q.detach() - target).abs(),
        )


@torch.no_grad()
def q_target(state: State, batch: TensorBatch, index: Tensor) -> Tensor:
    """y [B]: what is expected on arrival, where the option `index` [B] goes on or ends."""
    heads = state.target(batch.next_observation)
    ending = of_option(heads.termination, index)
    on_arrival = (1 - ending) * of_option(heads.q, index) + ending * heads.q.amax(-1)
    return batch.reward + batch.discount * on_arrival


def critic_loss(q: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    assert q.shape == target.shape == weights.shape
    return (weights * 0.5 * (q - target).square()).mean()


def policy_loss(
    state: State,
    batch: TensorBatch,
    heads: OptionHeads,
    index: Tensor,
    advantage: Tensor,
    weights: Tensor,
    config: OptionCritic.Config,
) -> tuple[Tensor, Tensor]:
    """The loss, and the entropies [B] of the options' policies."""
    action = batch.extras["policy_action"]
    log_prob, entropy = state.policy.log_prob_and_entropy(heads, index, action)
    assert log_prob.shape == entropy.shape == advantage.shape == weights.shape
    rho = torch.ones_like(log_prob)
    if config.rho_clip is not None:
        ratio = (log_prob.detach() - batch.extras["log_prob"]).exp()
        rho = ratio.clamp(max=config.rho_clip)
    gain = rho * log_prob * advantage + config.entropy_coefficient * entropy
    return -(weights * gain).mean(), entropy


def termination_loss(
    next_heads: OptionHeads,
    index: Tensor,
    discount: Tensor,
    weights: Tensor,
    config: OptionCritic.Config,
) -> Tensor:
    """Where the episode terminated there is no s' for an option to end in."""
    q = next_heads.q.detach()
    advantage = of_option(q, index) - q.amax(-1) + config.termination_margin
    ending = of_option(next_heads.termination, index)
    assert ending.shape == advantage.shape == discount.shape == weights.shape
    return (weights * (discount > 0) * ending * advantage).mean()


def usage(option: Tensor, options: int) -> dict[str, Tensor]:
    """Of the steps with an option, the share of each, and the entropy of these in nats."""
    counts = torch.bincount(option, minlength=options + 1)[1 : options + 1]
    shares = counts / counts.sum().clamp(min=1)
    named = {f"option_share_{number}": share for number, share in enumerate(shares, start=1)}
    return {**named, "option_entropy": -torch.xlogy(shares, shares).sum()}
