"""What the plain learners share: networks as `nn.Sequential`, a replay of arrays, moving targets.

Written as one would from the papers, with nothing done for speed: what a straightforward loop costs
on the torch that is here. It imports nothing of our learners.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.updates import Transitions

GAMMA = 0.99
UPDATES_AT_ONCE = 5


@dataclass(frozen=True)
class Batch:
    observation: Tensor  # [B, O]
    action: Tensor  # [B, A], or [B]
    reward: Tensor  # [B]
    discount: Tensor  # [B]
    next_observation: Tensor  # [B, O]


class ArrayReplay:
    """Uniform draws with replacement from arrays in this process."""

    def __init__(self, made: Transitions, seed: int = 0) -> None:
        self._made = made
        self._discount = np.where(made.terminated, 0.0, GAMMA).astype(np.float32)
        self._rng = np.random.default_rng(seed)

    def sample(self, size: int) -> Batch:
        index = self._rng.integers(0, len(self._made.reward), size)
        made = self._made
        return Batch(
            observation=torch.from_numpy(made.observation[index]),
            action=torch.from_numpy(made.action[index]),
            reward=torch.from_numpy(made.reward[index]),
            discount=torch.from_numpy(self._discount[index]),
            next_observation=torch.from_numpy(made.next_observation[index]),
        )


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """The activation stands between layers, not after the last."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


class QNetwork(nn.Module):
    """Q(s, a): [B, O], [B, A] -> [B]."""

    def __init__(self, observation_size: int, action_size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.net = mlp([observation_size + action_size, *hidden, 1])

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        q: Tensor = self.net(torch.cat([observation, action], dim=-1)).squeeze(-1)
        return q


def move_target(target: nn.Module, source: nn.Module, tau: float) -> None:
    with torch.no_grad():
        for old, new in zip(target.parameters(), source.parameters(), strict=True):
            old.data.copy_((1 - tau) * old.data + tau * new.data)
