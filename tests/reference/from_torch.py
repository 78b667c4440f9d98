"""Between our torch modules and the NumPy reference: weights across, float64, comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from reference.numpy_mlp import Activation, Array, Mlp
from torch import Tensor, nn

from learner.critics import TwinQ
from repertory.policies.networks import BatchedLinear

# Both sides compute in float64 and differ in the order of sums only: some 1e-15 relative for each
# operation, a few thousand times that where large terms cancel. A wrong sign, index, factor or
# constant is far above.
RELATIVE, ABSOLUTE = 1e-9, 1e-12


@contextmanager
def double_precision() -> Iterator[None]:
    """Networks and noise made inside are float64, whatever asks for torch's default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@torch.no_grad()
def scramble(module: nn.Module, seed: int, scale: float = 0.5) -> None:
    """Random parameters, biases too: initial zeros, or targets equal to networks, hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))


def linear_parameters(module: nn.Module) -> list[Array]:
    """[W0, b0, W1, b1, ...] of every linear layer in order, weights as [inputs, outputs]."""
    return _of_linears(module, gradient=False)


def linear_gradients(module: nn.Module) -> list[Array]:
    return _of_linears(module, gradient=True)


def _of_linears(module: nn.Module, *, gradient: bool) -> list[Array]:
    arrays = []
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            arrays += [_read(layer.weight, gradient).T.copy(), _read(layer.bias, gradient)]
    return arrays


def member_parameters(twin: TwinQ, member: int) -> list[Array]:
    """The same of one of the two critics, as a network of its own."""
    return _of_member(twin, member, gradient=False)


def member_gradients(twin: TwinQ, member: int) -> list[Array]:
    return _of_member(twin, member, gradient=True)


def _of_member(twin: TwinQ, member: int, *, gradient: bool) -> list[Array]:
    arrays = []
    for layer in twin.modules():
        if isinstance(layer, BatchedLinear):
            weight, bias = _read(layer.weight, gradient), _read(layer.bias, gradient)
            arrays += [weight[member], bias[member, 0]]
    return arrays


def _read(parameter: Tensor, gradient: bool) -> Array:
    tensor = parameter.grad if gradient else parameter
    assert tensor is not None, "no gradient was computed"
    return tensor.detach().numpy().copy()


def mlp_of(module: nn.Module, hidden: Activation, last: Activation = "identity") -> Mlp:
    return Mlp(linear_parameters(module), hidden, last)


def critics_of(twin: TwinQ) -> tuple[Mlp, Mlp]:
    return Mlp(member_parameters(twin, 0), "relu"), Mlp(member_parameters(twin, 1), "relu")


def assert_close(actual: object, expected: object, what: str = "") -> None:
    """Same shape (nothing broadcasts) and same numbers."""
    left = actual.detach().numpy() if isinstance(actual, Tensor) else np.asarray(actual)
    right = np.asarray(expected)
    assert left.shape == right.shape, f"{what}: shape {left.shape}, expected {right.shape}"
    np.testing.assert_allclose(left, right, rtol=RELATIVE, atol=ABSOLUTE, err_msg=what)


def assert_all_close(actual: Sequence[Array], expected: Sequence[Array], what: str = "") -> None:
    assert len(actual) == len(expected), what
    for index, (left, right) in enumerate(zip(actual, expected, strict=True)):
        assert_close(left, right, f"{what}, array {index}")


def snapshot(module: nn.Module) -> list[Array]:
    """A copy of every parameter."""
    return [parameter.detach().numpy().copy() for parameter in module.parameters()]
