"""Segments that are fresh enough for an on-policy learner, and how old each step of them is.

A queue may hold segments that are too old: a worker was killed after it had sent them, the learner
was started anew, a shard came back from its checkpoint. They are dropped and counted here, between
the replay and the learner. The learner says which version its weights have, and since which version
they have been the same: weights that nobody answered are published again under a new one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from repertory.errors import ReplayTimeout
from repertory.protocols import Replay
from repertory.types import Array, Sample, TransitionBatch

TAKE_IN_SECONDS = 60.0  # what is there comes at once; so long takes only something broken


class FreshSegments:
    """A `Replay` of segments no more than `max_lag` versions behind the learner's weights."""

    def __init__(self, replay: Replay, max_lag: int) -> None:
        self._replay = replay
        self._max_lag = max_lag
        self._kept: list[Sample] = []  # fresh when they came, and not yet handed out
        self.version = 0  # of the learner's weights
        self.fresh_since = 0  # the first version of these same weights
        self.dropped = 0

    def insert(self, batch: TransitionBatch, priorities: Array | None = None) -> int:
        return self._replay.insert(batch, priorities)

    def update_priorities(self, keys: Array, priorities: Array) -> None:
        self._replay.update_priorities(keys, priorities)

    def sample(self, size: int, *, timeout_seconds: float) -> Sample:
        """Fresh segments, with `extras["age"]` [B, T] in versions. A timeout loses none of them."""
        deadline = time.monotonic() + timeout_seconds
        kept, self._kept = self._kept, []
        for sample in kept:  # the weights may have moved on since these came
            self._keep(sample)
        while (missing := size - self._kept_items()) > 0:
            remaining = deadline - time.monotonic()
            if remaining < 0:
                raise ReplayTimeout(
                    f"within {timeout_seconds:g} s only {size - missing} of {size} segments were "
                    f"fresh, which are kept; {self.dropped} were dropped so far"
                )
            self._keep(self._replay.sample(missing, timeout_seconds=remaining))
        return self._with_age(self._cut(size))

    def take_in(self, available: int) -> int:
        """Takes over so many segments that are there now; returns how many are kept and fresh."""
        kept, self._kept = self._kept, []
        for sample in kept:
            self._keep(sample)
        if available:
            self._keep(self._replay.sample(available, timeout_seconds=TAKE_IN_SECONDS))
        return self._kept_items()

    def put_back(self, sample: Sample) -> None:
        """What was handed out and not learned from comes first the next time."""
        self._kept.insert(0, sample)

    def state(self) -> dict[str, Array]:
        """What is kept, for a checkpoint."""
        if not self._kept:
            return {}
        joined = _join(self._kept)
        columns = _without_age(joined.batch).columns()
        return {"keys": joined.keys, "weights": joined.weights, **columns}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        self._kept = []
        if arrays:
            columns = {n: a for n, a in arrays.items() if n not in ("keys", "weights")}
            batch = TransitionBatch.from_columns(columns)
            self._kept = [Sample(batch, arrays["keys"], arrays["weights"])]

    def _keep(self, sample: Sample) -> None:
        versions = sample.batch.policy_version  # [B, T]
        # One step by old weights makes the segment old. Versions above ours were given by a learner
        # whose updates are lost: what acted then was never among our weights.
        behind = self.fresh_since - versions.min(axis=1)
        fresh = (behind <= self._max_lag) & (versions.max(axis=1) <= self.version)
        self.dropped += int((~fresh).sum())
        if fresh.all():
            self._kept.append(sample)
        elif fresh.any():
            self._kept.append(_select(sample, np.flatnonzero(fresh)))

    def _kept_items(self) -> int:
        return sum(len(sample.keys) for sample in self._kept)

    def _cut(self, size: int) -> Sample:
        """Takes the oldest out of what is kept."""
        everything = _join(self._kept)
        rest = len(everything.keys) - size
        self._kept = [_select(everything, slice(size, None))] if rest else []
        return _select(everything, slice(size)) if rest else everything

    def _with_age(self, sample: Sample) -> Sample:
        age = np.maximum(0, self.fresh_since - sample.batch.policy_version).astype(np.int64)
        batch = replace(sample.batch, extras={**sample.batch.extras, "age": age})
        return replace(sample, batch=batch)


def _select(sample: Sample, index: Array | slice) -> Sample:
    return Sample(sample.batch.select(index), sample.keys[index], sample.weights[index])


def _join(samples: list[Sample]) -> Sample:
    if len(samples) == 1:
        return samples[0]
    return Sample(
        TransitionBatch.concatenate([_without_age(sample.batch) for sample in samples]),
        np.concatenate([sample.keys for sample in samples]),
        np.concatenate([sample.weights for sample in samples]),
    )


def _without_age(batch: TransitionBatch) -> TransitionBatch:
    """One that was put back has its age already, which may have changed."""
    extras = {name: column for name, column in batch.extras.items() if name != "age"}
    return replace(batch, extras=extras)
