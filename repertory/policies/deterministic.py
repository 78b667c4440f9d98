"""mu(s) in [-1, 1]: the policy of DDPG and TD3. Exploration noise is the actor's business."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from repertory.policies.networks import mlp
from repertory.policies.policy import PolicyConfig, TorchPolicy
from repertory.specs import EnvSpec
from repertory.types import Acted


class DeterministicPolicy(TorchPolicy):
    class Config(PolicyConfig):
        name: str = "deterministic"

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        inputs = int(np.prod(spec.observation_shape))
        self.network = nn.Sequential(
            *mlp([inputs, *config.hidden_sizes, spec.action_size]), nn.Tanh()
        )

    def forward(self, observation: Tensor) -> Tensor:  # normalised [B, O] -> [B, A]
        action: Tensor = self.network(observation)
        return action

    def _act(self, observation: Tensor, rng: np.random.Generator | None) -> Acted:
        return Acted(self(observation).cpu().numpy())
