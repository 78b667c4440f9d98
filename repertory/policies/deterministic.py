"""mu(s) in [-1, 1]: the policy of DDPG and TD3. Exploration noise is the actor's business."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from repertory.policies.networks import Torso
from repertory.policies.policy import PolicyConfig, TorchPolicy
from repertory.specs import EnvSpec
from repertory.types import Acted, Array


class DeterministicPolicy(TorchPolicy):
    class Config(PolicyConfig):
        name: str = "deterministic"

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.torso = Torso(spec, config.hidden_sizes)
        self.head = nn.Linear(self.torso.features, spec.action_size)

    def forward(self, observation: Tensor) -> Tensor:  # normalised [B, ...] -> [B, A]
        return torch.tanh(self.head(self.torso(observation)))

    def _act(self, observation: Tensor, rng: np.random.Generator | None) -> Acted:
        return Acted(self(observation).cpu().numpy())

    def layers(self) -> Sequence[nn.Module]:
        return self.torso.chain(self.head)

    def decide(self, outputs: Array, rng: np.random.Generator | None) -> Acted:
        return Acted(np.tanh(outputs))
