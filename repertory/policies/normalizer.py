"""Running normalisation of observations and rewards.

The statistics are buffers of the policy: they travel with its weights, checkpoints and exports, and
are frozen wherever the policy merely acts. The learner alone updates them, from what it trains on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class RunningMoments(nn.Module):
    """Mean and variance of all values seen, by the parallel update of Chan et al. (1979)."""

    EPSILON = 1e-8  # a value that never changes is not divided by zero

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(tuple(shape), dtype=torch.float64))
        self.register_buffer("variance", torch.ones(tuple(shape), dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, values: Tensor) -> None:  # [N, *shape]
        values = values.to(torch.float64)
        count, mean = len(values), values.mean(0)
        variance = values.var(0, correction=0)
        total = self.count + count
        delta = mean - self.mean
        squares = (
            self.variance * self.count + variance * count + delta**2 * self.count * count / total
        )
        self.mean += delta * count / total
        self.variance.copy_(squares / total)
        self.count.copy_(total)

    @property
    def deviation(self) -> Tensor:
        return torch.sqrt(self.variance + self.EPSILON)


class Normalizer(nn.Module):
    """What a policy and its learner apply to raw observations and rewards; each part optional."""

    CLIP = 10.0

    def __init__(
        self, observation_shape: Sequence[int], *, observations: bool, rewards: bool
    ) -> None:
        super().__init__()
        self.observation_moments = RunningMoments(observation_shape) if observations else None
        self.return_moments = RunningMoments(()) if rewards else None

    def observation(self, observation: Tensor) -> Tensor:
        moments = self.observation_moments
        if moments is None:
            return observation
        centred = (observation - moments.mean) / moments.deviation
        return centred.clamp(-self.CLIP, self.CLIP).to(torch.float32)

    def reward(self, reward: Tensor) -> Tensor:
        """Divided by the deviation of discounted returns; centring would change the task."""
        moments = self.return_moments
        if moments is None:
            return reward
        return (reward / moments.deviation).clamp(-self.CLIP, self.CLIP).to(torch.float32)

    def update(self, observation: Tensor, discounted_return: Tensor | None) -> None:
        """Takes in the raw observations [N, ...] and running discounted returns [N] of a batch."""
        if self.observation_moments is not None:
            self.observation_moments.update(observation)
        if self.return_moments is not None:
            assert discounted_return is not None, "reward normalisation needs discounted returns"
            self.return_moments.update(discounted_return)
