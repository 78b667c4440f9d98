"""What all replicas of a learner do next: each says what it knows, and all do the same.

A collective waits for everybody, so no replica may update, stop, pause, publish or go back to an
earlier state by itself. Before each step they agree: one small message of flags, of which the
highest counts. A learner without replicas agrees with itself.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch

from learner.data_parallel import highest, replicas


@dataclass(frozen=True, slots=True)
class Turn:
    """Flags, in the sense that one replica's True is everybody's."""

    waiting: bool = False  # somebody has no batch yet
    stopping: bool = False
    paused: bool = False
    broken: bool = False  # somebody's loss or weights are not finite
    # The first replica alone decides these; others say False and 0.
    publish: bool = False
    renew: bool = False  # the same weights, as a new version
    batch_size: int = 0  # of each replica


def agree(turn: Turn) -> Turn:
    if replicas() == 1:
        return turn
    numbers = highest(torch.tensor(astuple(turn), dtype=torch.int64)).tolist()
    waiting, stopping, paused, broken, publish, renew = map(bool, numbers[:-1])
    return Turn(waiting, stopping, paused, broken, publish, renew, batch_size=numbers[-1])
