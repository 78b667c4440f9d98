"""Finds what of a recorded step can be done by parts of the rows, and in which order.

A step is recorded with its gradients as one graph. A value that depends on the batch has `rows`,
unless it went through a `join`, which makes the gradient of the batch out of those of the parts:
their mean, since losses are means (`learner.optimization.gradient_step` has joins recorded). All
else is `whole`: the state and what is computed from it and from joined gradients alone.

Each node gets a level. Whole work of a level comes before its rows, whose gradients are joined by
whole work of the next. A node's level is the lowest at which all that it reads is
there, and as the state is changed in place, what it reads of that is what it would have read in the
order of the step: nothing is changed before all have read it who read it before.

Views of the state (a transposed weight) cost nothing and are made again where they are needed. What
is computed of the state before anything is joined, every part computes for itself.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from repertory.errors import RepertoryError

LIBRARY = torch.library.Library("repertory", "DEF")
LIBRARY.define("join(Tensor part) -> Tensor")
LIBRARY.impl("join", torch.clone, "CompositeExplicitAutograd")


def join(part: Tensor) -> Tensor:
    """Marks where the gradients of parts become one; alone it changes nothing."""
    marked: Tensor = torch.ops.repertory.join(part)
    return marked


class NotSplit(RepertoryError):
    """A step that cannot be done by parts of its rows."""


@dataclass(frozen=True)
class Piece:
    """Work that is done without waiting for anybody, and the names of what goes in and out."""

    takes: tuple[str, ...]
    gives: tuple[str, ...]
    graph: Graph


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
class SplitGraph:
    parts: int
    state: tuple[str, ...]  # in the order of `tensors_of_state`
    inputs: tuple[Input, ...]
    levels: tuple[Level, ...]
    outputs: tuple[Output, ...]
    given: Mapping[str, Tensor]  # shapes of state and inputs, of one part's rows


def of_part(join: str, part: int) -> str:
    """How a whole piece calls a part's gradient that goes into a joined one."""
    return f"{join}@{part}"


def row_axis(tensor: Tensor, rows: int) -> int:
    """Of so many rows; the first of that size where there are several."""
    for axis, size in enumerate(tensor.shape):
        if size == rows:
            return axis
    raise NotSplit(f"an input of shape {tuple(tensor.shape)} has no axis of {rows} rows")


def split(
    graph: GraphModule, states: int, axes: Sequence[int], rows: int, parts: int
) -> SplitGraph:
    """Of a graph recorded with so many `rows`, those of one part.

    Its first `states` placeholders are the state, the others inputs with these axes of rows.
    """
    return _Split(graph.graph, states, axes, rows, parts).result()


