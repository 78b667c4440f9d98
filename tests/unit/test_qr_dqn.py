"""The quantile Huber loss; whole updates are in test_dqn_family."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference.distributional import quantile_huber
from reference.from_torch import assert_close, double_precision

from learner.algorithms.qr_dqn import quantile_losses


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


@pytest.mark.parametrize("kappa", [0.3, 1.0, 2.0])
def test_loss_and_gradient_equal_the_loop_over_pairs(kappa: float) -> None:
    rng = np.random.default_rng(0)
    theta = torch.tensor(rng.normal(size=(6, 5)), requires_grad=True)
    target = rng.normal(size=(6, 8))
    losses = quantile_losses(theta, torch.from_numpy(target), kappa)
    (gradient,) = torch.autograd.grad(losses.sum(), theta)
    for row in range(6):
        loss, slope = quantile_huber(theta[row].detach().numpy(), target[row], kappa)
        assert_close(losses[row], loss)
        assert_close(gradient[row], slope)


def test_loss_by_hand() -> None:
    """Levels 1/4 and 3/4, quantiles 0 and 1, one target 2, kappa 1: 1/4 * 3/2 + 3/4 * 1/2."""
    loss = quantile_losses(torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0]]), 1.0)
    assert_close(loss, [0.75])


def test_minimum_is_at_the_quantiles_of_what_is_aimed_at() -> None:
    """A small kappa makes it the pure quantile loss, whose minimum are the empirical quantiles."""
    target = torch.from_numpy(np.random.default_rng(0).exponential(size=(1, 400)))
    theta = torch.zeros(1, 4, requires_grad=True)
    optimizer = torch.optim.Adam([theta], lr=0.01)
    for _ in range(1500):
        optimizer.zero_grad()
        quantile_losses(theta, target, 1e-3).sum().backward()
        optimizer.step()
    wanted = np.quantile(target.numpy(), [0.125, 0.375, 0.625, 0.875])
    # Adam's last steps of 0.01, and the gaps of about 0.01 between 400 draws.
    np.testing.assert_allclose(theta.detach().numpy()[0], wanted, atol=0.05)


def test_shapes_never_broadcast() -> None:
    with pytest.raises(AssertionError):
        quantile_losses(torch.zeros(3), torch.zeros(3, 3), 1.0)
