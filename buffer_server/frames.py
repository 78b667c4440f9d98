"""Stacked pixels as single frames: each is kept, and sent, once.

The observation of a pixel environment is a stack of its last S frames, and the next observation
shares S - 1 of them. `FrameStacks` names frames by their place instead of repeating them.
`share_frames` finds which frames are the same by what they hold, bit for bit; what a stack holds is
never guessed from its neighbours. So stacks come out as they went in, none can reach into another
episode, and nobody need know which environment, or which step of it, an item is from.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repertory.errors import UsageError
from repertory.types import Array, ColumnSpec, Signature

INDEX = np.dtype("<i4")
# Of frames that are compared at a time: they stay in the cache.
COMPARED_BYTES = 256 * 2**10


@dataclass(frozen=True, slots=True)
class FrameStacks:
    """A column [B, S * C, H, W] as frames and which of them each item has, in order."""

    frames: Array  # [F, C, H, W]
    index: Array  # [B, S] int32

    def __post_init__(self) -> None:
        count, index = len(self.frames), self.index
        if index.dtype != INDEX or index.ndim != 2:
            raise UsageError(
                f"stacks name their frames by {index.dtype} {list(index.shape)}: "
                f"give {INDEX} [items, stack]"
            )
        if index.size and not 0 <= index.min() <= index.max() < count:
            raise UsageError(
                f"stacks name the frames {index.min()} to {index.max()}, but {count} are there"
            )

    def __len__(self) -> int:
        return len(self.index)

    def stacked(self) -> Array:
        """[B, S * C, H, W], a copy."""
        items, stack = self.index.shape
        _, channels, *size = self.frames.shape
        taken = self.frames.take(self.index.reshape(-1), axis=0)
        return taken.reshape(items, stack * channels, *size)


Column = Array | FrameStacks


def stacked(column: Column) -> Array:
    """The column as algorithms know it."""
    return column.stacked() if isinstance(column, FrameStacks) else column


def rows_of(column: Column, rows: slice) -> Column:
    """Some of its items, as views."""
    if isinstance(column, FrameStacks):
        return FrameStacks(column.frames, column.index[rows])
    return column[rows]


def stacked_names(signature: Signature) -> list[str]:
    return [name for name, spec in signature.items() if spec.stack > 1]


def frame_spec(signature: Signature) -> ColumnSpec | None:
    """What one frame looks like; all stacks of a signature share it. None: there are no stacks."""
    specs = {}
    for name in stacked_names(signature):
        spec = signature[name]
        if not spec.nbytes or not spec.shape or spec.shape[0] % spec.stack:
            raise UsageError(
                f"column {name} {list(spec.shape)} is no stack of {spec.stack} frames: "
                "its first axis must be a multiple of that, and no axis 0"
            )
        shape = (spec.shape[0] // spec.stack, *spec.shape[1:])
        specs[name] = ColumnSpec(np.dtype(spec.dtype).str, shape)
    if len(set(specs.values())) > 1:
        found = ", ".join(f"{name} {spec.dtype} {list(spec.shape)}" for name, spec in specs.items())
        raise UsageError(f"stacks share their frames, so those must be alike: {found}")
    return next(iter(specs.values()), None)


def check_column(name: str, column: Column, spec: ColumnSpec, count: int) -> None:
    """Raises unless this is `count` items of that kind."""
    shape: tuple[int, ...] = (count, *spec.shape)
    came = column
    if isinstance(column, FrameStacks):
        frame = frame_spec({name: spec})
        if column.index.shape == (count, spec.stack) and frame is not None:
            came, shape = column.frames, (len(column.frames), *frame.shape)
        else:
            came = column.index
    assert isinstance(came, np.ndarray)
    # Nothing is cast: a column that comes as float64 is a mistake where it was made.
    if came.dtype != np.dtype(spec.dtype) or came.shape != shape:
        raise UsageError(
            f"column {name} came as {came.dtype} {list(came.shape)}, "
            f"but {np.dtype(spec.dtype)} {list(shape)} was expected"
        )


def share_frames(columns: Mapping[str, Column], signature: Signature) -> dict[str, Column]:
    """The same columns, with every stack as `FrameStacks` of the same frames, each there once."""
    names = [name for name in stacked_names(signature) if name in columns]
    given = [columns[name] for name in names]
    pools = {id(column.frames) for column in given if isinstance(column, FrameStacks)}
    if len(pools) <= 1 and all(isinstance(column, FrameStacks) for column in given):
        return dict(columns)
    stacks = []
    for name, column in zip(names, given, strict=True):
        check_column(name, column, signature[name], len(column))
        array, stack = stacked(column), signature[name].stack
        channels, *size = signature[name].shape
        stacks.append(array.reshape(len(array), stack, channels // stack, *size))
    frames, indices = unique_frames(stacks)
    shared = {name: FrameStacks(frames, index) for name, index in zip(names, indices, strict=True)}
    return {**columns, **shared}


def unique_frames(stacks: Sequence[Array]) -> tuple[Array, list[Array]]:
    """The different frames [F, ...] of stacks [B, S, ...], and for each stack [B, S] int32 which.

    They keep the order in which they first appear.
    """
    shape, dtype = stacks[0].shape[2:], stacks[0].dtype
    parts = [as_words(np.ascontiguousarray(stack).reshape(-1, *shape)) for stack in stacks]
    starts = [0, *itertools.accumulate(len(part) for part in parts)][:-1]
    original = _first_appearances(parts, starts)
    kept = original == np.arange(len(original))
    frames = np.empty((int(kept.sum()), parts[0].shape[1]), parts[0].dtype)
    done = 0
    for start, part in zip(starts, parts, strict=True):
        chosen = kept[start : start + len(part)]
        stop = done + int(chosen.sum())
        part.compress(chosen, axis=0, out=frames[done:stop])
        done = stop
    index = (kept.cumsum() - 1).astype(INDEX)[original]
    indices = [
        index[start : start + len(part)].reshape(stack.shape[:2])
        for start, part, stack in zip(starts, parts, stacks, strict=True)
    ]
    return frames.view(dtype).reshape(-1, *shape), indices


def _first_appearances(parts: Sequence[Array], starts: Sequence[int]) -> Array:
    """[N]: for each row of all parts, one after the other, the first row that is the same."""
    hashes = np.concatenate([hash_words(part) for part in parts])
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    rows, original = np.arange(len(hashes)), first[inverse]
    # Rows with one hash are the same only if every byte is; else each stands for itself.
    placed = list(zip(starts, parts, strict=True))
    for place, (start, part) in enumerate(placed):
        for first_start, first_part in placed[: place + 1]:
            repeated = rows[start : start + len(part)]
            sources = original[start : start + len(part)]
            here = (sources != repeated) & (sources >= first_start)
            here &= sources < first_start + len(first_part)
            repeated, sources = repeated[here], sources[here]
            same = equal_rows(part, repeated - start, first_part, sources - first_start)
            original[repeated[~same]] = repeated[~same]
    return original


def as_words(frames: Array) -> Array:
    """[F, W] unsigned integers, as wide as a frame's bytes can be cut into; a view."""
    elements = math.prod(frames.shape[1:])
    width = math.gcd(elements * frames.dtype.itemsize, 8)
    return frames.reshape(len(frames), elements).view(f"<u{width}")


