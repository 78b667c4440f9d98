"""Multilayer perceptrons, Adam, clipping and polyak averaging in NumPy float64, backward by hand.

The ground the reference algorithms stand on. Nothing here imports torch or our own networks: where
both sides agree, two separate derivations agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Activation = Literal["identity", "relu", "tanh"]


class Mlp:
    """x -> last(... hidden(x W0 + b0) ... Wn + bn), weights as [inputs, outputs].

    `parameters` is the flat list [W0, b0, W1, b1, ...]; gradients come in the same order.
    """

    def __init__(
        self, parameters: Sequence[Array], hidden: Activation, last: Activation = "identity"
    ) -> None:
        self.parameters = [np.array(p, dtype=np.float64) for p in parameters]
        layers = len(parameters) // 2
        self.activations = [hidden] * (layers - 1) + [last]

    def __call__(self, x: Array) -> Array:
        return self.forward(x)[-1]

    def forward(self, x: Array) -> list[Array]:
        """The input and what every layer made of it; the last entry is the output."""
        trace = [x]
        for layer, activation in enumerate(self.activations):
            weight, bias = self.parameters[2 * layer : 2 * layer + 2]
            trace.append(_activate(trace[-1] @ weight + bias, activation))
        return trace

    def backward(self, trace: Sequence[Array], d_output: Array) -> tuple[list[Array], Array]:
        """Gradients of the parameters and of the input, given dL/d(output)."""
        gradients: list[Array] = []
        flowing = d_output
        for layer in reversed(range(len(self.activations))):
            flowing = flowing * _slope(trace[layer + 1], self.activations[layer])
            gradients = [trace[layer].T @ flowing, flowing.sum(0), *gradients]
            flowing = flowing @ self.parameters[2 * layer].T
        return gradients, flowing


def _activate(x: Array, activation: Activation) -> Array:
    if activation == "relu":
        return np.maximum(x, 0)
    return np.tanh(x) if activation == "tanh" else x


def _slope(y: Array, activation: Activation) -> Array:
    """The derivative of an activation, from its output."""
    if activation == "relu":
        return (y > 0).astype(np.float64)
    return 1 - y**2 if activation == "tanh" else np.ones_like(y)


class Adam:
    """Kingma & Ba (arXiv 1412.6980), algorithm 1, with its default constants (torch's too)."""

    def __init__(self, lr: float) -> None:
        self.lr = lr
        self.steps = 0
        self.first: list[Array] = []
        self.second: list[Array] = []

    def step(self, parameters: Sequence[Array], gradients: Sequence[Array]) -> None:
        """Moves `parameters` in place."""
        if not self.first:
            self.first = [np.zeros_like(p) for p in parameters]
            self.second = [np.zeros_like(p) for p in parameters]
        self.steps += 1
        for p, g, m, v in zip(parameters, gradients, self.first, self.second, strict=True):
            m[...] = 0.9 * m + 0.1 * g
            v[...] = 0.999 * v + 0.001 * g**2
            m_hat = m / (1 - 0.9**self.steps)
            v_hat = v / (1 - 0.999**self.steps)
            p -= self.lr * m_hat / (np.sqrt(v_hat) + 1e-8)


def global_norm(gradients: Sequence[Array]) -> float:
    return float(np.sqrt(sum((g**2).sum() for g in gradients)))


def clip_by_norm(gradients: Sequence[Array], limit: float | None) -> list[Array]:
    """Scaled down to `limit` where their common norm is above it.

    The 1e-6 in the denominator is torch's; it shrinks a clipped gradient by about 1e-6 relative.
    """
    if limit is None:
        return list(gradients)
    scale = min(1.0, limit / (global_norm(gradients) + 1e-6))
    return [scale * g for g in gradients]


def polyak(targets: Sequence[Array], sources: Sequence[Array], tau: float) -> None:
    """target <- (1 - tau) target + tau source, in place."""
    for target, source in zip(targets, sources, strict=True):
        target[...] = (1 - tau) * target + tau * source
