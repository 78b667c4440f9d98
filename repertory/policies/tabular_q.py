"""argmax_a Q(s, a) of a table: the policy of tabular Q-learning.

Each number of an observation falls into one of `bins` of equal width between `low` and `high`;
what is outside falls into the first or the last of them. A cell of the table is one combination of
bins. The table is the policy's one weight: it is broadcast, checkpointed and exported as such.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from repertory.policies.policy import PolicyConfig, TorchPolicy
from repertory.specs import EnvSpec
from repertory.types import Acted


class TabularQPolicy(TorchPolicy):
    class Config(PolicyConfig):
        name: str = "tabular_q"
        bins: tuple[int, ...] = ()  # one entry for each number of an observation
        low: tuple[float, ...] = ()
        high: tuple[float, ...] = ()

    low: Tensor
    bin_width: Tensor
    last_bin: Tensor
    strides: Tensor

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        bins = config.bins
        low = torch.tensor(config.low, dtype=torch.float64)
        high = torch.tensor(config.high, dtype=torch.float64)
        rows = [math.prod(bins[number + 1 :]) for number in range(len(bins))]
        for name, values in (
            ("low", low),
            ("bin_width", (high - low) / torch.tensor(bins)),
            ("last_bin", torch.tensor(bins) - 1),
            ("strides", torch.tensor(rows)),  # row-major: rows of the table from bin to bin
        ):
            self.register_buffer(name, values, persistent=False)  # known by the config: no weights
        self.table = nn.Parameter(
            torch.zeros(math.prod(bins), spec.num_actions), requires_grad=False
        )

    def forward(self, observation: Tensor) -> Tensor:  # raw [B, O] -> Q [B, actions]
        return self.table[self.cell(observation)]

    def cell(self, observation: Tensor) -> Tensor:
        """The row of the table that stands for each observation: [B, O] -> [B]."""
        place = ((observation - self.low) / self.bin_width).floor()
        # Clipped before they become whole numbers: those would wrap around beyond 2^63.
        index = torch.minimum(place.clamp(min=0), self.last_bin).long()  # [B, O]
        return (index * self.strides).sum(-1)

    def _act(self, observation: Tensor, rng: np.random.Generator | None) -> Acted:
        return Acted(self(observation).argmax(dim=-1).cpu().numpy())
