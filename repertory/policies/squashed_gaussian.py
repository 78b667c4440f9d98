"""tanh of a Gaussian whose deviation depends on the state: the policy of SAC (arXiv 1812.05905).

With u ~ N(mean(s), std(s)) and a = tanh(u), the density of a needs the Jacobian of tanh:

    log pi(a|s) = sum_i [ log N(u_i) - log(1 - tanh(u_i)^2) ]
    log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))        (stable for large |u|)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repertory.policies.networks import Torso
from repertory.policies.policy import PolicyConfig, TorchPolicy
from repertory.specs import EnvSpec
from repertory.types import Acted, Array

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


class SquashedGaussianPolicy(TorchPolicy):
    class Config(PolicyConfig):
        name: str = "squashed_gaussian"

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.torso = Torso(spec, config.hidden_sizes)
        self.head = nn.Linear(self.torso.features, 2 * spec.action_size)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before the squashing, [B, A] each."""
        mean, log_std = self.head(self.torso(observation)).chunk(2, dim=-1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def sample(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparametrised actions [B, A] and their log densities [B] for standard normal `noise`."""
        mean, log_std = self(observation)
        return squash(mean, log_std, noise)

    def layers(self) -> Sequence[nn.Module]:
        return self.torso.chain(self.head)

    def decide(self, outputs: Array, rng: np.random.Generator | None) -> Acted:
        size = self.spec.action_size
        mean, log_std = outputs[:, :size], outputs[:, size:]
        if rng is None:
            return Acted(np.tanh(mean))
        std = np.exp(np.minimum(np.maximum(log_std, LOG_STD_MIN), LOG_STD_MAX))
        return Acted(np.tanh(mean + std * rng.standard_normal(mean.shape, dtype=np.float32)))


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    log_jacobian = 2 * (math.log(2) - u - F.softplus(-2 * u))
    return torch.tanh(u), (log_normal - log_jacobian).sum(-1)
