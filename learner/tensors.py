"""A sample as tensors on the learner's device, observations and rewards normalised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from repertory.policies.normalizer import Normalizer
from repertory.types import Sample


@dataclass(frozen=True, slots=True)
class TensorBatch:
    observation: Tensor  # [B, ...], or [B, T, ...] for segments
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_observation: Tensor
    weights: Tensor  # [B]
    extras: Mapping[str, Tensor]


def to_tensors(
    sample: Sample, normalizer: Normalizer, device: torch.device, *, learn_moments: bool
) -> TensorBatch:
    """`learn_moments` takes the batch into the normaliser's statistics first (off-policy)."""

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    batch = sample.batch
    observation = tensor(batch.observation)
    extras = {name: tensor(column) for name, column in batch.extras.items()}
    if learn_moments:
        normalizer.update(observation, extras.get("discounted_return"))
    return TensorBatch(
        observation=normalizer.observation(observation),
        action=tensor(batch.action),
        reward=normalizer.reward(tensor(batch.reward)),
        discount=tensor(batch.discount),
        next_observation=normalizer.observation(tensor(batch.next_observation)),
        weights=tensor(sample.weights),
        extras=extras,
    )
