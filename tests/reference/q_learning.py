"""Tabular Q-learning in plain Python, from Watkins and Dayan 1992, with the bins by comparison."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from reference.numpy_mlp import Array

from repertory.types import Sample


@dataclass
class TabularReference:
    bins: Sequence[int]
    low: Sequence[float]
    high: Sequence[float]
    actions: int
    lr: float
    initial_value: float = 0.0

    def __post_init__(self) -> None:
        self.q: dict[tuple[int, ...], list[float]] = defaultdict(
            lambda: [self.initial_value] * self.actions
        )

    def state_of(self, observation: Array) -> tuple[int, ...]:
        """Of each number, how many inner edges it has reached: below all 0, beyond all bins - 1."""
        return tuple(
            sum(number >= edge for edge in np.linspace(low, high, bins + 1)[1:-1])
            for number, low, high, bins in zip(
                observation, self.low, self.high, self.bins, strict=True
            )
        )

    def target(self, sample: Sample) -> Array:
        batch = sample.batch
        return np.array(
            [
                r + d * max(self.q[self.state_of(after)])
                for r, d, after in zip(
                    batch.reward, batch.discount, batch.next_observation, strict=True
                )
            ]
        )

    def update(self, sample: Sample) -> tuple[Array, Array]:
        """Returns the targets and the errors before the update, [B] each.

        Every entry is moved by lr w for each of its rows, one after the other, towards the mean of
        its targets.
        """
        y = self.target(sample)
        entries = [
            (self.state_of(observation), int(action))
            for observation, action in zip(
                sample.batch.observation, sample.batch.action, strict=True
            )
        ]
        errors = np.array([y[row] - self.q[s][a] for row, (s, a) in enumerate(entries)])
        for state, action in set(entries):
            rows = [row for row, entry in enumerate(entries) if entry == (state, action)]
            weights = [sample.weights[row] for row in rows]
            if sum(weights) == 0:
                continue
            mean = sum(w * y[row] for w, row in zip(weights, rows, strict=True)) / sum(weights)
            for weight in weights:
                self.q[state][action] += self.lr * weight * (mean - self.q[state][action])
        return y, errors

    def table(self) -> Array:
        """[cells, actions], the last number's bin running fastest."""
        return np.array([self.q[index] for index in np.ndindex(*self.bins)])
