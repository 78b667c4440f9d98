"""The nouns that travel between processes: batches of transitions, samples, results, weights.

Everything here is NumPy: rollouts, replay and learners agree on these columns and on nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, SupportsFloat

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

EXTRAS_PREFIX = "extras/"


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """What one item of a column looks like, without the leading axis of items."""

    dtype: str
    shape: tuple[int, ...]
    stack: int = 1  # how many frames of an environment [S * C, H, W] has; a replay keeps each once

    @property
    def nbytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


Signature = Mapping[str, ColumnSpec]


@dataclass(frozen=True, slots=True)
class TransitionBatch:
    """Columns with a leading axis of items.

    An off-policy item is one (n-step) transition: columns are [B, ...]. An on-policy item is the
    segment of T consecutive steps that one environment copy took: columns are [B, T, ...].

    Every target is `reward + discount * value(next_observation)`; there is no ambiguous `done`.
    """

    observation: Array
    action: Array  # what was executed; continuous actions in [-1, 1], see EnvSpec.to_env_action
    reward: Array  # the n-step sum
    discount: Array  # gamma**n, 0 where the episode terminated; a truncation still bootstraps
    next_observation: Array  # the true final observation, never that of the next episode's reset
    policy_id: Array  # provenance: the place of the acting policy in the portfolio
    policy_version: Array  # and the version of its weights
    extras: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reward)

    def columns(self) -> dict[str, Array]:
        """Every column under one flat name; extras carry the prefix `extras/`."""
        flat = {name: getattr(self, name) for name in COLUMN_NAMES}
        flat.update({EXTRAS_PREFIX + name: column for name, column in self.extras.items()})
        return flat

    @classmethod
    def from_columns(cls, columns: Mapping[str, Array]) -> TransitionBatch:
        extras = {
            name.removeprefix(EXTRAS_PREFIX): column
            for name, column in columns.items()
            if name.startswith(EXTRAS_PREFIX)
        }
        return cls(**{name: columns[name] for name in COLUMN_NAMES}, extras=extras)

    def select(self, index: Array | slice) -> TransitionBatch:
        """The chosen items: a copy for an index array, a view for a slice."""
        return self.from_columns({name: column[index] for name, column in self.columns().items()})

    def signature(self) -> dict[str, ColumnSpec]:
        return {
            name: ColumnSpec(column.dtype.str, column.shape[1:])
            for name, column in self.columns().items()
        }

    @classmethod
    def concatenate(cls, batches: Sequence[TransitionBatch]) -> TransitionBatch:
        if len(batches) == 1:
            return batches[0]
        parts = [batch.columns() for batch in batches]
        return cls.from_columns(
            {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        )


COLUMN_NAMES = tuple(f.name for f in fields(TransitionBatch) if f.name != "extras")


@dataclass(frozen=True, slots=True)
class Sample:
    """What a replay gives to a learner."""

    batch: TransitionBatch
    keys: Array  # [B] int64: names the items in `update_priorities`
    weights: Array  # [B] float32: importance weights, 1 everywhere for uniform sampling
    # For a learner of two levels: what became of goals that were set, `learner.paired_replay`.
    stretches: TransitionBatch | None = None


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one update reports. Metrics may be tensors on a device: read them only when logging."""

    metrics: Mapping[str, SupportsFloat]
    priorities: SupportsArray | None = None  # [B], new priorities for the sampled keys


# A torch tensor or a NumPy array; the floor does not import torch.
SupportsArray = Any


@dataclass(frozen=True, slots=True)
class WeightSnapshot:
    """The weights of one policy at one version, with its normaliser's statistics."""

    policy: str
    version: int
    arrays: Mapping[str, Array]

    @property
    def checksum(self) -> int:
        value = 0
        for name in sorted(self.arrays):
            value = zlib.crc32(name.encode(), value)
            value = zlib.crc32(self.arrays[name].tobytes(), value)
        return value


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """One finished episode, for scores, metrics and the director.

    Where policies took turns in it, the one named is the one that ended it.
    """

    policy_id: int
    policy_version: int
    episode_return: float  # undiscounted sum of the environment's rewards
    length: int
    terminated: bool
    env_steps: int  # steps over all copies when it ended


@dataclass(frozen=True, slots=True)
class DecisionOutcome:
    """What became of one decision of the director, told when the episode it was for has ended.

    `outcome` has the return of the whole episode; its policy is the one decided for, and its length
    the steps for which that policy acted under this decision.
    """

    decision: int  # its number
    outcome: EpisodeOutcome


@dataclass(frozen=True, slots=True)
class Acted:
    """What a policy did for each copy, and what a learner needs to know of it later."""

    action: Array  # [B, ...]
    extras: Mapping[str, Array] = field(default_factory=dict)
