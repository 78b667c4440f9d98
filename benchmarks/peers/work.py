"""The work that every peer is given: the same columns, the same numbers, checked on the way out.

It runs in each peer's own environment, so it needs NumPy and nothing else.

`vector` is a transition of HalfCheetah: 17 + 6 numbers. `pixels` is one of an Atari game: stacks of
four frames of 84 x 84. What a frame shows decides what compression gains: ours have flat areas, a
wall of bricks that crumbles, two things that move and some sparks, and LZ4 makes a single one about
six times smaller. Games with busy backgrounds gain less, plain ones more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

STACK = 4
FRAME = (84, 84)
SPARKS = 200
STEPS = {"vector": 4096, "pixels": 512}


@dataclass(frozen=True)
class Column:
    dtype: str
    shape: tuple[int, ...]  # of one item


@dataclass(frozen=True)
class Work:
    """Consecutive transitions of one environment, over and over."""

    columns: Mapping[str, Column]
    steps: Mapping[str, Array]  # [T, ...] for each column
    frames: Array | None  # [T + STACK, 84, 84]: observation t shows frames t to t + 3, the next +1
    pixels: Array | None  # [T + 1, 4, 84, 84]: what observation and next_observation are views of

    def __len__(self) -> int:
        return len(self.steps["reward"])

    def batches(self, size: int) -> Iterator[dict[str, Array]]:
        """[size, ...] for each column."""
        if size > len(self):
            raise ValueError(f"batches of {size} cannot be cut from {len(self)} steps")
        parts = [slice(first, first + size) for first in range(0, len(self) - size + 1, size)]
        return self._cycle([self._take(part) for part in parts])

    def transitions(self) -> Iterator[dict[str, Array]]:
        """One at a time."""
        return self._cycle([self._take(step) for step in range(len(self))])

    def check(self, batch: Mapping[str, Array], items: int) -> None:
        """Raises unless the batch has these columns, and each item's columns belong together."""
        for name, column in self.columns.items():
            array = np.asarray(batch[name])
            if array.dtype != np.dtype(column.dtype) or array.shape != (items, *column.shape):
                raise ValueError(
                    f"column {name} came out as {array.dtype} {list(array.shape)}, "
                    f"not as {column.dtype} {[items, *column.shape]}"
                )
        if not np.array_equal(
            _marks(np.asarray(batch["observation"])), np.asarray(batch["reward"])
        ):
            raise ValueError("rewards came out with the observations of other items")

    def _take(self, part: int | slice) -> dict[str, Array]:
        return {name: column[part] for name, column in self.steps.items()}

    def _cycle(self, parts: list[dict[str, Array]]) -> Iterator[dict[str, Array]]:
        for turn in itertools.count():
            if self.frames is not None and self.pixels is not None:
                # Else who keeps frames once would have seen them all after the first turn.
                number = np.frombuffer(np.int64(turn).tobytes(), np.uint8)
                self.frames[:, 0, 8:16] = number
                self.pixels[:, :, 0, 8:16] = number
            yield from parts


def make_work(name: str) -> Work:
    count = STEPS[name]
    rng = np.random.default_rng(0)
    frames = pixels = None
    if name == "pixels":
        frames = _frames(count + STACK)
        windows = np.lib.stride_tricks.sliding_window_view(frames, STACK, axis=0)
        pixels = np.ascontiguousarray(np.moveaxis(windows, -1, 1))
        observations, actions = pixels, rng.integers(0, 6, count).astype(np.int32)
    else:
        observations = rng.standard_normal((count + 1, 17), dtype=np.float32)
        actions = rng.uniform(-1, 1, (count, 6)).astype(np.float32)
    steps: dict[str, Array] = {
        "observation": observations[:-1],
        "action": actions,
        "reward": _marks(observations[:-1]),
        "discount": np.full(count, 0.99, dtype=np.float32),
        "next_observation": observations[1:],
        "policy_id": np.zeros(count, dtype=np.int32),
        "policy_version": np.arange(count, dtype=np.int64) // 100,
    }
    columns = {name: Column(array.dtype.str, array.shape[1:]) for name, array in steps.items()}
    return Work(columns, steps, frames, pixels)


def _marks(observation: Array) -> Array:
    """[B] what an item's reward must be: the first number of its observation."""
    marks: Array = observation.reshape(len(observation), -1)[:, 0].astype(np.float32)
    return marks


def _frames(count: int) -> Array:
    """[T, 84, 84]: bricks, a ball, a paddle and sparks on black."""
    frames = np.zeros((count, *FRAME), dtype=np.uint8)
    rng = np.random.default_rng(1)
    for step, frame in enumerate(frames):
        frame.flat[rng.integers(0, frame.size, SPARKS)] = rng.integers(0, 256, SPARKS)
        frame[0, :8] = step % 251
        for row in range(6):
            gone = 11 * ((step // 40 + row) % 7)
            frame[18 + 3 * row : 21 + 3 * row, 4 + gone : 80] = 60 + 30 * row
        ball_x, ball_y = abs(3 * step % 156 - 78), 36 + abs(2 * step % 80 - 40)
        frame[ball_y : ball_y + 2, ball_x : ball_x + 2] = 236
        frame[79:81, max(0, ball_x - 5) : ball_x + 5] = 200
    return frames
