"""argmax_a E[Z(s, a)]: the policy of distributional DQNs, and its network of return distributions.

    categorical (C51, arXiv 1707.06887)   Z has probabilities softmax(outputs) on fixed atoms z_i
    quantile (QR-DQN, arXiv 1710.10044)   the outputs are N values of equal probability

Dueling and noisy as in `repertory.policies.greedy_q`; the dueling heads are joined atom by atom,
before the softmax.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from repertory.policies.greedy_q import explorer
from repertory.policies.networks import Torso
from repertory.policies.noisy import Draw, NoisyLinear, apply
from repertory.policies.policy import PolicyConfig, TorchPolicy
from repertory.specs import EnvSpec
from repertory.types import Acted


class DistributionalQPolicy(TorchPolicy):
    support: Tensor | None  # [N] the atoms; None: the outputs are quantiles

    class Config(PolicyConfig):
        name: str = "distributional_q"
        dueling: bool = False
        noisy: bool = False
        atoms: int = Field(default=51, ge=2)
        v_min: float | None = None  # both or none: the range of the fixed atoms
        v_max: float | None = None

        @model_validator(mode="after")
        def _a_range_or_none(self) -> Self:
            if (self.v_min is None) != (self.v_max is None):
                raise ValueError("v_min and v_max are given together, or neither of them")
            return self

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        linear = NoisyLinear if config.noisy else nn.Linear
        self.noisy, self.atoms = config.noisy, config.atoms
        self.torso = Torso(spec, config.hidden_sizes, noisy=config.noisy)
        self.advantage = linear(self.torso.features, spec.num_actions * config.atoms)
        self.value = linear(self.torso.features, config.atoms) if config.dueling else None
        support = None
        if config.v_min is not None and config.v_max is not None:
            support = torch.linspace(config.v_min, config.v_max, config.atoms)
        self.register_buffer("support", support, persistent=False)  # it is known from the config

    def forward(self, observation: Tensor, draw: Draw | None = None) -> Tensor:
        """Normalised [B, ...] -> [B, actions, N], logits of the atoms or quantiles."""
        features = self.torso(observation, draw=draw)
        shape = (-1, self.spec.num_actions, self.atoms)
        advantage = apply(self.advantage, features, draw).reshape(shape)
        if self.value is None:
            return advantage
        value = apply(self.value, features, draw).unsqueeze(1)  # [B, 1, N]
        return value + advantage - advantage.mean(dim=1, keepdim=True)

    def expected(self, outputs: Tensor) -> Tensor:
        """Q = E[Z]: [B, actions, N] -> [B, actions]."""
        if self.support is None:
            return outputs.mean(-1)
        return outputs.softmax(-1) @ self.support

    def _act(self, observation: Tensor, rng: np.random.Generator | None) -> Acted:
        outputs = self(observation, explorer(self.noisy, observation, rng))
        return Acted(self.expected(outputs).argmax(dim=-1).cpu().numpy())
