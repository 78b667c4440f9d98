"""A small network for a few rows at a time: NumPy over the memory of torch's own parameters.

A worker that acts for one copy spends most of its time in the overhead of torch's calls. The arrays
here are views of the parameters and of the normaliser's statistics, so new weights are seen at once
and nothing is copied; a network that is moved to another device is looked at anew (`TorchPolicy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import nn

from repertory.policies.normalizer import Normalizer, RunningMoments
from repertory.types import Array

MOST_ROWS = 256  # beyond, torch's kernels are as fast


class LeanNetwork:
    """Linear layers and what is between them: [B, inputs] -> [B, outputs].

    With `moments` it takes raw observations and normalises them first.
    """

    def __init__(self, layers: Sequence[nn.Module], moments: RunningMoments | None = None) -> None:
        self._moments: tuple[Array, Array] | None = None
        if moments is not None:
            self._moments = moments.mean.numpy(), moments.variance.numpy()
        # Where they were: a learner may give its parameters other memory.
        self._parameters = [one for layer in _flat(layers) for one in layer.parameters()]
        self._addresses = self._present_addresses()
        self._steps: list[tuple[Array, Array, Callable[..., Any] | None]] = []
        for layer in _flat(layers):
            if isinstance(layer, nn.Linear):
                weight, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()
                self._steps.append((weight, bias, None))
            else:
                weight, bias, _ = self._steps.pop()
                self._steps.append((weight, bias, _ACTIVATIONS[type(layer)]))

    @staticmethod
    def possible(layers: Sequence[nn.Module]) -> bool:
        """Whether all of it is of the kinds that are known here, on the CPU."""
        flat = list(_flat(layers))
        return (
            bool(flat)
            and isinstance(flat[0], nn.Linear)
            and all(type(layer) in (nn.Linear, *_ACTIVATIONS) for layer in flat)
            and all(
                parameter.device.type == "cpu" for one in flat for parameter in one.parameters()
            )
        )

    @property
    def stale(self) -> bool:
        """Whether the parameters have moved to other memory since."""
        return self._present_addresses() != self._addresses

    def _present_addresses(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._parameters]

    def __call__(self, x: Array) -> Array:
        if self._moments is not None:
            mean, variance = self._moments
            centred = (x - mean) / np.sqrt(variance + RunningMoments.EPSILON)
            x = np.clip(centred, -Normalizer.CLIP, Normalizer.CLIP).astype(np.float32)
        for weight, bias, activation in self._steps:
            x = x @ weight
            x += bias
            if activation is not None:
                activation(x, out=x)
        return x


class LeanView:
    """The lean form of a policy's network, made when it first acts; a copied policy has its own."""

    def __init__(self) -> None:
        self._made = False
        self._network: LeanNetwork | None = None

    def of(
        self, layers: Callable[[], Sequence[nn.Module]], moments: RunningMoments | None
    ) -> LeanNetwork | None:
        """None where torch has to do it."""
        if not self._made or (self._network is not None and self._network.stale):
            chain = layers()
            self._network = LeanNetwork(chain, moments) if LeanNetwork.possible(chain) else None
            self._made = True
        return self._network

    def __deepcopy__(self, memo: Any) -> LeanView:
        return LeanView()


def _flat(layers: Sequence[nn.Module]) -> Iterator[nn.Module]:
    for layer in layers:
        if isinstance(layer, nn.Sequential):
            yield from _flat(list(layer))
        else:
            yield layer


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, 0, out=out)


_ACTIVATIONS: dict[type[nn.Module], Callable[..., Any]] = {nn.ReLU: _relu, nn.Tanh: np.tanh}
