"""Sample, update, send priorities back: the inside of every learner, local or distributed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import numpy as np

from repertory.protocols import Algorithm, Replay

SAMPLE_TIMEOUT_SECONDS = 60.0


class MetricAverages:
    """Means since last read. Tensors are added where they are; nothing waits for a device."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, SupportsFloat]) -> None:
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> dict[str, float]:
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means


class LearnerLoop:
    def __init__(
        self,
        algorithm: Algorithm[Any],
        state: Any,
        replay: Replay,
        *,
        batch_size: int,
        send_priorities: bool,
    ) -> None:
        self.algorithm = algorithm
        self.state = state
        self.averages = MetricAverages()
        self._replay = replay
        self._batch_size = batch_size
        self._send_priorities = send_priorities

    @property
    def updates(self) -> int:
        updates: int = self.state.updates
        return updates

    def run(self, updates: int) -> None:
        for _ in range(updates):
            self.step(timeout_seconds=SAMPLE_TIMEOUT_SECONDS)

    def step(self, *, timeout_seconds: float) -> Mapping[str, SupportsFloat]:
        """One update. Where no batch comes in time, nothing has happened."""
        sample = self._replay.sample(self._batch_size, timeout_seconds=timeout_seconds)
        result = self.algorithm.update(self.state, sample)
        if self._send_priorities and result.priorities is not None:
            priorities = np.asarray(result.priorities.cpu())
            self._replay.update_priorities(sample.keys, priorities)
        self.averages.add(result.metrics)
        return result.metrics
