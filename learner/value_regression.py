"""V(s) by squared error against the value targets of the experience."""

from __future__ import annotations

import torch
from torch import Tensor

from learner.adam import Adam
from learner.critics import StateValue
from learner.experience import Experience, Metrics
from learner.optimization import gradient_step


def value_loss(value: StateValue, experience: Experience) -> Tensor:
    predicted = value(experience.observation)
    assert predicted.shape == experience.value_target.shape
    return (predicted - experience.value_target).square().mean()


def fit_value(
    value: StateValue,
    optimizer: Adam,
    experience: Experience,
    steps: int,
    max_grad_norm: float | None,
) -> Metrics:
    """Steps on everything at once, towards targets that stay; the loss is that at the last step."""
    losses = []
    for _ in range(steps):
        loss = value_loss(value, experience)
        gradient_step(optimizer, loss, max_grad_norm)
        losses.append(loss.detach())
    return {
        "value_loss": losses[-1],
        "value_loss_change": losses[-1] - losses[0],
        "explained_variance": explained_variance(value, experience),
    }


@torch.no_grad()
def explained_variance(value: StateValue, experience: Experience) -> Tensor:
    """1: perfect; 0: no better than a constant."""
    residual = experience.value_target - value(experience.observation)
    return 1 - residual.var() / (experience.value_target.var() + 1e-8)
