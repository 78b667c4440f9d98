"""Feed-forward networks for vectors and pixels: the torsos and heads of every policy and critic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from repertory.policies.noisy import Draw, NoisyLinear, apply
from repertory.specs import EnvSpec


class Torso(nn.Module):
    """Observation to features: an MLP over a vector, or the convolutions of Mnih et al. (2015).

    Pixels come as uint8 [B, C, H, W] and are divided by 255 here, so that everything before this
    moves bytes. `hidden_sizes` are the dense layers, after the convolutions where there are any;
    `extra_inputs` join the observation where those begin, as the action does in Q(s, a). With
    `noisy` the dense layers are noisy ones (`repertory.policies.noisy`).
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden_sizes: Sequence[int],
        activation: type[nn.Module] = nn.ReLU,
        extra_inputs: int = 0,
        noisy: bool = False,
    ) -> None:
        super().__init__()
        self.pixels = spec.observation_kind == "pixels"
        if self.pixels:
            channels, height, width = spec.observation_shape
            self.convolutions = nn.Sequential(
                nn.Conv2d(channels, 32, kernel_size=8, stride=4),
                nn.ReLU(),
                nn.Conv2d(32, 64, kernel_size=4, stride=2),
                nn.ReLU(),
                nn.Conv2d(64, 64, kernel_size=3, stride=1),
                nn.ReLU(),
                nn.Flatten(),
            )
            with torch.no_grad():
                inputs = self.convolutions(torch.zeros(1, channels, height, width)).shape[1]
        else:
            inputs = math.prod(spec.observation_shape)
        linear = NoisyLinear if noisy else nn.Linear
        sizes = [inputs + extra_inputs, *hidden_sizes]
        self.dense = mlp(sizes, activation, activate_last=True, linear=linear)
        self.features = hidden_sizes[-1] if hidden_sizes else inputs + extra_inputs

    def forward(
        self, observation: Tensor, extra: Tensor | None = None, draw: Draw | None = None
    ) -> Tensor:
        """[B, ...], and [B, extra inputs] where there are any -> [B, features].

        `draw` is for noisy layers.
        """
        features = self.convolutions(observation.float() / 255) if self.pixels else observation
        if extra is not None:
            features = torch.cat([features, extra], dim=-1)
        for layer in self.dense:
            features = apply(layer, features, draw)
        return features

    def chain(self, head: nn.Module) -> tuple[nn.Module, ...]:
        """All layers up to this head; none on pixels, which are no chain of dense layers."""
        return () if self.pixels else (self.dense, head)


def mlp(
    sizes: Sequence[int],
    activation: type[nn.Module] = nn.ReLU,
    activate_last: bool = False,
    linear: Callable[[int, int], nn.Module] = nn.Linear,
) -> nn.Sequential:
    """Linear layers of the given sizes with an activation between them."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        layers.append(linear(inputs, outputs))
        if activate_last or index < len(sizes) - 2:
            layers.append(activation())
    return nn.Sequential(*layers)


class BatchedLinear(nn.Module):
    """N linear layers as one batched product: [N, B, inputs] -> [N, B, outputs]."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # the initialisation of nn.Linear
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)

    def member(self, index: int, x: Tensor) -> Tensor:
        """One of the layers alone: [B, inputs] -> [B, outputs]."""
        return torch.addmm(self.bias[index], x, self.weight[index])


def orthogonal_(module: nn.Module, gain: float) -> None:
    """Orthogonal weights and zero biases for every layer of `module`."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
