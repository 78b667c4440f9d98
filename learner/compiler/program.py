"""The C++ of an algorithm's steps: one function for each, gone through by all threads together.

A step that threads share alternates between rows, which each thread has some of, and what is whole
(`learner.compiler.row_split`). Of the latter, large tensors are shared out by elements and all else
is the first thread's; where one needs what the other made, threads meet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.fx import Graph, Node

from learner.compiler.operations import OPERATIONS
from learner.compiler.row_split import Level, Piece, SplitGraph, of_part
from learner.compiler.statements import (
    Loop,
    Product,
    Reduction,
    Statement,
    Statements,
    spread,
)
from learner.compiler.translation import Translation
from learner.compiler.values import Kind, Storage, View, contiguous, shape_of, whole

SHARED_OUT = 2048  # elements: below, a meeting costs more than it saves
ALIGNMENT = 64


@dataclass(frozen=True)
class OutputTensor:
    """Of a step: what its caller makes room for."""

    shape: tuple[int, ...]
    dtype: str  # as torch calls it


@dataclass
class StepFunction:
    """One step's body, and the memory it needs besides what it is given."""

    name: str
    text: str
    thread_bytes: int
    shared_bytes: int
    outputs: list[OutputTensor]


def function_of(name: str, recorded: Graph) -> StepFunction:
    """A recorded step for one thread, all of it in the order it was recorded in."""
    return _Function(name, 1).of_graph(recorded)


def shared_function_of(name: str, made: SplitGraph) -> StepFunction:
    """A step whose rows threads share."""
    return _Function(name, made.parts).of_split(made)


def source_of(functions: Sequence[StepFunction], threads: int) -> str:
    thread = max(function.thread_bytes for function in functions)
    shared = max(function.shared_bytes for function in functions)
    bodies = "\n".join(function.text for function in functions)
    entries = "\n".join(
        f"void step_{function.name}(Crew* crew, void* const* given) "
        f"{{ crew->run(body_{function.name}, given); }}"
        for function in functions
    )
    return f"""// Written by learner/compiler/program.py.
#include "gated_products.h"
#include "products.h"
#include "runtime.h"

using namespace repertory;

namespace {{

constexpr int THREADS = {threads};

{bodies}
}}  // namespace

extern "C" {{

Crew* crew_create() {{ return new Crew(THREADS, {thread + ALIGNMENT}, {shared + ALIGNMENT}); }}
void crew_delete(Crew* crew) {{ delete crew; }}
{entries}
}}
"""


