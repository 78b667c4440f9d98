"""pi(.|s) over discrete actions, all probabilities at once: the policy of SAC-discrete.

Acting samples from it; without a generator the likeliest action is taken. The learner sums over
all actions, so nothing of the one that was taken is recorded beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from repertory.policies.networks import Torso
from repertory.policies.policy import PolicyConfig, TorchPolicy
from repertory.specs import EnvSpec
from repertory.types import Acted, Array


class CategoricalPolicy(TorchPolicy):
    class Config(PolicyConfig):
        name: str = "categorical"

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.torso = Torso(spec, config.hidden_sizes)
        self.head = nn.Linear(self.torso.features, spec.num_actions)

    def forward(self, observation: Tensor) -> Tensor:  # normalised [B, ...] -> log pi [B, actions]
        logits: Tensor = self.head(self.torso(observation))
        return logits.log_softmax(-1)

    def _act(self, observation: Tensor, rng: np.random.Generator | None) -> Acted:
        return self.decide(self(observation).cpu().numpy(), rng)

    def layers(self) -> Sequence[nn.Module]:
        return self.torso.chain(self.head)

    def decide(self, outputs: Array, rng: np.random.Generator | None) -> Acted:
        """What is added to all logits of a row changes nothing: they serve as well as log pi."""
        if rng is not None:  # the Gumbel-max trick samples from pi
            outputs = outputs + rng.gumbel(size=outputs.shape).astype(np.float32)
        return Acted(outputs.argmax(axis=-1))
