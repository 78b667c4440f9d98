"""The noisy layer against weights that are written out for each row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference.distributional import Layer
from reference.from_torch import (
    assert_all_close,
    assert_close,
    double_precision,
    linear_gradients,
    linear_parameters,
    scramble,
)
from torch import nn

from repertory.policies.noisy import NoisyLinear, apply


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def test_layer_and_its_gradients_equal_the_reference() -> None:
    layer, rng = NoisyLinear(4, 3), np.random.default_rng(0)
    scramble(layer, seed=0)
    reference = Layer(linear_parameters(layer))
    x, slope = rng.normal(size=(5, 4)), rng.normal(size=(5, 3))
    noises = [np.random.default_rng(1) for _ in range(2)]

    y = layer(torch.from_numpy(x), lambda shape: torch.from_numpy(noises[0].normal(size=shape)))
    y.backward(torch.from_numpy(slope))
    assert_close(y, reference.forward(x, lambda shape: noises[1].normal(size=shape)))
    assert_all_close(linear_gradients(layer), reference.backward(slope)[0])


def test_without_noise_it_is_its_mean() -> None:
    layer, x = NoisyLinear(4, 3), torch.ones(2, 4)
    assert torch.equal(layer(x), layer.mean(x))


def test_noise_has_the_spread_of_the_paper() -> None:
    """At the start sigma is 1/2 over the root of the inputs.

    The variance of f(e) is E|e| = sqrt(2 / pi) =: v. For x = 1 an output of n inputs varies by
    sigma^2 (n v^2 + v) = (v^2 + v / n) / 4. 20000 draws are within 5 % of it.
    """
    layer, generator = NoisyLinear(16, 1), torch.Generator().manual_seed(0)
    x = torch.ones(20_000, 16)
    with torch.no_grad():
        y = layer(x, lambda shape: torch.randn(shape, generator=generator))
        spread = float((y - layer(x)).var())
    v = np.sqrt(2 / np.pi)
    np.testing.assert_allclose(spread, (v**2 + v / 16) / 4, rtol=0.05)


def test_plain_layer_asks_for_no_noise() -> None:
    def refuse(shape: object) -> torch.Tensor:
        raise AssertionError("noise was drawn")

    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    assert torch.equal(apply(layer, x, refuse), layer(x))
