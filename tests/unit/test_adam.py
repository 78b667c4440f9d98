"""Our Adam against torch's own, in both of its forms, and what of it a checkpoint keeps."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from learner.adam import Adam


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def gradients_of(module: nn.Module, seed: int) -> list[torch.Tensor]:
    inputs = torch.randn(16, 5, generator=torch.Generator().manual_seed(seed))
    loss = module(inputs).square().mean()
    return list(torch.autograd.grad(loss, list(module.parameters())))


@pytest.mark.parametrize("fused", [True, False])
def test_many_steps_are_those_of_torch(fused: bool) -> None:
    mine, theirs = network(), network()
    optimizer = Adam(0.01, mine.parameters())
    optimizer.fused = fused
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for seed in range(50):
        optimizer.step(gradients_of(mine, seed))
        for parameter, gradient in zip(
            theirs.parameters(), gradients_of(theirs, seed), strict=True
        ):
            parameter.grad = gradient
        reference.step()
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        # Fifty steps of 0.01: what differs is the order of roundings.
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def arrays_of(optimizer: Adam) -> dict[str, dict[str, np.ndarray]]:
    return {
        index: {name: tensor.numpy().copy() for name, tensor in slots.items()}
        for index, slots in optimizer.state().items()
    }


@pytest.mark.parametrize("fused", [True, False])
def test_a_restored_one_goes_on_to_the_bit(fused: bool) -> None:
    first = network()
    optimizer = Adam(0.01, first.parameters())
    optimizer.fused = fused
    for seed in range(7):
        optimizer.step(gradients_of(first, seed))
    second = copy.deepcopy(first)
    restored = Adam(0.01, second.parameters())
    restored.fused = fused
    restored.load_state(arrays_of(optimizer))
    optimizer.step(gradients_of(first, 8))
    restored.step(gradients_of(second, 8))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_moments_that_torch_wrote_are_understood() -> None:
    """Checkpoints from before this class hold no debias."""
    first = network()
    optimizer = Adam(0.01, first.parameters())
    optimizer.fused = False
    for seed in range(7):
        optimizer.step(gradients_of(first, seed))
    second = copy.deepcopy(first)
    saved = arrays_of(optimizer)
    for slots in saved.values():
        del slots["debias"]
    restored = Adam(0.01, second.parameters())
    restored.fused = False
    restored.load_state(saved)
    optimizer.step(gradients_of(first, 8))
    restored.step(gradients_of(second, 8))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_moments_of_other_parameters_are_refused() -> None:
    optimizer = Adam(0.01, network().parameters())
    saved = arrays_of(optimizer)
    del saved["3"]
    with pytest.raises(KeyError, match="3 parameters, not of 4"):
        optimizer.load_state(saved)


def test_what_was_saved_before_the_first_step_brings_it_back_to_the_beginning() -> None:
    module = network()
    optimizer = Adam(0.01, module.parameters())
    optimizer.step(gradients_of(module, 0))
    optimizer.load_state({})
    assert all(not moment.any() for moment in (*optimizer.means, *optimizer.squares))
    assert float(optimizer.state()["0"]["step"]) == 0