class _Split:
    def __init__(
        self, graph: Graph, states: int, axes: Sequence[int], rows: int, parts: int
    ) -> None:
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._state, self._inputs = placeholders[:states], placeholders[states:]
        self._axes, self._row_count, self._parts = axes, rows, parts
        self._graph = graph
        self._rows = set(self._inputs)
        # Of the state, itself included, and constants: what can be made again anywhere.
        self._views: set[Node] = set(self._state)
        # Whose memory a value is in, among those that are not rows.
        self._memory: dict[Node, frozenset[Node]] = {one: frozenset([one]) for one in self._state}
        self._level: dict[Node, int] = dict.fromkeys(placeholders, 0)
        self._joins: dict[Node, Node] = {}  # to the gradient of a part
        self._changing: set[Node] = set()
        (returned,) = (node for node in graph.nodes if node.op == "output")
        self._outputs: list[Node] = list(returned.args[0])
        self._find_levels()
        with graph.inserting_before(returned):
            self._outputs = [self._joined_if_number(node) for node in self._outputs]
        self._needed = self._find_needed()

    def _find_levels(self) -> None:
        written: dict[Node, int] = defaultdict(int)  # the level since which it has its value
        free: dict[Node, int] = defaultdict(int)  # the level from which on it may be changed
        for node in self._graph.nodes:
            given = node.all_input_nodes
            if node.op in ("placeholder", "output"):
                continue
            if not given and not any(node in _changed_by(user) for user in node.users):
                self._views.add(node)
                self._memory[node] = frozenset()
                continue
            if node.target is torch.ops.repertory.join.default:
                (gradient,) = given
                if gradient not in self._rows:
                    raise NotSplit(f"{gradient} is a gradient that does not depend on the batch")
                self._joins[node] = gradient
                self._memory[node] = frozenset([node])
                self._level[node] = self._level[gradient] + 1
                continue
            memory, changed = self._memory_of(given), self._memory_of(_changed_by(node))
            if _is_view(node) and all(one in self._views for one in given):
                self._views.add(node)
                self._memory[node] = memory
                continue  # who reads it reads the state
            level = max(
                [
                    1 if changed else 0,  # nothing is changed before the first rows
                    *(self._level.get(one, 0) for one in given),
                    *(written[one] for one in memory),
                    *(free[one] for one in changed),
                ]
            )
            self._level[node] = level
            if any(one in self._rows for one in given):
                if changed:
                    raise NotSplit(f"{node} changes the state by single rows")
                self._rows.add(node)
                for one in memory:  # rows of a level come after all that is whole
                    free[one] = max(free[one], level + 1)
                continue
            for one in memory:
                free[one] = max(free[one], level)
            for one in changed:
                written[one] = level
            if changed:
                self._changing.add(node)
                self._memory[node] = changed
            else:
                self._memory[node] = memory if _is_view(node) else frozenset([node])

    def _memory_of(self, nodes: Sequence[Node]) -> frozenset[Node]:
        return frozenset[Node]().union(*(self._memory.get(node, ()) for node in nodes))

    def _joined_if_number(self, node: Node) -> Node:
        """A number that each part has of its own, as a loss, is returned as their mean."""
        if node not in self._rows or node.meta["val"].ndim:
            return node
        joined = self._graph.call_function(torch.ops.repertory.join.default, (node,))
        returned = self._graph.call_function(torch.ops.aten.clone.default, (joined,))
        joined.meta["val"] = returned.meta["val"] = node.meta["val"]
        self._joins[joined] = node
        self._memory[joined] = frozenset([joined])
        self._level[joined] = self._level[returned] = self._level[node] + 1
        return returned

    def _find_needed(self) -> set[Node]:
        needed: set[Node] = set()
        todo = [*self._outputs, *self._changing]
        while todo:
            node = todo.pop()
            if node not in needed:
                needed.add(node)
                todo += node.all_input_nodes
        return needed

    def result(self) -> SplitGraph:
        if not self._changing:
            raise NotSplit("it has no gradients that could be joined")
        self._check_temporaries()
        last = max(self._level[node] for node in self._needed if node in self._level)
        levels = []
        for number in range(last + 1):
            here = [
                node
                for node in self._graph.nodes
                if node in self._needed
                and node not in self._inputs
                and node not in self._state
                and node not in self._joins
                and self._level.get(node) == number
            ]
            rows = [node for node in here if self._in_rows(node)]
            whole = [node for node in here if not self._in_rows(node)]
            joins = {
                node.name: gradient.name
                for node, gradient in self._joins.items()
                if self._level[node] == number + 1 and node in self._needed
            }
            levels.append(Level(self._piece(whole), self._piece(rows), joins))
        return SplitGraph(
            self._parts,
            _names(self._state),
            tuple(Input(*pair) for pair in zip(_names(self._inputs), self._axes, strict=True)),
            tuple(levels),
            tuple(self._output(node) for node in self._outputs),
            {node.name: node.meta["val"] for node in (*self._state, *self._inputs)},
        )

    def _in_rows(self, node: Node) -> bool:
        """Whether it is computed with the rows: by each part, also where it is the same for all."""
        return node in self._rows or self._level[node] == 0

    def _check_temporaries(self) -> None:
        """What is changed in place besides the state is read at the level where it is changed."""
        for node in self._needed:
            for one in _changed_by(node):
                roots = {one, *self._memory.get(one, ())} - set(self._state)
                if node in self._rows and roots & set(self._inputs):
                    raise NotSplit(f"{node} changes {one}, an input")
                users = {user for root in roots for user in root.users if user in self._level}
                if any(self._level[user] != self._level[node] for user in users):
                    raise NotSplit(f"{node} changes {one}, which is read elsewhere")

    def _piece(self, nodes: Sequence[Node]) -> Piece | None:
        """These nodes as a graph of their own; None where there are none."""
        if not nodes:
            return None
        own, views = set(nodes), self._views_for(nodes)
        gives = [
            node
            for node in nodes
            if node in self._outputs
            or any(user not in own and user in self._needed for user in node.users)
        ]
        graph, here = Graph(), dict[Node, Node]()
        takes: list[str] = []

        def placeholder(name: str, of: Node) -> Node:
            takes.append(name)
            made = graph.placeholder(re.sub(r"\W", "_", name))
            made.meta["val"] = of.meta["val"]
            return made

        for node in self._graph.nodes:
            if node in own or node in views or not any(u in own or u in views for u in node.users):
                continue
            if node not in self._joins:
                here[node] = placeholder(node.name, node)
                continue
            if any(user in own and user in self._rows for user in node.users):
                raise NotSplit(f"rows read {node}, a joined gradient")
            total, *others = [
                placeholder(of_part(node.name, number), node) for number in range(self._parts)
            ]
            for other in others:
                total = graph.call_function(torch.ops.aten.add.Tensor, (total, other))
                total.meta["val"] = node.meta["val"]
            mean = graph.call_function(torch.ops.aten.div.Scalar, (total, self._parts))
            mean.meta |= {"val": node.meta["val"], "joined": True}
            here[node] = mean
        for node in self._graph.nodes:
            if node in own or node in views:
                here[node] = graph.node_copy(node, lambda one: here[one])
        graph.output([here[node] for node in gives])
        return Piece(tuple(takes), _names(gives), graph)

    def _views_for(self, nodes: Sequence[Node]) -> set[Node]:
        """Views of the state that these read, and the views that those are of."""
        found: set[Node] = set()
        todo = list(nodes)
        while todo:
            for one in todo.pop().all_input_nodes:
                if one in self._views and one not in self._state and one not in found:
                    found.add(one)
                    todo.append(one)
        return found

    def _output(self, node: Node) -> Output:
        if node in self._views:
            raise NotSplit(f"it returns {node}, which is a part of its state")
        if node not in self._rows:
            return Output(node.name, "same")
        return Output(node.name, "rows", row_axis(node.meta["val"], self._row_count))


def _names(nodes: Iterable[Node]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


def _schema(node: Node) -> Any:
    return getattr(node.target, "_schema", None)


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        (source, _) = node.args
        return isinstance(source, Node) and _is_view(source)
    schema = _schema(node)
    if schema is None:
        return False
    return any(one.alias_info is not None for one in schema.returns) and not _changed_by(node)


def _changed_by(node: Node) -> list[Node]:
    """Arguments that the node writes to."""
    schema = _schema(node)
    if schema is None:
        return []
    changed: list[Node] = []
    given = dict(zip((one.name for one in schema.arguments), node.args, strict=False))
    given |= node.kwargs
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = given.get(argument.name)
            changed += [
                one
                for one in (value if isinstance(value, list | tuple) else [value])
                if isinstance(one, Node)
            ]
    return changed
