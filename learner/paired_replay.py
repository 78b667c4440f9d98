"""Two tables as one `Replay`: with each batch of steps comes one of stretches.

A learner of two levels has a table for each (`repertory.table_layout`). Everything around it sees
one replay: keys, weights and priorities are those of the steps.
"""

from __future__ import annotations

from dataclasses import replace

from repertory.errors import ReplayTimeout
from repertory.protocols import Replay
from repertory.types import Array, Sample, TransitionBatch


class PairedReplay:
    def __init__(self, steps: Replay, stretches: Replay, stretch_seconds: float = 0.0) -> None:
        """`stretch_seconds` is how long to wait for stretches, which may not be there yet."""
        self._steps = steps
        self._stretches = stretches
        self._stretch_seconds = stretch_seconds

    def insert(self, batch: TransitionBatch, priorities: Array | None = None) -> int:
        return self._steps.insert(batch, priorities)

    def sample(self, size: int, *, timeout_seconds: float) -> Sample:
        """As many of each; without stretches where no goal is over yet."""
        sample = self._steps.sample(size, timeout_seconds=timeout_seconds)
        try:
            stretches = self._stretches.sample(size, timeout_seconds=self._stretch_seconds)
        except ReplayTimeout:
            return sample
        return replace(sample, stretches=stretches.batch)

    def update_priorities(self, keys: Array, priorities: Array) -> None:
        self._steps.update_priorities(keys, priorities)
