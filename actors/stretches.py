"""Turns the steps under one goal (or option) into one item: what a meta-controller learns from.

    observation        where the goal was set
    reward             the sum of the environment's rewards until it was reached, given up or cut
    discount           gamma, once for the whole stretch (arXiv 1604.06057); 0 where it terminated
    next_observation   where the stretch ended

`extras/beginning` says that a stretch begins with a step, `extras/goal` whose it is; the item has
those of its first step. That one is over shows with the beginning of the next, so an item leaves
one step late, or with the end of the episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from actors.assemblers import step_by_step
from repertory.types import Array, TransitionBatch


class Stretches:
    """An `Assembler`."""

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self._open: Array | None = None  # [B]
        self._reward: Array = np.zeros(0)  # [B] summed so far
        self._first: dict[str, Array] = {}  # the columns of the first step
        self._last: Array = np.zeros(0)  # [B, ...] where the last step led

    def add(
        self, columns: Mapping[str, Array], terminated: Array, boundary: Array, valid: Array
    ) -> TransitionBatch | None:
        if self._open is None:
            self._open = np.zeros(len(valid), bool)
            self._reward = np.zeros(len(valid), np.float64)
            self._first = {name: np.zeros_like(column) for name, column in columns.items()}
            self._last = np.zeros_like(columns["next_observation"])
        beginning = valid & columns["extras/beginning"]
        emitted = [self._close(beginning, np.zeros(len(valid), bool))]
        for name, column in columns.items():
            self._first[name][beginning] = column[beginning]
        self._reward[beginning] = 0
        self._open |= beginning
        running = valid & self._open
        self._reward[running] += columns["reward"][running]
        self._last[running] = columns["next_observation"][running]
        emitted.append(self._close(valid & boundary, terminated))
        items = [batch for batch in emitted if batch is not None]
        return TransitionBatch.concatenate(items) if items else None

    def add_stretch(
        self, columns: Mapping[str, Array], terminated: Array, boundary: Array, valid: Array
    ) -> Sequence[TransitionBatch]:
        return step_by_step(self, columns, terminated, boundary, valid)

    def cut(self, copies: Array) -> TransitionBatch | None:
        return None if self._open is None else self._close(copies, np.zeros(len(copies), bool))

    def _close(self, copies: Array, terminated: Array) -> TransitionBatch | None:
        """The stretches that are open in the marked copies [B] are over."""
        assert self._open is not None
        over = copies & self._open
        if not over.any():
            return None
        self._open &= ~over
        columns = {name: column[over] for name, column in self._first.items()}
        columns["reward"] = self._reward[over].astype(np.float32)
        columns["discount"] = np.where(terminated[over], 0, self._gamma).astype(np.float32)
        columns["next_observation"] = self._last[over]
        return TransitionBatch.from_columns(columns)

    def forget(self, copies: Array) -> None:
        if self._open is not None:
            self._open &= ~copies

    def state(self) -> dict[str, Array]:
        if self._open is None:
            return {}
        return {
            "open": self._open.copy(),
            "reward": self._reward.copy(),
            "last": self._last.copy(),
            **{f"first/{name}": column.copy() for name, column in self._first.items()},
        }

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        self._open = arrays["open"].copy() if "open" in arrays else None
        if self._open is not None:
            self._reward, self._last = arrays["reward"].copy(), arrays["last"].copy()
        self._first = {
            key.removeprefix("first/"): column.copy()
            for key, column in arrays.items()
            if key.startswith("first/")
        }
