"""The DQN family: four targets, one file.

    2013, one network      (arXiv 1312.5602)   y = r + discount max_a Q(s', a)
    2015, target network   (Nature 518)        y = r + discount max_a Q'(s', a)
    Double                 (arXiv 1509.06461)  y = r + discount Q'(s', argmax_a Q(s', a))
    Dueling                (arXiv 1511.06581)  Q = V + A - mean A, with any of the targets

`target_network`, `double` and `dueling` are switches. n-step returns are `n_step`, prioritised
replay is `replay.sampler=prioritized`; the loss is weighted by the importance weights either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Adam

from learner.optimization import (
    adam,
    gradient_step,
    polyak_update,
    seeded_initialisation,
    target_copy,
)
from learner.tensors import TensorBatch, to_tensors
from repertory.config import OffPolicyConfig
from repertory.policies.greedy_q import GreedyQPolicy
from repertory.policies.policy import policy_settings
from repertory.settings import ExplorationSettings, part_default
from repertory.specs import EnvSpec
from repertory.types import Sample, UpdateResult


@dataclass
class State:
    policy: GreedyQPolicy  # the Q network itself
    target: GreedyQPolicy
    optimizer: Adam
    updates: int = 0


class DQN:
    data = "off_policy"
    action_kinds = frozenset({"discrete"})
    observation_kinds = frozenset({"vector", "pixels"})
    needs_bounds = False
    paper = "arXiv 1312.5602, Nature 518, arXiv 1509.06461, 1511.06581"

    class Config(OffPolicyConfig):
        algorithm: str = "dqn"
        lr: float = Field(default=2.5e-4, ge=0, le=1)
        batch_size: int = Field(default=128, ge=1)
        random_steps: int = Field(default=0, ge=0)  # epsilon starts at 1 anyway
        train_every: int = Field(default=4, ge=1)
        updates_per_step: float = Field(default=0.25, gt=0)
        exploration: ExplorationSettings = part_default("epsilon_greedy")
        target_network: bool = True
        double: bool = False
        dueling: bool = False
        target_period: int = Field(default=500, ge=1)  # updates from one move to the next
        tau: float = Field(default=1.0, gt=0, le=1)  # how far the target moves: 1 is a copy
        loss: Literal["huber", "squared"] = "huber"

        @model_validator(mode="after")
        def _double_needs_a_target(self) -> DQN.Config:
            if self.double and not self.target_network:
                raise ValueError(
                    "learner.double needs two networks: set learner.target_network=true, "
                    "or learner.double=false"
                )
            return self

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed

    def initial_state(self, spec: EnvSpec) -> State:
        config = self.config
        policy_config = GreedyQPolicy.Config(**policy_settings(config), dueling=config.dueling)
        with seeded_initialisation(self.seed):
            policy = GreedyQPolicy(policy_config, spec).to(self.device)
        return State(
            policy=policy,
            target=target_copy(policy),
            optimizer=adam(config.lr, policy),
        )

    def policy(self, state: State) -> GreedyQPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        config = self.config
        batch = to_tensors(sample, state.policy.normalizer, self.device, learn_moments=True)

        target = q_target(state, batch, config)
        q = chosen(state.policy(batch.observation), batch.action)
        loss = td_loss(q, target, batch.weights, config)
        norm = gradient_step(state.optimizer, loss, config.max_grad_norm)

        state.updates += 1
        if state.updates % config.target_period == 0:
            polyak_update(state.target, state.policy, config.tau)
        return UpdateResult(
            {"loss": loss.detach(), "q": q.detach().mean(), "grad_norm": norm},
            priorities=(q.detach() - target).abs(),
        )


@torch.no_grad()
def q_target(state: State, batch: TensorBatch, config: DQN.Config) -> Tensor:
    """y [B] by whichever of the targets is switched on."""
    judge = state.target if config.target_network else state.policy
    next_q = judge(batch.next_observation)  # [B, actions]
    if config.double:
        next_value = chosen(next_q, state.policy(batch.next_observation).argmax(-1))
    else:
        next_value = next_q.amax(-1)
    return batch.reward + batch.discount * next_value


def chosen(q: Tensor, action: Tensor) -> Tensor:
    """Q of the given action of each row: [B, actions], [B] -> [B]."""
    return q.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def td_loss(q: Tensor, target: Tensor, weights: Tensor, config: DQN.Config) -> Tensor:
    assert q.shape == target.shape == weights.shape
    if config.loss == "huber":
        errors = F.smooth_l1_loss(q, target, reduction="none")
    else:
        errors = 0.5 * (q - target).square()
    return (weights * errors).mean()
