"""QR-DQN: the distribution of returns by its quantiles (Dabney et al. 2017, arXiv 1710.10044).

    theta_i(s, a) is the quantile of Z(s, a) at tau_i = (2i + 1) / 2N, i = 0 .. N - 1
    Q(s, a) = mean_i theta_i(s, a)
    a* = argmax_a Q'(s', a), or with `double` argmax_a Q(s', a)
    y_j = r + discount theta'_j(s', a*),  u_ij = y_j - theta_i(s, a)
    minimise sum_i mean_j |tau_i - 1{u_ij < 0}| L_kappa(u_ij) / kappa

L_kappa is the Huber loss: u^2 / 2 up to kappa, kappa (|u| - kappa / 2) beyond. Unlike C51 it need
not be told the range of returns.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from pydantic import Field
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
    weighted,
)
from learner.optimization import Metrics, gradient_step, seeded_initialisation
from learner.tensors import TensorBatch, to_tensors
from repertory.policies.distributional_q import DistributionalQPolicy
from repertory.specs import EnvSpec
from repertory.types import Sample, UpdateResult

State: TypeAlias = QState[DistributionalQPolicy]


class QRDQN:
    data = "off_policy"
    action_kinds = frozenset({"discrete"})
    observation_kinds = frozenset({"vector", "pixels"})
    needs_bounds = False
    paper = "arXiv 1710.10044"

    class Config(QConfig):
        algorithm: str = "qr_dqn"
        quantiles: int = Field(default=50, ge=2)  # 200 in the paper
        kappa: float = Field(default=1.0, gt=0)

    def __init__(self, config: Config, *, device: torch.device, seed: int) -> None:
        self.config = config
        self.device = device
        self.seed = seed
        self.step = step_of(step, config)

    def initial_state(self, spec: EnvSpec) -> State:
        config = self.config
        policy_config = DistributionalQPolicy.Config(
            **network_settings(config), atoms=config.quantiles
        )
        with seeded_initialisation(self.seed):
            policy = DistributionalQPolicy(policy_config, spec)
        return first_state(policy.to(self.device), config, self.seed)

    def policy(self, state: State) -> DistributionalQPolicy:
        return state.policy

    def update(self, state: State, sample: Sample) -> UpdateResult:
        batch = to_tensors(sample, state.policy.normalizer, self.device, learn_moments=True)
        metrics, priorities = self.step(state, batch)
        count_update(state, self.config)
        return UpdateResult(metrics, priorities)


def step(state: State, batch: TensorBatch, config: QRDQN.Config) -> tuple[Metrics, Tensor]:
    """With the priorities [B] that the batch gets."""
    target = target_quantiles(state, batch, config)
    outputs = state.policy(batch.observation, noise_of(state, config))
    quantiles = chosen(outputs, batch.action)  # [B, N]
    losses = quantile_losses(quantiles, target, config.kappa)
    loss = weighted(losses, batch.weights)
    norm = gradient_step(state.optimizer, loss, config.max_grad_norm)
    quantiles = quantiles.detach()
    metrics = {
        "loss": loss.detach(),
        "q": quantiles.mean(),
        "spread": quantiles.std(-1).mean(),
        "grad_norm": norm,
    }
    return metrics, (quantiles.mean(-1) - target.mean(-1)).abs()


@torch.no_grad()
def target_quantiles(state: State, batch: TensorBatch, config: QRDQN.Config) -> Tensor:
    """y [B, N]."""
    next_quantiles = greedy_next(state, batch.next_observation, config, state.policy.expected)
    return batch.reward[:, None] + batch.discount[:, None] * next_quantiles


def quantile_losses(quantiles: Tensor, target: Tensor, kappa: float) -> Tensor:
    """The quantile Huber loss of each row [B], for quantiles [B, N] and a target [B, M]."""
    assert quantiles.ndim == target.ndim == 2
    count = quantiles.shape[1]
    steps = torch.arange(count, device=quantiles.device, dtype=quantiles.dtype)
    levels = (2 * steps + 1) / (2 * count)
    difference = target[:, None, :] - quantiles[:, :, None]  # [B, N, M]
    huber = F.huber_loss(difference, torch.zeros_like(difference), reduction="none", delta=kappa)
    slopes = (levels[:, None] - (difference.detach() < 0).to(levels.dtype)).abs()
    return (slopes * huber / kappa).mean(2).sum(1)
