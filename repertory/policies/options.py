"""A policy over options and the options' own policies: what Option-Critic acts with.

Of features that all share there are, for each option w, its value Q(s, w), the probability b(s, w)
that it ends in s, and its policy pi(a|s, w). An option once chosen acts until it ends
(call-and-return); then the best of all is chosen, or with probability epsilon any of them.

The option in force is the policy's memory. It is recorded as `extras/option`, counted from 1: 0 is
none, which is what a copy remembers where the policy begins, and what a replay holds for steps that
somebody else took. `extras/beginning` marks the steps at which one was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from repertory.policies.networks import Torso
from repertory.policies.policy import PolicyConfig, TorchPolicy, gaussian_noise
from repertory.schedule import Schedule
from repertory.specs import EnvSpec
from repertory.types import Acted, Array, ColumnSpec

NO_OPTION = 0


class OptionHeads(NamedTuple):
    """What the network says of a batch, of each of the W options."""

    q: Tensor  # [B, W]
    termination: Tensor  # [B, W] probabilities
    parameters: Tensor  # [B, W, P] of the options' policies: means, or logits


class OptionsPolicy(TorchPolicy):
    class Config(PolicyConfig):
        name: str = "options"
        options: int = Field(default=4, ge=1, le=1024)
        option_epsilon: Schedule = Schedule(start=1.0, final=0.01, steps=10_000)
        initial_log_std: float = 0.0

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.extras = {
            "option": ColumnSpec("<i8", ()),
            "beginning": ColumnSpec("|b1", ()),
            "log_prob": ColumnSpec("<f4", ()),
            "policy_action": spec.action_column,
        }
        self.memory = {"option": ColumnSpec("<i8", ())}
        self.options = config.options
        self._epsilon = config.option_epsilon
        outputs = spec.action_size if self.gaussian else spec.num_actions
        self.torso = Torso(spec, config.hidden_sizes)
        self.q = nn.Linear(self.torso.features, self.options)
        self.termination = nn.Linear(self.torso.features, self.options)
        self.intra_option = nn.Linear(self.torso.features, self.options * outputs)
        self.log_std = (
            nn.Parameter(torch.full((self.options, outputs), config.initial_log_std))
            if self.gaussian
            else None
        )

    @property
    def gaussian(self) -> bool:
        return self.spec.action_kind == "continuous"

    def forward(self, observation: Tensor) -> OptionHeads:
        features = self.torso(observation)
        return OptionHeads(
            self.q(features),
            self.termination(features).sigmoid(),
            self.intra_option(features).unflatten(-1, (self.options, -1)),
        )

    def log_prob_and_entropy(
        self, heads: OptionHeads, index: Tensor, action: Tensor
    ) -> tuple[Tensor, Tensor]:
        """log pi(action|s, w) [B] and the entropy of pi(.|s, w) [B]; `index` [B] is w from 0."""
        parameters = of_option(heads.parameters, index)
        if self.log_std is not None:
            log_std = self.log_std[index]  # [B, A]
            standard = (action - parameters) * (-log_std).exp()
            density = -0.5 * standard.square() - log_std - 0.5 * math.log(2 * math.pi)
            return density.sum(-1), (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)
        log_probs = parameters.log_softmax(-1)
        chosen = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return chosen, -(log_probs.exp() * log_probs).sum(-1)

    def act_remembering(
        self,
        observation: Array,
        memory: Mapping[str, Array],
        env_steps: int,
        rng: np.random.Generator | None,
    ) -> tuple[Acted, dict[str, Array]]:
        with torch.inference_mode():
            heads = self(self.observe(observation))
            in_force, beginning = self._options(memory["option"], heads, env_steps, rng)
            index = torch.from_numpy(in_force - 1).to(self.device)
            action = self._action(heads, index, rng)
            log_prob, _ = self.log_prob_and_entropy(heads, index, action)
        recorded: Array = action.cpu().numpy()
        executed = np.clip(recorded, -1, 1) if self.gaussian and self.spec.bounded else recorded
        extras = {
            "option": in_force,
            "beginning": beginning,
            "log_prob": log_prob.cpu().numpy(),
            "policy_action": recorded,
        }
        return Acted(executed, extras), {"option": in_force}

    def act(self, observation: Array, rng: np.random.Generator | None) -> Acted:
        none = np.full(len(observation), NO_OPTION, np.int64)
        return self.act_remembering(observation, {"option": none}, self._epsilon.steps, rng)[0]

    def _options(
        self, before: Array, heads: OptionHeads, env_steps: int, rng: np.random.Generator | None
    ) -> tuple[Array, Array]:
        """The options in force now [B], from 1, and where they were chosen just now.

        Without a generator one ends where that is likelier than not, and the best is chosen.
        """
        rows = np.arange(len(before))
        ending = heads.termination.cpu().numpy()[rows, np.maximum(before - 1, 0)]
        chosen = heads.q.argmax(-1).cpu().numpy()
        threshold = np.full(len(before), 0.5)
        if rng is not None:
            threshold = rng.random(len(before))
            exploring = rng.random(len(before)) < self._epsilon.at(env_steps)
            chosen = np.where(exploring, rng.integers(self.options, size=len(before)), chosen)
        beginning = (before == NO_OPTION) | (ending > threshold)
        return np.where(beginning, chosen + 1, before), beginning

    def _action(self, heads: OptionHeads, index: Tensor, rng: np.random.Generator | None) -> Tensor:
        parameters = of_option(heads.parameters, index)
        if self.log_std is not None:
            if rng is None:
                return parameters
            noise = gaussian_noise(parameters.shape, rng, parameters)
            return parameters + self.log_std[index].exp() * noise
        if rng is not None:  # the Gumbel-max trick samples from the softmax
            gumbel = torch.from_numpy(rng.gumbel(size=parameters.shape).astype(np.float32))
            parameters = parameters + gumbel.to(parameters.device)
        return parameters.argmax(-1)


def of_option(values: Tensor, index: Tensor) -> Tensor:
    """Of each row the values of its option: [B, W, ...], [B] -> [B, ...]."""
    return values[torch.arange(len(index), device=index.device), index]
