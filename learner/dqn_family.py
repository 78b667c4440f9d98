"""What DQN, C51 and QR-DQN share: their switches, their state, and when the target network moves.

`target_network`, `double`, `dueling` and `noisy` combine freely, with n-step returns (`n_step`) and
prioritised replay (`replay.sampler=prioritized`): all of them together are Rainbow (arXiv
1710.02298).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from learner.adam import Adam
from learner.data_parallel import normal_noise
from learner.optimization import adam, polyak_update, target_copy
from learner.steps import Step
from repertory.config import OffPolicyConfig
from repertory.policies.noisy import Draw
from repertory.policies.policy import TorchPolicy, policy_settings
from repertory.settings import ExplorationSettings, part_default

PolicyType = TypeVar("PolicyType", bound=TorchPolicy)
Outputs = TypeVar("Outputs")


@dataclass
class QState(Generic[PolicyType]):
    policy: PolicyType  # the network itself
    target: PolicyType
    optimizer: Adam
    generator: torch.Generator  # of the noise of noisy networks
    updates: int = 0


class QConfig(OffPolicyConfig):
    lr: float = Field(default=2.5e-4, ge=0, le=1)
    batch_size: int = Field(default=128, ge=1)
    random_steps: int = Field(default=0, ge=0)  # epsilon starts at 1 anyway
    train_every: int = Field(default=4, ge=1)
    updates_per_step: float = Field(default=0.25, gt=0)
    exploration: ExplorationSettings = part_default("epsilon_greedy")
    target_network: bool = True
    double: bool = False
    dueling: bool = False
    noisy: bool = False  # networks that explore by themselves; then `exploration: none` is enough
    target_period: int = Field(default=500, ge=1)  # updates from one move to the next
    tau: float = Field(default=1.0, gt=0, le=1)  # how far the target moves: 1 is a copy

    @model_validator(mode="after")
    def _double_needs_a_target(self) -> Self:
        if self.double and not self.target_network:
            raise ValueError(
                "learner.double needs two networks: set learner.target_network=true, "
                "or learner.double=false"
            )
        return self


def network_settings(config: QConfig) -> dict[str, Any]:
    """What the networks of the family take over from their learner's settings."""
    return {**policy_settings(config), "dueling": config.dueling, "noisy": config.noisy}


def step_of(function: Callable[..., Outputs], config: Any) -> Callable[..., Outputs]:
    """The step with its settings; noisy networks draw random numbers in it, so theirs stays."""
    own = partial(function, config=config)
    return own if config.noisy else Step(own)


def first_state(policy: PolicyType, config: QConfig, seed: int) -> QState[PolicyType]:
    return QState(
        policy=policy,
        target=target_copy(policy),
        optimizer=adam(config.lr, policy),
        generator=torch.Generator(policy.device).manual_seed(seed),
    )


def noise_of(state: QState[Any], config: QConfig) -> Draw | None:
    """Noise for one pass through a network, anew for each: networks and rows are independent."""
    if not config.noisy:
        return None
    generator = state.generator
    return lambda shape: normal_noise(shape, generator, generator.device)


def greedy_next(
    state: QState[Any], observation: Tensor, config: QConfig, value: Callable[[Tensor], Tensor]
) -> Tensor:
    """What the judging network says of the best action of each row: [B, ...].

    `value` makes of a network's outputs [B, actions, ...] what actions are worth [B, actions]. With
    `double` the network that learns chooses the action; else the judge itself does.
    """
    judge = state.target if config.target_network else state.policy
    outputs = judge(observation, noise_of(state, config))
    chooser = outputs
    if config.double:
        chooser = state.policy(observation, noise_of(state, config))
    return chosen(outputs, value(chooser).argmax(-1))


def chosen(q: Tensor, action: Tensor) -> Tensor:
    """What belongs to the given action of each row: [B, actions, ...], [B] -> [B, ...]."""
    index = action.reshape(-1, *[1] * (q.ndim - 1)).expand(-1, 1, *q.shape[2:])
    return q.gather(1, index).squeeze(1)


def weighted(losses: Tensor, weights: Tensor) -> Tensor:
    """The mean over the batch, each row by its importance weight."""
    assert losses.shape == weights.shape
    return (weights * losses).mean()


def count_update(state: QState[Any], config: QConfig) -> None:
    """One update more; the target moves at every `target_period`th."""
    state.updates += 1
    if state.updates % config.target_period == 0:
        polyak_update(state.target, state.policy, config.tau)
