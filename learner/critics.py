"""Value functions that only learners need: twin Q(s, a) as one batched network, and V(s)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from repertory.policies.networks import BatchedLinear, Torso, orthogonal_
from repertory.specs import EnvSpec


class TwinQ(nn.Module):
    """Two independent Q(s, a), evaluated together: [B, O], [B, A] -> [2, B]."""

    def __init__(self, spec: EnvSpec, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        sizes = [math.prod(spec.observation_shape) + spec.action_size, *hidden_sizes, 1]
        self.layers = nn.ModuleList(
            BatchedLinear(2, inputs, outputs)
            for inputs, outputs in zip(sizes[:-1], sizes[1:], strict=True)
        )

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([observation, action], dim=-1).expand(2, -1, -1)
        *hidden, last = self.layers
        for layer in hidden:
            x = torch.relu(layer(x))
        return last(x).squeeze(-1)

    def first(self, observation: Tensor, action: Tensor) -> Tensor:
        """Q_1 alone [B]: half the work where the second is not looked at."""
        x = torch.cat([observation, action], dim=-1)
        *hidden, last = self.layers
        for layer in hidden:
            x = torch.relu(torch.addmm(layer.bias[0], x, layer.weight[0]))
        return torch.addmm(last.bias[0], x, last.weight[0]).squeeze(-1)


class StateValue(nn.Module):
    """V(s): [B, ...] -> [B]."""

    def __init__(self, spec: EnvSpec, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.torso = Torso(spec, hidden_sizes, nn.Tanh)
        self.head = nn.Linear(self.torso.features, 1)
        orthogonal_(self.torso, math.sqrt(2))
        orthogonal_(self.head, 1.0)

    def forward(self, observation: Tensor) -> Tensor:
        return self.head(self.torso(observation)).squeeze(-1)
