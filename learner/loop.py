"""Sample, update, send priorities back: the inside of every learner, local or distributed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

import numpy as np

from repertory.protocols import Algorithm, Replay
from repertory.types import Array, Sample

SAMPLE_TIMEOUT_SECONDS = 60.0


class MetricAverages:
    """Means since last read. Tensors of a device are added there: nothing waits for it."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, Any]) -> None:
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
        own_policy: int | None = None,
        after_update: Callable[[Sample], None] | None = None,
    ) -> None:
        """`own_policy`: its place in a portfolio, where others' experience is among the samples."""
        self.algorithm = algorithm
        self.state = state
        self.averages = MetricAverages()
        self.batch_size = batch_size  # of the next draw
        self._replay = replay
        self._send_priorities = send_priorities
        self._own_policy = own_policy
        self._after_update = after_update

    @property
    def updates(self) -> int:
        updates: int = self.state.updates
        return updates

    def run(self, updates: int) -> None:
        for _ in range(updates):
            self.step(timeout_seconds=SAMPLE_TIMEOUT_SECONDS)

    def step(self, *, timeout_seconds: float) -> Mapping[str, SupportsFloat]:
        """One update. Where no batch comes in time, nothing has happened."""
        return self.learn(self.draw(timeout_seconds=timeout_seconds))

    def draw(self, *, timeout_seconds: float) -> Sample:
        return self._replay.sample(self.batch_size, timeout_seconds=timeout_seconds)

    def learn(self, sample: Sample) -> Mapping[str, SupportsFloat]:
        result = self.algorithm.update(self.state, sample)
        if self._after_update is not None:
            self._after_update(sample)
        if self._send_priorities and result.priorities is not None:
            self._send(sample.keys, np.asarray(result.priorities.cpu()))
        metrics = {name: _number(value) for name, value in result.metrics.items()}
        self.averages.add(metrics)
        if self._own_policy is not None:
            own = float((sample.batch.policy_id == self._own_policy).mean())
            self.averages.add({"own_experience": own})
        return metrics

    def _send(self, keys: Array, priorities: Array) -> None:
        """A priority that is not finite would spoil every draw after it: the item keeps its own."""
        finite = np.isfinite(priorities)
        if finite.any():
            self._replay.update_priorities(keys[finite], priorities[finite])


def _number(value: SupportsFloat) -> Any:
    """At once where it is in our memory, which costs a tenth of adding tensors."""
    return float(value) if getattr(value, "is_cpu", True) else value
