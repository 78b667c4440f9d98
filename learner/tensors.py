"""A sample as tensors on the learner's device, observations and rewards normalised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from learner.data_parallel import joined_rows
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


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Shares the memory of `array` on the CPU; towards a GPU nothing waits for the copy.

    Only from pinned memory can a GPU copy by itself. Torch keeps that memory and gives it out again
    once the copy is done, so what is pinned here costs no allocation after the first few batches.
    """
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def learn_from(
    normalizer: Normalizer, observation: Tensor, discounted_return: Tensor | None
) -> None:
    """Takes the raw observations [N, ...] and returns [N] of all replicas into the statistics."""
    if normalizer.observation_moments is not None:
        observation = joined_rows(observation)
    if normalizer.return_moments is not None and discounted_return is not None:
        discounted_return = joined_rows(discounted_return)
    normalizer.update(observation, discounted_return)


def to_tensors(
    sample: Sample, normalizer: Normalizer, device: torch.device, *, learn_moments: bool
) -> TensorBatch:
    """`learn_moments` takes the batch into the normaliser's statistics first (off-policy)."""

    def tensor(array: np.ndarray) -> Tensor:
        return to_device(array, device)

    batch = sample.batch
    observation = tensor(batch.observation)
    extras = {name: tensor(column) for name, column in batch.extras.items()}
    if learn_moments:
        learn_from(normalizer, observation, extras.get("discounted_return"))
    return TensorBatch(
        observation=normalizer.observation(observation),
        action=tensor(batch.action),
        reward=normalizer.reward(tensor(batch.reward)),
        discount=tensor(batch.discount),
        next_observation=normalizer.observation(tensor(batch.next_observation)),
        weights=tensor(sample.weights),
        extras=extras,
    )
