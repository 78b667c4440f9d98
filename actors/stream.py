"""The items that one table of the replay gets out of a rollout: whose steps, assembled how.

The replay of off-policy learners takes everybody's steps; the queue of an on-policy learner takes
those of its own player only. What a policy records beside its action (`extras`) is carried to the
tables that its own learner reads, and is zero there where somebody else acted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from actors.assemblers import Assembler
from actors.player import Turn
from actors.recording import Recording
from actors.stepper import Step
from repertory.types import EXTRAS_PREFIX, Array, ColumnSpec, TransitionBatch

DISCOUNTED_RETURN = EXTRAS_PREFIX + "discounted_return"
# Of a recording, beside the columns of an item.
TERMINATED, BOUNDARY, VALID = "step/terminated", "step/boundary", "step/valid"


class Stream:
    """`readers` are the players whose learners read the table, by their index.

    `return_gamma` asks for `extras/discounted_return`, the running discounted sum of rewards that
    a learner which normalises rewards needs. It runs through the whole episode, whoever acts: it is
    no target, it tells how large returns are.
    """

    def __init__(
        self,
        table: str,
        assembler: Assembler,
        copies: int,
        *,
        readers: Collection[int],
        own_only: bool = False,
        extras: Mapping[str, ColumnSpec] | None = None,
        return_gamma: float | None = None,
    ) -> None:
        self.table = table
        self._assembler = assembler
        self._copies = copies
        self._readers = frozenset(readers)
        self._own_only = own_only
        self._extras = dict(extras or {})
        self._return_gamma = return_gamma
        self._discounted_return = np.zeros(copies, np.float64)
        self._recording = Recording()

    def add(
        self, columns: Mapping[str, Array], turns: Sequence[Turn], step: Step
    ) -> Sequence[TransitionBatch]:
        """Takes one step of every copy in; returns items that had to be completed before it."""
        completed: Sequence[TransitionBatch] = ()
        extras = self._recorded(turns)
        if self._return_gamma is not None:
            running = self._return_gamma * self._discounted_return + step.reward
            self._discounted_return = np.where(step.valid, running, self._discounted_return)
            extras[DISCOUNTED_RETURN] = self._discounted_return.astype(np.float32)
        broken = step.eventful and bool(step.broken.any())
        if broken or self._recording.full:
            completed = self.complete()
        if broken:
            self.forget(step.broken)
        self._recording.add(
            {
                **columns,
                **extras,
                TERMINATED: step.terminated,
                BOUNDARY: step.boundary,
                VALID: step.valid & self._own(turns) if self._own_only else step.valid,
            }
        )
        if step.eventful:
            self._discounted_return[step.boundary & step.valid] = 0
        return completed

    def complete(self) -> Sequence[TransitionBatch]:
        """Hands the steps since the last time on; returns the items that they completed."""
        columns = self._recording.take()
        if not columns:
            return ()
        terminated, boundary, valid = (columns.pop(name) for name in (TERMINATED, BOUNDARY, VALID))
        return self._assembler.add_stretch(columns, terminated, boundary, valid)

    def cut(self, copies: Array) -> Sequence[TransitionBatch]:
        """Another player takes over in the marked copies [B], in the middle of their episodes."""
        completed = self.complete()
        batch = self._assembler.cut(copies)
        return completed if batch is None else (*completed, batch)

    def forget(self, copies: Array) -> None:
        """Drops what is unfinished in the marked copies [B]: their episodes are lost."""
        self._assembler.forget(copies)
        self._discounted_return[copies] = 0

    def state(self) -> dict[str, Any]:
        return {
            "assembler": self._assembler.state(),
            "discounted_return": self._discounted_return.copy(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._assembler.load_state(state["assembler"])
        self._discounted_return = state["discounted_return"].copy()

    def _own(self, turns: Sequence[Turn]) -> Array:
        """[B] where one of the readers acted."""
        if len(turns) == 1:  # in every copy
            return np.full(self._copies, turns[0].player in self._readers)
        own = np.zeros(self._copies, bool)
        for turn in turns:
            own[turn.copies] = turn.player in self._readers
        return own

    def _recorded(self, turns: Sequence[Turn]) -> dict[str, Array]:
        """What the readers' policies recorded, for every copy, by the names of columns."""
        recorded = {}
        alone = turns[0] if len(turns) == 1 and turns[0].player in self._readers else None
        for name, spec in self._extras.items():
            if alone is not None and name in alone.acted.extras:
                own = alone.acted.extras[name]
                recorded[EXTRAS_PREFIX + name] = own.astype(spec.dtype, copy=False)
                continue
            column = np.zeros((self._copies, *spec.shape), spec.dtype)
            for turn in turns:
                if turn.player in self._readers and name in turn.acted.extras:
                    column[turn.copies] = turn.acted.extras[name]
            recorded[EXTRAS_PREFIX + name] = column
        return recorded
