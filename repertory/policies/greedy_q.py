"""argmax_a Q(s, a): the policy of the DQN family, and its Q network, plain or dueling.

Dueling (arXiv 1511.06581): Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a').
"""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from repertory.policies.networks import Torso
from repertory.policies.policy import PolicyConfig, TorchPolicy
from repertory.specs import EnvSpec
from repertory.types import Acted


class GreedyQPolicy(TorchPolicy):
    class Config(PolicyConfig):
        name: str = "greedy_q"
        dueling: bool = False

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.torso = Torso(spec, config.hidden_sizes)
        self.advantage = nn.Linear(self.torso.features, spec.num_actions)
        self.value = nn.Linear(self.torso.features, 1) if config.dueling else None

    def forward(self, observation: Tensor) -> Tensor:  # normalised [B, ...] -> Q [B, actions]
        features = self.torso(observation)
        advantage: Tensor = self.advantage(features)
        if self.value is None:
            return advantage  # without the dueling head these are the Q values themselves
        value: Tensor = self.value(features)  # [B, 1]
        return value + advantage - advantage.mean(dim=-1, keepdim=True)

    def _act(self, observation: Tensor, rng: np.random.Generator | None) -> Acted:
        return Acted(self(observation).argmax(dim=-1).cpu().numpy())
