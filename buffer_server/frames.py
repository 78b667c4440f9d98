"""Stacked pixels as single frames: each is kept, and sent, once.

The observation of a pixel environment is a stack of its last S frames, and the next observation
shares S - 1 of them. `FrameStacks` names frames by their place instead of repeating them. What a
stack holds is never guessed from its neighbours: stacks come out as they went in, so none can reach
into another episode.
"""

from __future__ import annotations

from dataclasses import dataclass

from repertory.types import Array


@dataclass(frozen=True, slots=True)
class FrameStacks:
    """A column [B, S * C, H, W] as frames and which of them each item has, in order."""

    frames: Array  # [F, C, H, W]
    index: Array  # [B, S] int32

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
