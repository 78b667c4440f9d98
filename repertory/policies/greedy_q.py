"""argmax_a Q(s, a): the policy of the DQN family, and its Q network, plain or dueling.

Dueling (arXiv 1511.06581): Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a').
Noisy (arXiv 1706.10295): the dense layers draw noise wherever the policy explores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from repertory.policies.networks import Torso
from repertory.policies.noisy import Draw, NoisyLinear, apply
from repertory.policies.policy import PolicyConfig, TorchPolicy, gaussian_noise
from repertory.specs import EnvSpec
from repertory.types import Acted, Array


class GreedyQPolicy(TorchPolicy):
    class Config(PolicyConfig):
        name: str = "greedy_q"
        dueling: bool = False
        noisy: bool = False

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        linear = NoisyLinear if config.noisy else nn.Linear
        self.noisy = config.noisy
        self.torso = Torso(spec, config.hidden_sizes, noisy=config.noisy)
        self.advantage = linear(self.torso.features, spec.num_actions)
        self.value = linear(self.torso.features, 1) if config.dueling else None

    def forward(self, observation: Tensor, draw: Draw | None = None) -> Tensor:
        """Normalised [B, ...] -> Q [B, actions]; `draw` is for noisy layers."""
        features = self.torso(observation, draw=draw)
        advantage = apply(self.advantage, features, draw)
        if self.value is None:
            return advantage  # without the dueling head these are the Q values themselves
        value = apply(self.value, features, draw)  # [B, 1]
        return value + advantage - advantage.mean(dim=-1, keepdim=True)

    def q_values(self, observation: Array) -> Array:
        """[B, ...] as the environment gives it -> [B, actions]."""
        with torch.inference_mode():
            tensor = torch.as_tensor(observation).to(self.device)
            values: Array = self(self.normalizer.observation(tensor)).cpu().numpy()
        return values

    def _act(self, observation: Tensor, rng: np.random.Generator | None) -> Acted:
        draw = explorer(self.noisy, observation, rng)
        return Acted(self(observation, draw).argmax(dim=-1).cpu().numpy())

    def layers(self) -> Sequence[nn.Module]:
        """V(s) adds the same to every action: the best is that of the advantages."""
        return self.torso.chain(self.advantage)  # noisy layers are left to torch

    def decide(self, outputs: Array, rng: np.random.Generator | None) -> Acted:
        return Acted(outputs.argmax(axis=-1))


def explorer(noisy: bool, observation: Tensor, rng: np.random.Generator | None) -> Draw | None:
    """The noise with which a noisy policy acts; none where it is evaluated, without a generator."""
    if rng is None or not noisy:
        return None
    return lambda shape: gaussian_noise(shape, rng, observation)
