"""Small steps every algorithm takes: a gradient step on chosen parameters, targets that follow."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from learner.adam import Adam
from learner.data_parallel import averaged

ModuleType = TypeVar("ModuleType", bound=nn.Module)
Metrics = dict[str, Tensor]


def adam(lr: float, *modules: nn.Module | nn.Parameter) -> Adam:
    parameters = [
        parameter
        for module in modules
        for parameter in ([module] if isinstance(module, nn.Parameter) else module.parameters())
    ]
    return Adam(lr, parameters)


def gradient_step(optimizer: Adam, loss: Tensor, max_grad_norm: float | None = None) -> Tensor:
    """One step on the optimiser's own parameters; no other gradient is computed or touched.

    Where several replicas learn as one, the gradient is that of their joined batch. Returns its
    norm before clipping.
    """
    gradients = averaged(torch.autograd.grad(loss, optimizer.parameters))
    if optimizer.join is not None:  # while a step is recorded that threads share (`row_split`)
        gradients = [optimizer.join(gradient) for gradient in gradients]
    norm = vector_norm(torch.stack([vector_norm(gradient) for gradient in gradients]))
    if max_grad_norm is not None:
        torch._foreach_mul_(list(gradients), (max_grad_norm / (norm + 1e-6)).clamp(max=1))
    optimizer.step(gradients)
    return norm


@torch.no_grad()
def polyak_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """target <- (1 - tau) target + tau source."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


def target_copy(module: ModuleType) -> ModuleType:
    """A target network: the same parameters now, moved by `polyak_update` alone."""
    return copy.deepcopy(module).requires_grad_(False)


@contextmanager
def seeded_initialisation(seed: int) -> Iterator[None]:
    """Random initial weights from a seed of their own; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
