"""Turn the steps of many copies into items for the replay: n-step transitions, or segments.

    n-step (arXiv 1704.03732)   R = sum_{k<m} gamma^k r_{t+k},  discount = gamma^m (1 - terminated)

with m = n, or fewer where the episode ends or another policy takes over sooner: no return ever
reaches over either, and after a hand-over the value of the next observation stands in for the rest.
Both assemblers take columns [B, ...] step by step, or [T, B, ...] of a whole stretch at once, and
neither knows an environment or a policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from repertory.types import Array, TransitionBatch


class Assembler(Protocol):
    def add(
        self, columns: Mapping[str, Array], terminated: Array, boundary: Array, valid: Array
    ) -> TransitionBatch | None:
        """Takes one step of every copy in; returns the items it completed."""
        ...

    def add_stretch(
        self, columns: Mapping[str, Array], terminated: Array, boundary: Array, valid: Array
    ) -> Sequence[TransitionBatch]:
        """Takes many steps of every copy in, [T, B, ...] each: the same items in the same order.

        The arrays are the assembler's from now on.
        """
        ...

    def cut(self, copies: Array) -> TransitionBatch | None:
        """Another policy takes over in the marked copies [B], in the middle of their episodes.

        Returns the items that this completed. Nothing begun before reaches over what comes after.
        """
        ...

    def forget(self, copies: Array) -> None:
        """Drops the unfinished items of the marked copies [B]: their episodes are lost."""
        ...

    def state(self) -> dict[str, Array]: ...

    def load_state(self, arrays: Mapping[str, Array]) -> None: ...


def step_by_step(
    assembler: Assembler,
    columns: Mapping[str, Array],
    terminated: Array,
    boundary: Array,
    valid: Array,
) -> list[TransitionBatch]:
    """`add_stretch` of those that have no shorter way."""
    completed = []
    for number in range(len(valid)):
        step = {name: column[number] for name, column in columns.items()}
        batch = assembler.add(step, terminated[number], boundary[number], valid[number])
        if batch is not None:
            completed.append(batch)
    return completed


class NStep:
    """Windows of up to n steps for each copy."""

    def __init__(self, n: int, gamma: float) -> None:
        self._n = n
        self._gamma = gamma
        self._window: list[dict[str, Array]] = []  # the last n steps, oldest first
        self._pending: Array | None = None  # [B] steps of the running episode in the window

    def add(
        self, columns: Mapping[str, Array], terminated: Array, boundary: Array, valid: Array
    ) -> TransitionBatch | None:
        if self._n == 1:
            return self._one_step(columns, terminated, valid)
        self._window = [*self._window, dict(columns)][-self._n :]
        previous = np.zeros(len(valid), np.int64) if self._pending is None else self._pending
        pending = np.where(valid, np.minimum(previous + 1, len(self._window)), previous)
        emitted = []
        for length in range(len(self._window), 0, -1):
            # A full window leaves at every step; the shorter ones only when the episode is over.
            leaving = valid & (pending >= length) & (boundary | (length == self._n))
            if leaving.any():
                emitted.append(self._window_of(length, leaving, terminated))
        self._pending = np.where(boundary & valid, 0, pending)
        return TransitionBatch.concatenate(emitted) if emitted else None

    def _one_step(
        self, columns: Mapping[str, Array], terminated: Array, valid: Array
    ) -> TransitionBatch | None:
        """Nothing waits for a later step, so nothing is remembered."""
        discount = np.where(terminated, 0, self._gamma).astype(np.float32)
        steps = TransitionBatch.from_columns({**columns, "discount": discount})
        if valid.all():
            return steps
        return steps.select(valid) if valid.any() else None

    def add_stretch(
        self, columns: Mapping[str, Array], terminated: Array, boundary: Array, valid: Array
    ) -> Sequence[TransitionBatch]:
        if self._n > 1:
            return step_by_step(self, columns, terminated, boundary, valid)
        flat = {name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()}
        batch = self._one_step(flat, terminated.ravel(), valid.ravel())
        return () if batch is None else (batch,)

    def cut(self, copies: Array) -> TransitionBatch | None:
        if self._pending is None:
            return None
        emitted = []
        for length in range(min(len(self._window), self._n - 1), 0, -1):  # the full one has left
            leaving = copies & (self._pending >= length)
            if leaving.any():
                emitted.append(self._window_of(length, leaving, np.zeros(len(copies), bool)))
        self._pending = np.where(copies, 0, self._pending)
        return TransitionBatch.concatenate(emitted) if emitted else None

    def _window_of(self, length: int, copies: Array, terminated: Array) -> TransitionBatch:
        steps = self._window[-length:]
        first, last = steps[0], steps[-1]
        reward = np.zeros(int(copies.sum()), np.float64)
        for k, step in enumerate(steps):
            reward += self._gamma**k * step["reward"][copies]
        columns = {name: column[copies] for name, column in first.items()}
        columns["reward"] = reward.astype(np.float32)
        columns["discount"] = np.where(terminated[copies], 0, self._gamma**length).astype(
            np.float32
        )
        columns["next_observation"] = last["next_observation"][copies]
        return TransitionBatch.from_columns(columns)

    def forget(self, copies: Array) -> None:
        if self._pending is not None:
            self._pending = np.where(copies, 0, self._pending)

    def state(self) -> dict[str, Array]:
        if self._pending is None:
            return {}
        window = {
            f"window/{age}/{name}": column
            for age, step in enumerate(self._window)
            for name, column in step.items()
        }
        return {"pending": self._pending, **window}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        self._pending = arrays["pending"].copy() if "pending" in arrays else None
        steps: dict[int, dict[str, Array]] = {}
        for key, column in arrays.items():
            if key.startswith("window/"):
                _, age, name = key.split("/", 2)
                steps.setdefault(int(age), {})[name] = column
        self._window = [steps[age] for age in sorted(steps)]


class Segments:
    """Runs of `length` consecutive steps of one copy, for on-policy learners.

    A segment may span several episodes, and pauses in which others acted: `extras/boundary` marks
    the steps that are not followed by the next one of the segment.
    """

    def __init__(self, length: int, gamma: float) -> None:
        self._length = length
        self._gamma = gamma
        self._columns: dict[str, Array] = {}  # [B, T, ...]
        self._filled: Array | None = None  # [B]

    def add(
        self, columns: Mapping[str, Array], terminated: Array, boundary: Array, valid: Array
    ) -> TransitionBatch | None:
        step = self._completed(columns, terminated, boundary)
        filled = self._begun(step, lead=1)
        copies = np.flatnonzero(valid)
        for name, column in step.items():
            self._columns[name][copies, filled[copies]] = column[copies]
        filled[copies] += 1
        full = filled == self._length
        if not full.any():
            return None
        filled[full] = 0
        return TransitionBatch.from_columns(
            {name: column[full] for name, column in self._columns.items()}
        )

    def add_stretch(
        self, columns: Mapping[str, Array], terminated: Array, boundary: Array, valid: Array
    ) -> Sequence[TransitionBatch]:
        steps = self._completed(columns, terminated, boundary)
        filled = self._begun(steps, lead=2)
        if not valid.all() or (filled != filled[0]).any():
            return step_by_step(self, columns, terminated, boundary, valid)
        # Every copy is as far as the others: whole pieces of columns are moved.
        completed = []
        start = 0
        while start < len(valid):
            place = int(filled[0])
            count = min(len(valid) - start, self._length - place)
            for name, column in steps.items():
                piece = column[start : start + count].swapaxes(0, 1)
                self._columns[name][:, place : place + count] = piece
            start += count
            filled[:] = place + count
            if place + count == self._length:
                filled[:] = 0
                completed.append(TransitionBatch.from_columns(self._columns))
                self._columns = self._room_for(steps, lead=2)
        return completed

    def _completed(
        self, columns: Mapping[str, Array], terminated: Array, boundary: Array
    ) -> dict[str, Array]:
        return {
            **columns,
            "discount": np.where(terminated, 0, self._gamma).astype(np.float32),
            "extras/boundary": boundary,
        }

    def _begun(self, step: Mapping[str, Array], lead: int) -> Array:
        """How far each copy is [B]; `lead` axes of the columns are no part of an item."""
        if self._filled is None:
            self._filled = np.zeros(step["extras/boundary"].shape[-1], np.int64)
            self._columns = self._room_for(step, lead)
        return self._filled

    def _room_for(self, step: Mapping[str, Array], lead: int) -> dict[str, Array]:
        return {
            name: np.zeros(
                (column.shape[lead - 1], self._length, *column.shape[lead:]), column.dtype
            )
            for name, column in step.items()
        }

    def cut(self, copies: Array) -> TransitionBatch | None:
        if self._filled is not None:
            # Where nothing is filled, the last step left with its segment, whose end is a cut too.
            begun = np.flatnonzero(copies & (self._filled > 0))
            self._columns["extras/boundary"][begun, self._filled[begun] - 1] = True
        return None

    def forget(self, copies: Array) -> None:
        if self._filled is not None:
            self._filled[copies] = 0

    def state(self) -> dict[str, Array]:
        if self._filled is None or not self._filled.any():
            return {}
        return {
            "filled": self._filled.copy(),
            **{f"columns/{name}": column.copy() for name, column in self._columns.items()},
        }

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        self._filled = arrays["filled"].copy() if "filled" in arrays else None
        self._columns = {
            key.removeprefix("columns/"): column.copy()
            for key, column in arrays.items()
            if key.startswith("columns/")
        }