def hash_words(words: Array) -> Array:
    """[F] uint64: the sum of the words, each times an odd number of its own, modulo 2^64."""
    hashes: Array = np.einsum("fw,w->f", words, _multipliers(words.shape[1]), dtype=np.uint64)
    return hashes


def equal_rows(one: Array, rows: Array, other: Array, others: Array) -> Array:
    """[N] bool: whether one[rows[i]] and other[others[i]] are the same."""
    equal = np.empty(len(rows), dtype=np.bool_)
    step = max(1, min(len(rows), COMPARED_BYTES // (one.itemsize * one.shape[1])))
    left, right = (np.empty((step, one.shape[1]), one.dtype) for _ in range(2))
    same = np.empty(left.shape, dtype=np.bool_)
    for begin in range(0, len(rows), step):
        part = slice(begin, begin + step)
        count = len(rows[part])
        # The mode "raise" would fill a copy first.
        one.take(rows[part], axis=0, out=left[:count], mode="clip")
        other.take(others[part], axis=0, out=right[:count], mode="clip")
        np.equal(left[:count], right[:count], out=same[:count])
        same[:count].all(axis=1, out=equal[part])
    return equal


@functools.lru_cache(maxsize=16)
def _multipliers(count: int) -> Array:
    """[W] uint64, always the same: what is shared must not differ from run to run."""
    drawn = np.random.default_rng(0).integers(0, 2**64, size=count, dtype=np.uint64)
    return drawn | np.uint64(1)
