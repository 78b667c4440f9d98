"""Pixel environments without an environment: stacks of frames that betray where they came from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repertory.types import ColumnSpec, TransitionBatch


class PixelCopy:
    """One copy of an environment that shows random frames, stacked as `FrameStackObservation` does.

    The first pixel of a frame, like the reward, is the number of the episode. An episode ends with
    probability `ending`; its first frame fills the stack, and with `still` it is black, the same in
    every episode of every copy.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        stack: int = 4,
        frame: tuple[int, ...] = (1, 84, 84),
        ending: float = 0.01,
        still: bool = False,
    ) -> None:
        self._rng, self._stack, self._frame = rng, stack, frame
        self._ending, self._still = ending, still
        self._steps = 0
        self.episode = -1
        self._begin()

    def step(self) -> dict[str, np.ndarray]:
        """One transition as columns without their leading axis."""
        before = np.concatenate(self._frames)
        self._frames = [*self._frames[1:], self._draw()]
        self._steps += 1
        over = self._rng.random() < self._ending
        columns = {
            "observation": before,
            "action": np.int64(self._steps),
            "reward": np.float32(self.episode % 256),
            "discount": np.float32(0.0 if over else 0.99),
            "next_observation": np.concatenate(self._frames),
            "policy_id": np.int32(0),
            "policy_version": np.int64(1),
        }
        if over:
            self._begin()
        return columns

    def _begin(self) -> None:
        self.episode += 1
        first = np.zeros(self._frame, np.uint8) if self._still else self._draw()
        self._frames = [first] * self._stack

    def _draw(self) -> np.ndarray:
        frame = self._rng.integers(0, 256, self._frame, dtype=np.uint8)
        frame.flat[0] = self.episode % 256
        return frame


def collect(copies: Sequence[PixelCopy], count: int) -> TransitionBatch:
    """`count` transitions of copies that step in turns."""
    rows = [copies[place % len(copies)].step() for place in range(count)]
    return TransitionBatch.from_columns(
        {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    )


def stacked_signature(batch: TransitionBatch, stack: int) -> dict[str, ColumnSpec]:
    """That of the batch, with its observations as stacks."""
    signature = batch.signature()
    for name in ("observation", "next_observation"):
        column = signature[name]
        signature[name] = ColumnSpec(column.dtype, column.shape, stack)
    return signature
