"""Value functions that only learners need: Q(s, a), twins as one batched network, and V(s)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from repertory.policies.networks import BatchedLinear, Torso, orthogonal_
from repertory.specs import EnvSpec


class ActionValue(nn.Module):
    """One Q(s, a): [B, ...], [B, A] -> [B]. The action joins after the convolutions."""

    def __init__(self, spec: EnvSpec, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.torso = Torso(spec, hidden_sizes, extra_inputs=spec.action_size)
        self.head = nn.Linear(self.torso.features, 1)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.head(self.torso(observation, action)).squeeze(-1)


class TwinQ(nn.Module):
    """Two independent Q(s, a), evaluated together: [B, O], [B, A] -> [2, B]."""

    def __init__(self, spec: EnvSpec, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        sizes = [math.prod(spec.observation_shape) + spec.action_size, *hidden_sizes, 1]
        layers = [BatchedLinear(2, *pair) for pair in itertools.pairwise(sizes)]
        self.hidden, self.head = nn.ModuleList(layers[:-1]), layers[-1]

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([observation, action], dim=-1).expand(2, -1, -1)
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.head(x).squeeze(-1)

    def first(self, observation: Tensor, action: Tensor) -> Tensor:
        """Q_1 alone [B]: half the work where the second is not looked at."""
        x = torch.cat([observation, action], dim=-1)
        for layer in self.hidden:
            x = torch.relu(cast(BatchedLinear, layer).member(0, x))
        return self.head.member(0, x).squeeze(-1)


class TwinDiscreteQ(nn.Module):
    """Two independent Q(s, .) of every discrete action: [B, ...] -> [2, B, actions]."""

    def __init__(self, spec: EnvSpec, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        # Convolutions of its own for each where there are pixels; a vector passes as it is.
        self.torsos = nn.ModuleList(Torso(spec, ()) for _ in range(2))
        inputs = cast(Torso, self.torsos[0]).features
        sizes = [inputs, *hidden_sizes, spec.num_actions]
        layers = [BatchedLinear(2, *pair) for pair in itertools.pairwise(sizes)]
        self.hidden, self.head = nn.ModuleList(layers[:-1]), layers[-1]

    def forward(self, observation: Tensor) -> Tensor:
        x = torch.stack([torso(observation) for torso in self.torsos])
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.head(x)


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
