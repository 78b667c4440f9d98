"""What is asked of a table's sampler, and what comes of it: keys, how likely each was, and items.

A table's own answer to a learner is a `Sample` with weights. A shard sends the probabilities
instead: only who sees all shards (`buffer_server.sharded`) knows how likely an item was over the
whole, and so the weights.

    w_i = (N P(i))^-beta / max_j w_j                (Schaul et al., 2016, section 3.4)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from buffer_server.frames import Column, rows_of, stacked
from repertory.errors import UsageError
from repertory.types import Array, Sample, TransitionBatch


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """How many items, and of whose experience."""

    size: int
    own_items: int = 0  # at least so many of them from `own_policy`, where it has any
    own_policy: int | None = None  # its place in the portfolio
    max_age: int | None = None  # in versions, behind the newest that came from the same policy
    partial: bool = False  # of a queue: fewer items, but at least one, instead of waiting for all
    consumer: int | None = None  # whose ratio it counts for, where each has its own

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UsageError(f"a sample of {self.size} items was asked for: give at least 1")
        if not 0 <= self.own_items <= self.size:
            raise UsageError(
                f"{self.own_items} own items of {self.size} were asked for: "
                f"give from 0 to {self.size}"
            )
        if self.own_items and self.own_policy is None:
            raise UsageError(f"{self.own_items} own items were asked for, but not whose")
        if self.max_age is not None and self.max_age < 0:
            raise UsageError(f"an age of at most {self.max_age} versions: give 0 or more")

    @property
    def by_provenance(self) -> bool:
        """Whether it matters who made an item."""
        return self.own_items > 0 or self.max_age is not None


@dataclass(frozen=True, slots=True)
class Population:
    """What a request could have drawn from: how shards are weighed against each other."""

    items: int
    mass: float  # the sum of what items are drawn in proportion to; uniform: one each
    own_items: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen items."""

    keys: Array  # [B] int64
    # [B] float64: how likely one draw was to choose each; None: all alike, the weights are one
    probabilities: Array | None = None
    beta: float = 0.0  # how much of that the weights make good

    @property
    def weights(self) -> Array:
        """[B] float32, importance weights."""
        return importance_weights(self.probabilities, self.beta, len(self.keys))

    def rows(self, rows: slice) -> Selection:
        probabilities = None if self.probabilities is None else self.probabilities[rows]
        return Selection(self.keys[rows], probabilities, self.beta)


@dataclass(frozen=True, slots=True)
class Draw:
    """A selection with its items."""

    columns: Mapping[str, Column]
    selection: Selection
    population: Population

    def rows(self, rows: slice) -> Draw:
        """Views of some of the items."""
        columns = {name: rows_of(column, rows) for name, column in self.columns.items()}
        return Draw(columns, self.selection.rows(rows), self.population)

    def sample(self) -> Sample:
        columns = {name: stacked(column) for name, column in self.columns.items()}
        batch = TransitionBatch.from_columns(columns)
        return Sample(batch, self.selection.keys, self.selection.weights)


def importance_weights(probabilities: Array | None, beta: float, count: int) -> Array:
    """[B] float32. N is the same for all and cancels; the largest weight is that of the batch."""
    if probabilities is None or beta == 0.0:
        return np.ones(count, dtype=np.float32)
    weights: Array = (probabilities / probabilities.min()) ** -beta
    return weights.astype(np.float32)