@dataclass
class _Memory:
    """Places in bytes, one after the other."""

    kept: dict[Storage, int] = field(default_factory=dict)
    end: int = 0

    def keep(self, storage: Storage) -> None:
        if storage not in self.kept:
            self.kept[storage] = self.end
            self.end += -(-storage.bytes // ALIGNMENT) * ALIGNMENT


class _Function:
    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._threads = threads
        self._names: Iterator[str] = (f"b{number}" for number in itertools.count())
        self._given: list[str] = []  # lines that say where what is given lies
        self._values: dict[str, View] = {}  # by the recorded names
        self._thread, self._shared = _Memory(), _Memory()
        self._temporary = 0  # bytes, after those that are kept
        self._wanted: set[Storage] = set()  # by other pieces than the one at hand
        self._parts: list[str] = []  # of the body

    def of_graph(self, graph: Graph) -> StepFunction:
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        given = {node: self._tensor(node.meta["val"]) for node in placeholders}
        outputs = _returned(graph)
        wanted: dict[Node, Kind] = dict.fromkeys(outputs, "kept")
        translation = Translation(graph, given, wanted, self._names, "temporary", OPERATIONS)
        for node in outputs:
            value = translation.view(node)
            target = self._output(shape_of(node.meta["val"]), node.meta["val"].dtype)
            translation.statements.assign(target, value)
        self._rows(translation.statements.all)
        tensors = [node.meta["val"] for node in outputs]
        return self._function([OutputTensor(shape_of(one), str(one.dtype)) for one in tensors])

    def of_split(self, made: SplitGraph) -> StepFunction:
        for name in made.state:
            self._values[name] = self._tensor(made.given[name])
        for one in made.inputs:
            value = made.given[one.name]
            self._values[one.name] = self._of_rows(shape_of(value), value.dtype, one.axis)
        for level in made.levels:
            self._level(level)
        return self._function(self._put_out(made))

    def _function(self, outputs: list[OutputTensor]) -> StepFunction:
        body = "\n".join(self._parts)
        text = (
            f"void body_{self._name}(Crew& crew, int me, void* const* given) {{\n"
            "[[maybe_unused]] char* const mine = crew.memory_of(me);\n"
            + "\n".join([*self._given, *self._places()])
            + f"\n{body}\ncrew.meet();\n}}\n"
        )
        return StepFunction(
            self._name, text, self._thread.end + self._temporary, self._shared.end, outputs
        )

    # What is given

    def _tensor(self, value: Tensor) -> View:
        storage = Storage(next(self._names), value.numel(), value.dtype, "given")
        self._point(storage)
        return View(storage, shape_of(value), tuple(value.stride()))

    def _point(self, storage: Storage, offset: str = "") -> None:
        type_ = storage.type
        number = len(self._given)
        self._given.append(
            f"[[maybe_unused]] {type_}* const {storage.name} = "
            f"static_cast<{type_}*>(given[{number}]){offset};"
        )

    def _of_rows(self, shape: tuple[int, ...], dtype: torch.dtype, axis: int) -> View:
        """This thread's rows of a tensor with those of all."""
        full = list(shape)
        full[axis] *= self._threads
        strides = contiguous(full)
        storage = Storage(next(self._names), math.prod(full), dtype, "given")
        self._point(storage, f" + me * {shape[axis] * strides[axis]}")
        return View(storage, shape, strides)

    def _output(self, shape: tuple[int, ...], dtype: torch.dtype) -> View:
        storage = Storage(next(self._names), math.prod(shape), dtype, "given")
        self._point(storage)
        return whole(storage, shape)

    # What is done

    def _level(self, level: Level) -> None:
        if level.whole is not None:
            self._whole(self._translated(level.whole, "shared", "shared"))
        if level.rows is not None:
            self._rows(self._translated(level.rows, "kept", "temporary"))
            self._parts.append("crew.meet();")
        for join, gradient in level.joins.items():
            view = self._values[gradient]
            for part in range(self._threads):
                self._values[of_part(join, part)] = replace(view, part=part)

    def _translated(self, piece: Piece, kind: Kind, temporary: Kind) -> list[Statement]:
        """`kind` of storage of what it gives, and of what it needs meanwhile."""
        graph = piece.graph
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        given = {
            node: self._values[name] for node, name in zip(placeholders, piece.takes, strict=True)
        }
        returned = _returned(graph)
        translation = Translation(
            graph, given, dict.fromkeys(returned, kind), self._names, temporary, OPERATIONS
        )
        for name, node in zip(piece.gives, returned, strict=True):
            self._values[name] = translation.view(node)
        self._wanted = {self._values[name].storage for name in piece.gives}
        return translation.statements.all

    def _rows(self, statements: Sequence[Statement]) -> None:
        """By one thread, in order."""
        uses = _uses(statements)
        unstored, merged = _unneeded(statements, uses)
        temporaries = [
            storage for storage in uses
            if storage.kind == "temporary" and storage not in unstored and storage not in merged
        ]  # fmt: skip
        for storage in uses:
            if storage.kind == "kept":
                self._thread.keep(storage)
        lines = []
        spans = [(one.bytes, min(uses[one]), max(uses[one])) for one in temporaries]
        places, size = spread(spans)
        pointers = dict(zip(temporaries, places, strict=True))
        self._temporary = max(self._temporary, size)
        for raw, result in merged.items():
            if result in pointers:
                pointers[raw] = pointers[result]
        for storage, place in pointers.items():
            lines.append(_pointer(storage, f"mine + TEMPORARY + {place}"))
        for raw, result in merged.items():
            if raw not in pointers:
                lines.append(f"float* const {raw.name} = {result.name};")
        lines += [statement.text(unstored) for statement in statements]
        self._parts.append("{\n" + "\n".join(lines) + "\n}")

    def _whole(self, statements: Sequence[Statement]) -> None:
        """By all threads, in waves."""
        todo = [one for statement in statements for one in self._in_shares(statement)]
        uses = _uses(todo)
        unstored = {
            storage for storage, where in uses.items()
            if storage.kind == "shared" and storage not in self._wanted and len(where) == 1
            and isinstance(todo[where[0]], Loop)
        }  # fmt: skip
        for storage in uses:
            if storage.kind in ("shared", "kept") and storage not in unstored:
                (self._shared if storage.kind == "shared" else self._thread).keep(storage)
        waves = _waves(todo)
        for number in range(max(waves, default=-1) + 1):
            here = [one for one, wave in zip(todo, waves, strict=True) if wave == number]
            small = [one.text(unstored) for one in here if not _is_large(one)]
            large = [self._shared_out(one, unstored) for one in here if _is_large(one)]
            if small:
                self._parts.append("if (me == 0) {\n" + "\n".join(small) + "\n}")
            self._parts += large
            self._parts.append("crew.meet();")

    def _in_shares(self, statement: Statement) -> list[Statement]:
        """A sum over a large tensor: each thread's share, and what joins them."""
        if not isinstance(statement, Reduction) or not _is_large(statement):
            return [statement]
        storage = Storage(next(self._names), self._threads, torch.float32, "shared")
        shares = whole(storage, (self._threads,))
        return [
            Reduction(shares, statement.source, statement.axes, statement.reducer, share=True),
            Reduction(statement.target, shares, (0,), statement.reducer, statement.finish),
        ]

    def _shared_out(self, statement: Statement, unstored: set[Storage]) -> str:
        size = _elements(statement)
        bounds = (f"share({size}, me, THREADS)", f"share({size}, me + 1, THREADS)")
        begin, end = (
            f"const long {name} = {text};"
            for name, text in zip(("begin", "end"), bounds, strict=True)
        )
        return f"{{\n{begin}\n{end}\n{statement.text(unstored, ('begin', 'end'))}\n}}"

    def _put_out(self, made: SplitGraph) -> list[OutputTensor]:
        outputs = []
        alone, all_ = Statements(self._names), Statements(self._names)
        for one in made.outputs:
            value = self._values[one.name]
            shape = list(value.shape)
            if one.kind == "rows":
                all_.assign(self._of_rows(value.shape, value.dtype, one.axis), value)
                shape[one.axis] *= self._threads
            else:
                alone.assign(self._output(value.shape, value.dtype), value)
            outputs.append(OutputTensor(tuple(shape), str(value.dtype)))
        self._parts += [one.text(set()) for one in all_.all]
        text = "\n".join(one.text(set()) for one in alone.all)
        self._parts.append(f"if (me == 0) {{\n{text}\n}}")
        return outputs

    # Where it lies

    def _places(self) -> list[str]:
        lines = [f"[[maybe_unused]] constexpr long TEMPORARY = {self._thread.end};"]
        for storage, place in self._thread.kept.items():
            lines.append(_pointer(storage, f"mine + {place}"))
            lines += [
                _pointer(storage, f"crew.memory_of({part}) + {place}", f"_{part}")
                for part in range(self._threads)
            ]
        for storage, place in self._shared.kept.items():
            lines.append(_pointer(storage, f"crew.shared() + {place}"))
        return lines


def _pointer(storage: Storage, place: str, suffix: str = "") -> str:
    type_, name = storage.type, storage.name + suffix
    return f"[[maybe_unused]] {type_}* const {name} = reinterpret_cast<{type_}*>({place});"


def _returned(graph: Graph) -> list[Node]:
    (output,) = (node for node in graph.nodes if node.op == "output")
    return list(output.args[0])


def _uses(statements: Sequence[Statement]) -> dict[Storage, list[int]]:
    """By number, which statements touch it."""
    uses: dict[Storage, list[int]] = {}
    for number, statement in enumerate(statements):
        for storage in dict.fromkeys(
            [view.storage for view in statement.targets]
            + [leaf.view.storage for leaf in statement.leaves]
        ):
            uses.setdefault(storage, []).append(number)
    return uses


def _unneeded(
    statements: Sequence[Statement], uses: Mapping[Storage, Sequence[int]]
) -> tuple[set[Storage], dict[Storage, Storage]]:
    """Temporaries that live inside one loop, and results of products that are written over."""
    alone = {
        storage for storage, where in uses.items()
        if storage.kind == "temporary" and len(where) == 1
    }  # fmt: skip
    fixed = {view.storage for statement in statements for view in statement.own_targets}
    unstored = alone - fixed
    merged: dict[Storage, Storage] = {}
    for statement in statements:
        if isinstance(statement, Product) and statement.target.storage in alone:
            for one in statement.assignments:
                result = one.target
                if (
                    result.storage not in unstored
                    and result.storage.kind in ("temporary", "kept")
                    and result.storage.size == statement.target.storage.size
                    and result.in_order
                    and result.dtype == statement.target.dtype
                ):
                    merged[statement.target.storage] = result.storage
                    statement.written_over = True
                    break
    return unstored, merged


def _elements(statement: Statement) -> int:
    if isinstance(statement, Loop):
        return math.prod(statement.shape)
    assert isinstance(statement, Reduction)
    return math.prod(statement.source.shape)


def _is_large(statement: Statement) -> bool:
    if not isinstance(statement, Loop | Reduction) or not statement.flat:
        return False
    return _elements(statement) >= SHARED_OUT


def _waves(statements: Sequence[Statement]) -> list[int]:
    """Each is in the first wave in which all that it needs is there."""
    waves: list[int] = []
    for number, one in enumerate(statements):
        wave = 0
        for earlier, before in zip(statements[:number], waves, strict=True):
            if earlier.writes & (one.reads | one.writes) or earlier.reads & one.writes:
                wave = max(wave, before if _same_thread(earlier, one) else before + 1)
        waves.append(wave)
    return waves


def _same_thread(earlier: Statement, later: Statement) -> bool:
    """Whether who made an element of the one is who needs it for the other."""
    if not _is_large(earlier) and not _is_large(later):
        return True
    return (
        _is_large(earlier)
        and _is_large(later)
        and _elements(earlier) == _elements(later)
        and isinstance(earlier, Loop)
    )
