"""Parts of a batch from several shards become one sample: keys, weights, and each column once.

A key of a shard is below 2^48; the bits above name the shard. Over the whole an item was as likely
as its shard was to be chosen times what it was within the shard, and the weights follow from that
(`draws.importance_weights`): they are those of one table that holds everything, and stay right
where the shards were weighed a moment too early.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from buffer_server.draws import Draw, importance_weights
from buffer_server.frames import Column, FrameStacks
from repertory.errors import UsageError
from repertory.types import Array, Sample, Signature, TransitionBatch

KEY_BITS = 48
MOST_SHARDS = 2 ** (63 - KEY_BITS)
_KEY_MASK = 2**KEY_BITS - 1


@dataclass(frozen=True, slots=True)
class Piece:
    """What one shard gave for a batch."""

    shard: int
    draw: Draw  # its columns may be views of what was received
    chance: float = 1.0  # how likely one draw was to fall to this shard

    def __len__(self) -> int:
        return len(self.draw.selection.keys)

    def cut(self, count: int) -> tuple[Piece, Piece]:
        """The first `count` items, and the rest."""
        first, rest = self.draw.rows(slice(0, count)), self.draw.rows(slice(count, None))
        return Piece(self.shard, first, self.chance), Piece(self.shard, rest, self.chance)


def join(pieces: Sequence[Piece], signature: Signature) -> Sample:
    """One sample whose arrays the caller owns; items of one shard stand together."""
    if len(pieces) == 1:  # its weights are those of the whole: the chance is the same for all
        (piece,) = pieces
        columns = {name: _copy(column) for name, column in piece.draw.columns.items()}
        keys = pack_keys(piece.draw.selection.keys, piece.shard)
        weights = piece.draw.selection.weights
        return Sample(TransitionBatch.from_columns(columns), keys, weights)
    stops = [0, *itertools.accumulate(map(len, pieces))]
    rows = [slice(*ends) for ends in itertools.pairwise(stops)]
    columns = {}
    for name, spec in signature.items():
        column = columns[name] = np.empty((stops[-1], *spec.shape), spec.dtype)
        for piece, place in zip(pieces, rows, strict=True):
            _write(piece.draw.columns[name], column[place])
    keys = np.concatenate([pack_keys(p.draw.selection.keys, p.shard) for p in pieces])
    return Sample(TransitionBatch.from_columns(columns), keys, _weights(pieces, stops[-1]))


def pack_keys(keys: Array, shard: int) -> Array:
    """[B] int64: the same keys with their shard."""
    if np.bitwise_or.reduce(keys) >> KEY_BITS:
        raise UsageError(
            f"a shard sent keys from {keys.min()} to {keys.max()}: "
            f"they must be from 0 to 2^{KEY_BITS} - 1"
        )
    packed: Array = keys | (shard << KEY_BITS)
    return packed


def unpack_keys(packed: Array) -> tuple[Array, Array]:
    """[B] shards, and [B] the keys that they know."""
    return packed >> KEY_BITS, packed & _KEY_MASK


def _weights(pieces: Sequence[Piece], total: int) -> Array:
    """[B] float32. Where betas differ, that of the largest shard counts."""
    largest = max(pieces, key=lambda piece: piece.draw.population.items)
    probabilities = [piece.draw.selection.probabilities for piece in pieces]
    given = [
        piece.chance * within
        for piece, within in zip(pieces, probabilities, strict=True)
        if within is not None
    ]
    if given and len(given) < len(pieces):
        raise UsageError("only some shards sent probabilities: give all the same sampler")
    beta = largest.draw.selection.beta
    return importance_weights(np.concatenate(given) if given else None, beta, total)


def _copy(column: Column) -> Array:
    return column.stacked() if isinstance(column, FrameStacks) else column.copy()


def _write(column: Column, place: Array) -> None:
    """Stacks are put together where they belong, without a copy in between."""
    if not isinstance(column, FrameStacks):
        place[...] = column
        return
    frames = place.reshape(-1, *column.frames.shape[1:])
    # The indices were checked; with another mode NumPy would fill a copy first.
    column.frames.take(column.index.reshape(-1), axis=0, out=frames, mode="clip")
