"""Several processes that learn as one: gradients, statistics and noise of the joined batch.

Each replica has the same parameters and a part of the batch, all parts of the same size; after each
step the parameters are the same again, as if one learner had taken the joined batch. Algorithms
call these functions always: in a process that is in no group (`services.meeting` makes one) they
give back what they got, to the bit. The group is torch's own, of which a process has one.

A replica that is gone ends the others with `ReplicaLost`: they are started again and go on from the
newest checkpoint.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from repertory.errors import RepertoryError, UsageError


class ReplicaLost(RepertoryError):
    """Another replica of this learner has ended, or did not come to a common step in time."""


def replicas() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def share(total: int, count: int, what: str) -> int:
    """One replica's part of what all of them have together."""
    if total % count:
        raise UsageError(
            f"{what} = {total} cannot be shared by topology.replicas = {count}: "
            f"make it a multiple of {count}, for example {(total // count + 1) * count}"
        )
    return total // count


def averaged(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    """The gradients of the joined batch's mean loss: one buffer, one message."""
    count = replicas()
    if count == 1:
        return gradients
    joined = torch.cat([gradient.reshape(-1) for gradient in gradients])
    _all_reduce(joined, dist.ReduceOp.SUM)
    joined /= count
    parts = joined.split([gradient.numel() for gradient in gradients])
    return [part.view_as(one) for part, one in zip(parts, gradients, strict=True)]


def joined_mean(mean: Tensor) -> Tensor:
    """The mean over the joined batch, from that over each part."""
    if replicas() == 1:
        return mean
    joined = mean.detach().clone()
    _all_reduce(joined, dist.ReduceOp.SUM)
    return joined / replicas()


def joined_rows(rows: Tensor) -> Tensor:
    """The rows [B, ...] of all replicas, in their order: for statistics of the joined batch."""
    if replicas() == 1:
        return rows
    parts = [
        torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(replicas())
    ]
    try:
        dist.all_gather(parts, rows.contiguous())
    except RuntimeError as error:
        raise lost(error) from error
    return torch.cat(parts)


def normal_noise(shape: Sequence[int], generator: torch.Generator, device: torch.device) -> Tensor:
    """Standard normal noise [..., B, A]: this replica's rows of what the joined batch gets.

    Everybody draws all of it, so the generators of all replicas stay alike, and one checkpoint is
    right for each of them.
    """
    *before, rows, size = shape
    noise = torch.randn((*before, replicas() * rows, size), generator=generator, device=device)
    return noise if replicas() == 1 else noise.narrow(-2, rank() * rows, rows)


def highest(values: Tensor) -> Tensor:
    """Of each number, the highest that any replica has."""
    if replicas() > 1:
        _all_reduce(values, dist.ReduceOp.MAX)
    return values


def check_alike(state: Mapping[str, Any]) -> None:
    """Raises where the replicas do not begin with the same state, a `state_tree`."""
    checksum = _checksum(state, 0)
    lowest, largest = highest(torch.tensor([-checksum, checksum], dtype=torch.int64)).tolist()
    if -lowest != largest:
        raise RepertoryError(
            "the replicas of this learner begin with different states: a checkpoint was written "
            "while they were started; they are started again"
        )


def _checksum(tree: Any, value: int) -> int:
    if isinstance(tree, Mapping):
        for name in sorted(tree):
            value = _checksum(tree[name], zlib.crc32(name.encode(), value))
        return value
    if isinstance(tree, np.ndarray):
        return zlib.crc32(tree.tobytes(), value)
    if isinstance(tree, int | float):
        return zlib.crc32(repr(float(tree)).encode(), value)
    return value  # settings of an optimiser, which are those of the config


def _all_reduce(tensor: Tensor, operation: Any) -> None:
    try:
        dist.all_reduce(tensor, op=operation)
    except RuntimeError as error:
        raise lost(error) from error


def lost(error: RuntimeError) -> ReplicaLost:
    """What an error of torch.distributed means here."""
    reason = " ".join(str(error).split())
    return ReplicaLost(
        "another replica of this learner is gone or too slow, so this one ends too: "
        f"its own log says why ({reason[:160]})"
    )
