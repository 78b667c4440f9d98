"""Small steps every algorithm takes: a gradient step on chosen parameters, targets that follow."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from learner.data_parallel import averaged

ModuleType = TypeVar("ModuleType", bound=nn.Module)


def adam(lr: float, *modules: nn.Module | nn.Parameter) -> Adam:
    parameters = [
        parameter
        for module in modules
        for parameter in ([module] if isinstance(module, nn.Parameter) else module.parameters())
    ]
    return Adam(parameters, lr=lr, fused=True)


def gradient_step(optimizer: Optimizer, loss: Tensor, max_grad_norm: float | None = None) -> Tensor:
    """One step on the optimiser's own parameters; no other gradient is computed or touched.

    Where several replicas learn as one, the gradient is that of their joined batch. Returns its
    norm before clipping.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = averaged(torch.autograd.grad(loss, parameters))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    norm = nn.utils.get_total_norm(gradients)
    if max_grad_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
    optimizer.step()
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
