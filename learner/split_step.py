"""A step whose rows are shared out to threads: each has a part of the batch, gradients are joined.

Threads inside each matrix product meet dozens of times in a step, and every time all wait for the
one that something else kept from its core. Here each thread goes through its own rows alone, and
they meet once for each gradient. Two kinds of work take turns, level by level:

    whole   what has no rows: gradients of the parts become those of the batch (their mean, as
            losses are means), optimisers, targets. One thread.
    rows    losses of some rows and their gradients. As many threads as there are parts.

Either is one call of a compiled library. `learner.row_split` finds the levels of a step and writes
the `Plan`; this is what runs it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from learner.compiled_library import CompiledLibrary
from learner.helper_threads import HelperThreads

PLAN = "plan.json"
Values = dict[str, Tensor]


@dataclass(frozen=True)
class Piece:
    """A compiled library of the step's folder, and the names of what goes in and out.

    What it takes of the state comes first.
    """

    takes: tuple[str, ...]
    gives: tuple[str, ...]
    library: str


@dataclass(frozen=True)
class Level:
    """First what is whole, then the rows, then the next level can join their gradients."""

    whole: Piece | None
    rows: Piece | None
    joins: Mapping[str, str]  # names of gradients of the batch: of the parts they are made of


@dataclass(frozen=True)
class Input:
    name: str
    axis: int  # of its rows


@dataclass(frozen=True)
class Output:
    """The same for all parts, or of each its own rows, along an axis."""

    name: str
    kind: Literal["same", "rows"]
    axis: int = 0


@dataclass(frozen=True)
class Plan:
    parts: int
    state: tuple[str, ...]  # in the order of `tensors_of_state`
    inputs: tuple[Input, ...]
    levels: tuple[Level, ...]
    outputs: tuple[Output, ...]

    def write(self, folder: Path) -> None:
        (folder / PLAN).write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, folder: Path) -> Plan:
        document = json.loads((folder / PLAN).read_text())
        return cls(
            document["parts"],
            tuple(document["state"]),
            tuple(Input(**one) for one in document["inputs"]),
            tuple(
                Level(_piece(one["whole"]), _piece(one["rows"]), one["joins"])
                for one in document["levels"]
            ),
            tuple(Output(**one) for one in document["outputs"]),
        )


def _piece(document: Mapping[str, Any] | None) -> Piece | None:
    return None if document is None else Piece(**document)


def of_part(join: str, part: int) -> str:
    """How a whole piece calls a part's gradient that goes into a joined one."""
    return f"{join}@{part}"


class SplitStep:
    """Called with the tensors of the state, then the inputs, as any compiled step is."""

    def __init__(self, folder: Path, helpers: HelperThreads | None = None) -> None:
        """`helpers`: one fewer than there are parts, shared with other steps; else its own."""
        self._plan = plan = Plan.read(folder)
        self.helpers = helpers or HelperThreads(folder, plan.parts - 1)
        state = set(plan.state)
        self._libraries = {
            piece.library: CompiledLibrary(
                folder / piece.library, sum(name in state for name in piece.takes), plan.parts
            )
            for level in plan.levels
            for piece in (level.whole, level.rows)
            if piece is not None
        }

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        plan = self._plan
        shared: Values = dict(zip(plan.state, tensors, strict=False))
        parts = self._parts(tensors[len(plan.state) :])
        for level in plan.levels:
            if level.whole is not None:
                library = self._libraries[level.whole.library]
                made = library(_taken(level.whole, shared, parts[0]))
                shared.update(zip(level.whole.gives, made, strict=True))
            if level.rows is not None:
                self._run_rows(level.rows, shared, parts)
            for join, gradient in level.joins.items():
                for number, part in enumerate(parts):
                    shared[of_part(join, number)] = part[gradient]
        return [_put_together(output, shared, parts) for output in plan.outputs]

    def _parts(self, inputs: Sequence[Tensor]) -> list[Values]:
        parts: list[Values] = [{} for _ in range(self._plan.parts)]
        for which, tensor in zip(self._plan.inputs, inputs, strict=True):
            for part, rows in zip(parts, tensor.chunk(len(parts), which.axis), strict=True):
                part[which.name] = rows if which.axis == 0 else rows.contiguous()
        return parts

    def _run_rows(self, rows: Piece, shared: Values, parts: Sequence[Values]) -> None:
        library = self._libraries[rows.library]
        calls = [library.prepare(_taken(rows, shared, part)) for part in parts]
        self.helpers.share([one.call for one in calls])
        for part, call in zip(parts, calls, strict=True):
            part.update(zip(rows.gives, library.results(call), strict=True))


def _taken(piece: Piece, shared: Values, part: Values) -> list[Tensor]:
    return [shared[name] if name in shared else part[name] for name in piece.takes]


def _put_together(output: Output, shared: Values, parts: Sequence[Values]) -> Tensor:
    if output.kind == "same":
        return shared[output.name] if output.name in shared else parts[0][output.name]
    return torch.cat([part[output.name] for part in parts], output.axis)
