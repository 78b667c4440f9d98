"""pi(a|s) for policy-gradient methods: a categorical, several, or a Gaussian with free deviation.

A Gaussian's sample is unbounded; what is executed is its clip to [-1, 1]. The learner needs the
sample itself for the likelihood ratio, so it is recorded as `extras/policy_action`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from repertory.policies.networks import Torso, orthogonal_
from repertory.policies.policy import PolicyConfig, TorchPolicy
from repertory.specs import EnvSpec
from repertory.types import Acted, Array, ColumnSpec


class StochasticPolicy(TorchPolicy):
    class Config(PolicyConfig):
        name: str = "stochastic"
        hidden_sizes: tuple[int, ...] = (64, 64)
        initial_log_std: float = 0.0

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.extras = {"log_prob": ColumnSpec("<f4", ()), "policy_action": spec.action_column}
        self.torso = Torso(spec, config.hidden_sizes, nn.Tanh)
        outputs = spec.action_size if self.gaussian else sum(spec.action_sizes)
        self.head = nn.Linear(self.torso.features, outputs)
        orthogonal_(self.torso, math.sqrt(2))
        orthogonal_(self.head, 0.01)
        self.log_std = (
            nn.Parameter(torch.full((spec.action_size,), config.initial_log_std))
            if self.gaussian
            else None
        )

    @property
    def gaussian(self) -> bool:
        return self.spec.action_kind == "continuous"

    def forward(self, observation: Tensor) -> Tensor:
        """The Gaussian's mean [B, A], or the logits of every choice [B, sum of sizes]."""
        parameters: Tensor = self.head(self.torso(observation))
        return parameters

    def log_prob_and_entropy(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """log pi(action|observation) [B] and the entropy of pi(.|observation) [B]."""
        parameters = self(observation)
        return self._log_prob(parameters, action), self._entropy(parameters)

    def distribution(self, observation: Tensor) -> Tensor:
        """All that pi(.|observation) is made of [B, P]: logits, or means beside log deviations."""
        parameters: Tensor = self(observation)
        if self.log_std is None:
            return parameters
        return torch.cat([parameters, self.log_std.expand_as(parameters)], dim=-1)

    def divergence(self, old: Tensor, new: Tensor) -> Tensor:
        """KL(old || new) [B] of two distributions [B, P]."""
        if self.gaussian:
            (old_mean, old_log_std), (mean, log_std) = old.chunk(2, -1), new.chunk(2, -1)
            spread = (2 * old_log_std).exp() + (old_mean - mean).square()
            each = log_std - old_log_std + 0.5 * spread * (-2 * log_std).exp() - 0.5
            return each.sum(-1)
        each_choice = [
            (before.softmax(-1) * (before.log_softmax(-1) - after.log_softmax(-1))).sum(-1)
            for before, after in zip(self._per_choice(old), self._per_choice(new), strict=True)
        ]
        return torch.stack(each_choice).sum(0)

    def _log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        if self.log_std is not None:
            standard = (action - parameters) * (-self.log_std).exp()
            density = -0.5 * standard.square() - self.log_std - 0.5 * math.log(2 * math.pi)
            return density.sum(-1)
        chosen = [
            logits.log_softmax(-1).gather(-1, choice.unsqueeze(-1)).squeeze(-1)
            for logits, choice in self._choices(parameters, action)
        ]
        return torch.stack(chosen).sum(0)

    def _entropy(self, parameters: Tensor) -> Tensor:
        if self.log_std is not None:
            each = self.log_std + 0.5 * math.log(2 * math.pi * math.e)
            return each.sum().expand(len(parameters))
        each_choice = [
            -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
            for logits in self._per_choice(parameters)
        ]
        return torch.stack(each_choice).sum(0)

    def _per_choice(self, parameters: Tensor) -> tuple[Tensor, ...]:
        """The logits of each choice: [B, n0], [B, n1], ..."""
        return torch.split(parameters, list(self.spec.action_sizes), dim=-1)

    def _choices(self, parameters: Tensor, action: Tensor) -> list[tuple[Tensor, Tensor]]:
        logits = self._per_choice(parameters)
        per_choice = action.reshape(len(action), len(logits))  # [B] and [B, 1] are one choice
        return list(zip(logits, per_choice.unbind(-1), strict=True))

    def _act(self, observation: Tensor, rng: np.random.Generator | None) -> Acted:
        return self.decide(self(observation).cpu().numpy(), rng)

    def layers(self) -> Sequence[nn.Module]:
        return self.torso.chain(self.head)

    def decide(self, outputs: Array, rng: np.random.Generator | None) -> Acted:
        if self.log_std is not None:
            return self._decide_gaussian(outputs, self.log_std.detach().cpu().numpy(), rng)
        noisy = outputs
        if rng is not None:  # the Gumbel-max trick samples from the softmax
            noisy = outputs + rng.gumbel(size=outputs.shape).astype(np.float32)
        rows = np.arange(len(outputs))
        chosen: list[Array] = []
        log_prob: Array = np.zeros(len(outputs), outputs.dtype)
        start = 0
        for size in self.spec.action_sizes:
            own = slice(start, start + size)
            choice = noisy[:, own].argmax(axis=-1)
            log_prob += _log_softmax(outputs[:, own])[rows, choice]
            chosen.append(choice)
            start += size
        action = chosen[0] if self.spec.action_kind == "discrete" else np.stack(chosen, axis=-1)
        return Acted(action, {"log_prob": log_prob, "policy_action": action})

    def _decide_gaussian(
        self, mean: Array, log_std: Array, rng: np.random.Generator | None
    ) -> Acted:
        action = mean
        if rng is not None:
            action = mean + np.exp(log_std) * rng.standard_normal(mean.shape, dtype=np.float32)
        standard = (action - mean) * np.exp(-log_std)  # as the learner sees it, rounded
        density = -0.5 * np.square(standard) - log_std - 0.5 * math.log(2 * math.pi)
        executed = np.minimum(np.maximum(action, -1), 1) if self.spec.bounded else action
        return Acted(executed, {"log_prob": density.sum(axis=-1), "policy_action": action})


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    normalized: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normalized
