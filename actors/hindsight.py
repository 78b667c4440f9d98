"""Hindsight experience replay (arXiv 1707.01495): an episode that missed its goal reached others.

When an episode is over, each of its transitions (s_t, g, a_t, s_t+1) goes to the replay as it was,
and k times more with a goal g' that the episode achieved:

    g' = achieved(s_j+1)     with j drawn by `actors.goal_choices`
    r' = compute_reward(achieved(s_t+1), g')
    discount' = 0 where compute_terminated(achieved(s_t+1), g'), else gamma

The reward is that of the *next* achieved goal: where the step led, not where it began. An
environment without compute_terminated ends its episodes whatever the goal is, so the termination
stays. Items are single steps, so a policy may take over from another within the episode: what came
later is a goal for what came before, whoever acted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from actors.assemblers import step_by_step
from actors.goal_choices import GoalChoice
from repertory.seeding import pack_generator, unpack_generator
from repertory.specs import GoalSpec
from repertory.types import Array, TransitionBatch

# An episode that goes on for ever must not fill the memory: it is relabelled in stretches.
LONGEST_STRETCH = 2000
FIRST_ROOM = 64
TERMINATED = "terminated"


class Judge(Protocol):
    """See `repertory.goal_judge`."""

    goals: GoalSpec

    def rewards(self, achieved: Array, desired: Array) -> Array: ...

    def terminated(self, achieved: Array, desired: Array) -> Array | None: ...


class Hindsight:
    """An `Assembler` that keeps whole episodes; `bits` draws the goals, and nothing else."""

    def __init__(
        self, choice: GoalChoice, judge: Judge, gamma: float, bits: np.random.PCG64
    ) -> None:
        self._choice = choice
        self._judge = judge
        self._gamma = gamma
        self._bits = bits
        self._rng = np.random.Generator(bits)
        self._columns: dict[str, Array] = {}  # [B, room, ...]
        self._filled: Array | None = None  # [B] steps of the running episodes

    def add(
        self, columns: Mapping[str, Array], terminated: Array, boundary: Array, valid: Array
    ) -> TransitionBatch | None:
        step = {**columns, TERMINATED: terminated}
        if self._filled is None:
            self._filled = np.zeros(len(valid), np.int64)
        self._make_room(step)
        copies = np.flatnonzero(valid)
        for name, column in step.items():
            self._columns[name][copies, self._filled[copies]] = column[copies]
        self._filled[copies] += 1
        over = valid & (boundary | (self._filled == LONGEST_STRETCH))
        emitted = [batch for copy in np.flatnonzero(over).tolist() for batch in self._episode(copy)]
        self._filled[over] = 0
        return TransitionBatch.concatenate(emitted) if emitted else None

    def add_stretch(
        self, columns: Mapping[str, Array], terminated: Array, boundary: Array, valid: Array
    ) -> Sequence[TransitionBatch]:
        return step_by_step(self, columns, terminated, boundary, valid)

    def cut(self, copies: Array) -> TransitionBatch | None:
        return None

    def forget(self, copies: Array) -> None:
        if self._filled is not None:
            self._filled[copies] = 0

    def state(self) -> dict[str, Array]:
        generator = {"generator": pack_generator(self._bits)}
        if self._filled is None:
            return generator
        longest = int(self._filled.max())
        columns = {
            f"columns/{name}": column[:, :longest].copy() for name, column in self._columns.items()
        }
        return {**generator, "filled": self._filled.copy(), **columns}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        unpack_generator(self._bits, arrays["generator"])
        self._filled = arrays["filled"].copy() if "filled" in arrays else None
        self._columns = {
            key.removeprefix("columns/"): column.copy()
            for key, column in arrays.items()
            if key.startswith("columns/")
        }

    def _make_room(self, step: Mapping[str, Array]) -> None:
        """For one more step of the longest episode."""
        assert self._filled is not None
        needed = int(self._filled.max()) + 1
        there = self._columns[TERMINATED].shape[1] if self._columns else 0
        if needed <= there:
            return
        room = max(FIRST_ROOM, 2 * there)
        for name, column in step.items():
            larger = np.zeros((len(column), room, *column.shape[1:]), column.dtype)
            if there:
                larger[:, :there] = self._columns[name]
            self._columns[name] = larger

    def _episode(self, copy: int) -> list[TransitionBatch]:
        """The transitions of a finished episode as they were, and with goals that it achieved."""
        assert self._filled is not None
        length = int(self._filled[copy])
        columns = {name: column[copy, :length].copy() for name, column in self._columns.items()}
        terminated = columns.pop(TERMINATED)  # [T]
        columns["discount"] = self._discount(terminated)

        goals = self._judge.goals
        achieved = columns["next_observation"][:, slice(*goals.achieved)]  # [T, G]
        chosen = self._choice.draw(length, self._rng)  # [T, k]
        own = np.repeat(np.arange(length), chosen.shape[1])  # [T * k] which step it repeats
        goal = achieved[chosen.ravel()]  # [T * k, G]
        relabelled = {name: column[own] for name, column in columns.items()}
        for name in ("observation", "next_observation"):
            relabelled[name][:, slice(*goals.desired)] = goal
        relabelled["reward"] = self._judge.rewards(achieved[own], goal)
        ends = self._judge.terminated(achieved[own], goal)
        relabelled["discount"] = self._discount(terminated[own] if ends is None else ends)
        return [TransitionBatch.from_columns(columns), TransitionBatch.from_columns(relabelled)]

    def _discount(self, terminated: Array) -> Array:
        return np.where(terminated, 0, self._gamma).astype(np.float32)
