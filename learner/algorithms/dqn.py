"""The DQN family: four targets, one file.

    2013, one network      (arXiv 1312.5602)   y = r + discount max_a Q(s', a)
    2015, target network   (Nature 518)        y = r + discount max_a Q'(s', a)
    Double                 (arXiv 1509.06461)  y = r + discount Q'(s', argmax_a Q(s', a))
    Dueling                (arXiv 1511.06581)  Q = V + A - mean A, with any of the targets

`target_network`, `double`, `dueling` and `noisy` are switches (`learner.dqn_family`). n-step
returns are `n_step`, prioritised replay is `replay.sampler=prioritized`; the loss is weighted by
the importance weights either way.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from learner.dqn_family import (
    QConfig,
    QState,
    chosen,
    count_update,
    first_state,
    greedy_next,
    network_settings,
    noise_of,
    step_of,
)
from learner.optimization import Metrics, gradient_step, seeded_initialisation
from learner.tensors import TensorBatch, to_tensors
from repertory.policies.greedy_q import GreedyQPolicy
from repertory.specs import EnvSpec
from repertory.types import Sample, UpdateResult

State: TypeAlias = QState[GreedyQPolicy]


class DQN:
    data = "off_policy"
    action_kinds = frozenset({"discrete"})
    observation_kinds = frozenset({"vector", "pixels"})
    needs_bounds = False
    paper = "arXiv 1312.5602, Nature 518, arXiv 1509.06461, 1511.06581"

    class Config(QConfig):
        algorithm: str = "dqn"
        loss: Literal["huber", "squared"] = "huber"

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        self.step = step_of(step, config)

    def initial_state(self, spec: EnvSpec) -> State:
        with seeded_initialisation(self.seed):
            policy = GreedyQPolicy(GreedyQPolicy.Config(**network_settings(self.config)), spec)
        return first_state(policy.to(self.device), self.config, self.seed)

    def policy(self, state: State) -> GreedyQPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        batch = to_tensors(sample, state.policy.normalizer, self.device, learn_moments=True)
        metrics, priorities = self.step(state, batch)
        count_update(state, self.config)
        return UpdateResult(metrics, priorities)


def step(state: State, batch: TensorBatch, config: DQN.Config) -> tuple[Metrics, Tensor]:
    """With the priorities [B] that the batch gets."""
    target = q_target(state, batch, config)
    q = chosen(state.policy(batch.observation, noise_of(state, config)), batch.action)
    loss = td_loss(q, target, batch.weights, config)
    norm = gradient_step(state.optimizer, loss, config.max_grad_norm)
    q = q.detach()
    return {"loss": loss.detach(), "q": q.mean(), "grad_norm": norm}, (q - target).abs()


@torch.no_grad()
def q_target(state: State, batch: TensorBatch, config: DQN.Config) -> Tensor:
    """y [B] by whichever of the targets is switched on."""
    next_value = greedy_next(state, batch.next_observation, config, lambda q: q)
    return batch.reward + batch.discount * next_value


def td_loss(q: Tensor, target: Tensor, weights: Tensor, config: DQN.Config) -> Tensor:
    assert q.shape == target.shape == weights.shape
    if config.loss == "huber":
        errors = F.smooth_l1_loss(q, target, reduction="none")
    else:
        errors = 0.5 * (q - target).square()
    return (weights * errors).mean()
