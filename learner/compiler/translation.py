"""One piece of a recorded step as statements: what each node of its graph becomes.

Element-wise values stay lazy until something needs them in memory: a second reader, a product, the
end of the piece, or a change of what they are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from learner.compiler.formulas import (
    FLOAT,
    FOREACH,
    FORMULAS,
    IN_PLACE,
    NAMED,
    SETTINGS,
)
from learner.compiler.gates import is_only_gated
from learner.compiler.statements import (
    Reducer,
    Reduction,
    Statements,
)
from learner.compiler.values import (
    Kind,
    Lazy,
    Shape,
    Storage,
    Untranslated,
    Value,
    View,
    literal,
    pointwise,
    seen,
    shape_of,
)

aten = torch.ops.aten


Operations = Mapping[Any, Callable[["Translation", Node], Any]]


class Translation:
    """Of the nodes of a graph, whose placeholders are `given`; `wanted` ones are kept in memory."""

    def __init__(
        self,
        graph: Graph,
        given: Mapping[Node, View],
        wanted: Mapping[Node, Kind],
        names: Iterator[str],
        kind: Kind,
        operations: Operations,
    ) -> None:
        """`wanted` says which kind of storage a node's value is to have, `kind` that of others.

        `operations` are those that are not done element by element.
        """
        self.statements = Statements(names, kind)
        self._values: dict[Node, Any] = dict(given)
        self._place = {node: place for place, node in enumerate(graph.nodes)}
        self._now = 0
        self._wanted = wanted
        self._operations = operations
        for node in graph.nodes:
            self._now = self._place[node]
            if node.op == "call_function":
                self._values[node] = self._made(node)
                self._keep_if_needed(node)
            elif node.op == "get_attr":
                raise Untranslated(f"a constant tensor, {node.target}")

    def view(self, node: Node) -> View:
        """In memory, wherever it came from."""
        value = self._values[node]
        if not isinstance(value, View):
            value = self._values[node] = self.statements.kept(value, self._wanted.get(node))
        return value

    def kind_of(self, node: Node) -> Kind | None:
        """Of the storage that its value is wanted in, if it is."""
        return self._wanted.get(node)

    def new(self, node: Node) -> View:
        """Room for its value."""
        of = node.meta["val"]
        return self.statements.new(shape_of(of), of.dtype, self.kind_of(node))

    def _keep_if_needed(self, node: Node) -> None:
        value = self._values[node]
        if node in self._wanted:
            if isinstance(value, Lazy):
                self._values[node] = self.statements.kept(value, self._wanted[node])
            elif value.storage.kind == "temporary":
                value.storage.kind = self._wanted[node]
        elif isinstance(value, Lazy) and value.leaves and _readers(node) > 1 and not _cheap(node):
            self._values[node] = self.statements.kept(value)

    def _made(self, node: Node) -> Any:
        target = node.target
        if target in FORMULAS:
            return self._pointwise(node, target, node.args, node.kwargs)
        if target in IN_PLACE:
            changed = self.in_memory(node.args[0])
            self._change(changed, self._pointwise(node, IN_PLACE[target], node.args, node.kwargs))
            return changed
        if target in FOREACH:
            self._foreach(node)
            return None
        translate = self._operations.get(target)
        if translate is None:
            raise Untranslated(f"{target}")
        return translate(self, node)

    # Element by element

    def _pointwise(
        self, node: Node, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Lazy:
        of = node.meta["val"]
        return self._formula(operation, args, kwargs, shape_of(of), of.dtype)

    def _formula(
        self,
        operation: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        shape: Shape,
        dtype: torch.dtype,
    ) -> Lazy:
        formula, settings = FORMULAS[operation], SETTINGS.get(operation, frozenset())
        operands: list[Value] = []
        given: list[Any] = []  # an operand's number, or what is given as it is
        kind = dtype if dtype != torch.bool else FLOAT

        def argument(key: Any, value: Any) -> Any:
            if isinstance(value, Node):
                operands.append(self.value(value))
                return _Operand(len(operands) - 1)
            if value is None or key in settings or key in ("alpha", "value"):
                return value
            if isinstance(value, bool | int | float):
                return literal(value, kind)
            return value

        given = [argument(place, value) for place, value in enumerate(args)]
        named = {NAMED.get(key, key): argument(key, value) for key, value in kwargs.items()}

        def written(*texts: str) -> str:
            def put(value: Any) -> Any:
                return texts[value.number] if isinstance(value, _Operand) else value

            return formula(*map(put, given), **{key: put(value) for key, value in named.items()})

        return pointwise(shape, dtype, operands, written)

    def value(self, node: Any) -> Value:
        value = self._values[node]
        assert isinstance(value, View | Lazy)
        return value

    def in_memory(self, node: Any) -> View:
        assert isinstance(node, Node)
        return self.view(node)

    def _change(self, changed: View, to: Lazy) -> None:
        """Whoever still needs what was there is served first."""
        if any(leaf.view.storage is changed.storage and not leaf.aligned for leaf in to.leaves):
            self.statements.assign(changed, self.statements.kept(to))
            return
        self._save_readers(changed.storage)
        self.statements.assign(changed, to)

    def _save_readers(self, storage: Storage) -> None:
        for node, value in self._values.items():
            if not isinstance(value, Lazy) or not self._read_later(node):
                continue
            if any(leaf.view.storage is storage for leaf in value.leaves):
                self._values[node] = self.statements.kept(value, self._wanted.get(node))

    def _read_later(self, node: Node) -> bool:
        return any(self._place.get(user, -1) > self._now for user in node.users)

    def _foreach(self, node: Node) -> None:
        changed, *others = node.args
        assert isinstance(changed, list | tuple)
        for number, one in enumerate(changed):
            args = [o[number] if isinstance(o, list | tuple) else o for o in others]
            view = self.in_memory(one)
            new = self._formula(
                FOREACH[node.target], [one, *args], node.kwargs, view.shape, view.dtype
            )
            self._change(view, new)

    # Other axes

    def axes(
        self,
        node: Node,
        strides: Callable[[View], tuple[Shape, int]],
        mapped: Callable[[tuple[str, ...]], tuple[str, ...]],
    ) -> Value:
        """The first argument seen with other axes: by strides and offset, or by its index."""
        value, shape = self.value(node.args[0]), shape_of(node.meta["val"])
        if isinstance(value, View):
            new, offset = strides(value)
            return View(value.storage, shape, new, offset, value.part)
        return seen(value, shape, mapped)

    # Over axes

    def reduced(
        self,
        node: Node,
        source: Value,
        axes: Sequence[int],
        reducer: Reducer,
        finish: str = "{0}",
    ) -> View:
        target = self.new(node)
        rank = max(1, len(source.shape))
        chosen = tuple(sorted({axis % rank for axis in axes})) if source.shape else ()
        self.statements.add(Reduction(target, source, chosen, reducer, finish))
        return target


class _Operand:
    def __init__(self, number: int) -> None:
        self.number = number


ALIASES = (
    aten.detach.default, aten.expand.default, aten.view.default, aten.squeeze.dim,
    aten.unsqueeze.default, aten.t.default, aten.transpose.int,
)  # fmt: skip


def _readers(node: Node) -> int:
    return sum(_readers(user) if user.target in ALIASES else 1 for user in node.users)


def _cheap(node: Node) -> bool:
    """Reading what it is made of again costs no more than writing it down.

    A gradient joined of its parts, and one behind gates that no product needs in memory.
    """
    return bool(node.meta.get("joined")) or is_only_gated(node)
