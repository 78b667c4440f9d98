"""A linear layer that explores by itself: noisy networks (Fortunato et al. 2017, arXiv 1706.10295).

    y = (mu_w + sigma_w * (f(e_out) f(e_in)^T)) x + mu_b + sigma_b * f(e_out)
    f(e) = sign(e) sqrt|e|,  e_in and e_out standard normal

How large the noise is, sigma, is learned with the rest, so that a network becomes sure of itself
where it has reason to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

# Standard normal noise of a shape [B, N]; without one, a noisy layer is its mean.
Draw = Callable[[Sequence[int]], Tensor]

INITIAL_SIGMA = 0.5  # over the square root of the inputs, as the paper has it for factorised noise


class NoisyLinear(nn.Module):
    """Each row of a batch has noise of its own: [B, inputs] -> [B, outputs].

    With factorised noise that takes no weights for each row, since
    (sigma_w * (e_out e_in^T)) x = e_out * (sigma_w (e_in * x)).
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.mean = nn.Linear(inputs, outputs)  # uniform within 1/sqrt(inputs), the paper's too
        self.deviation = nn.Linear(inputs, outputs)
        nn.init.constant_(self.deviation.weight, INITIAL_SIGMA / math.sqrt(inputs))
        nn.init.constant_(self.deviation.bias, INITIAL_SIGMA / math.sqrt(inputs))

    def forward(self, x: Tensor, draw: Draw | None = None) -> Tensor:
        mean: Tensor = self.mean(x)
        if draw is None:
            return mean
        noise_in = _compressed(draw((len(x), self.mean.in_features)))
        noise_out = _compressed(draw((len(x), self.mean.out_features)))
        noisy: Tensor = mean + noise_out * self.deviation(noise_in * x)
        return noisy


def _compressed(noise: Tensor) -> Tensor:
    return torch.sign(noise) * noise.abs().sqrt()


def apply(layer: nn.Module, x: Tensor, draw: Draw | None) -> Tensor:
    """A layer that is noisy or not."""
    applied: Tensor = layer(x, draw) if isinstance(layer, NoisyLinear) else layer(x)
    return applied
