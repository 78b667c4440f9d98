"""What is done in turn: loops over elements, sums over axes, matrix products.

Assignments over the same elements share one loop, and those to the result of a product are made
while its rows are in the cache (`Statements.assign`). A statement moves up to an earlier one only
where nothing between them writes what it reads, or touches what it writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from learner.compiler.values import (
    Index,
    Kind,
    Leaf,
    Scope,
    Shape,
    Storage,
    Value,
    View,
    aligned_index,
    literal,
    whole,
)

WIDEST_TILE = 32  # columns: TILE_LANES of products.h
TABLE_COLUMNS = 64  # of gated_products.h
Reducer = Literal["sum", "least", "greatest", "argmax"]
START = {"sum": 0.0, "least": math.inf, "greatest": -math.inf}
JOINED = {"sum": "{0} + {1}", "least": "least({0}, {1})", "greatest": "greatest({0}, {1})"}


@dataclass(eq=False)
class Assignment:
    target: View
    source: Value


class Statement:
    """What it reads and writes, and its lines."""

    assignments: list[Assignment]

    @property
    def own_leaves(self) -> Iterator[Leaf]:
        yield from ()

    @property
    def own_targets(self) -> Iterator[View]:
        yield from ()

    @property
    def leaves(self) -> Iterator[Leaf]:
        yield from self.own_leaves
        for one in self.assignments:
            yield from one.source.leaves

    @property
    def targets(self) -> Iterator[View]:
        yield from self.own_targets
        for one in self.assignments:
            yield one.target

    @property
    def reads(self) -> set[Storage]:
        return {leaf.view.storage for leaf in self.leaves}

    @property
    def writes(self) -> set[Storage]:
        return {view.storage for view in self.targets}

    @property
    def space(self) -> Shape | None:
        """The elements that assignments to it go over, if it takes any."""
        return None

    def text(self, unstored: set[Storage], bounds: tuple[str, str] | None = None) -> str:
        """`unstored`: temporaries that nobody reads but itself."""
        raise NotImplementedError


def flat(assignments: Sequence[Assignment], shape: Shape) -> bool:
    return all(
        value.goes_flat(shape) and math.prod(one.target.shape) == math.prod(shape)
        for one in assignments
        for value in (one.target, one.source)
    )


@dataclass(eq=False)
class Loop(Statement):
    shape: Shape
    assignments: list[Assignment] = field(default_factory=list)

    @property
    def space(self) -> Shape | None:
        return self.shape

    @property
    def flat(self) -> bool:
        return flat(self.assignments, self.shape)

    def text(self, unstored: set[Storage], bounds: tuple[str, str] | None = None) -> str:
        scope = Scope()
        if self.flat:
            _write(self.assignments, None, scope, unstored)
            begin, end = bounds or ("0", str(math.prod(self.shape)))
            return loop("i", begin, end, scope.lines)
        index = index_of(self.shape)
        _write(self.assignments, index, scope, unstored)
        return nest(index, self.shape, scope.lines)


@dataclass(eq=False)
class Product(Statement):
    """target[..., M, N] = left[..., M, K] right[..., K, N]."""

    left: View
    right: View
    target: View
    packed: View  # room to turn the right one
    written_over: bool = False  # by the first assignment to as many elements
    assignments: list[Assignment] = field(default_factory=list)

    @property
    def own_leaves(self) -> Iterator[Leaf]:
        yield Leaf(self.left, False)
        yield Leaf(self.right, False)

    @property
    def own_targets(self) -> Iterator[View]:
        yield self.target
        yield self.packed

    @property
    def space(self) -> Shape | None:
        return self.target.shape

    def text(self, unstored: set[Storage], bounds: tuple[str, str] | None = None) -> str:
        *batch, _, columns = self.target.shape
        member = tuple(f"d{axis}" for axis in range(len(batch)))
        index = (*member, "row", "column")
        scope = Scope()
        if self.written_over:
            self.target.written(index, scope)
        _write(self.assignments, index, scope, unstored)
        then = ""
        if scope.lines:
            inner = loop("column", "0", str(columns), scope.lines)
            then = loop("row", "from", "to", [inner], vector=False)
        call = f"{self._called(member)}, [&](long from, long to) {{\n{then}\n}});"
        return nest(member, tuple(batch), [call], vector=False)

    def _called(self, member: tuple[str, ...]) -> str:
        """The call, but for what is done to rows that are done."""
        sizes = (
            *self.target.shape[-2:], self.left.shape[-1],
            *self.left.strides[-2:], *self.right.strides[-2:],
        )  # fmt: skip
        return _call("product", sizes, member, (self.left, self.right, self.target, self.packed))


@dataclass(eq=False)
class GatedProduct(Product):
    """A product whose left factor is rows[..., M, 1] depths[..., 1, K] where a gate is open.

    `turned`: the target is [..., N, M].
    """

    rows: View = field(kw_only=True)
    depths: View = field(kw_only=True)
    turned: bool = field(kw_only=True)

    @property
    def own_leaves(self) -> Iterator[Leaf]:
        yield from super().own_leaves  # the left one is the gate
        yield Leaf(self.rows, False)
        yield Leaf(self.depths, False)

    def _called(self, member: tuple[str, ...]) -> str:
        sizes = (
            self.left.shape[-2], self.right.shape[-1], self.left.shape[-1],
            *self.left.strides[-2:], self.rows.strides[-2], self.depths.strides[-1],
            *self.right.strides[-2:], "true" if self.turned else "false",
        )  # fmt: skip
        views = (self.left, self.rows, self.depths, self.right, self.target, self.packed)
        return _call("gated_product", sizes, member, views)


def _call(
    name: str, sizes: Sequence[int | str], member: tuple[str, ...], views: Sequence[View]
) -> str:
    """Of a function of products.h or gated_products.h: one argument is to follow.

    The last view is room to work in, the same for every member.
    """
    pointers = [f"{one.pointer} + {one.address((*member, '0', '0'))}" for one in views[:-1]]
    given = ", ".join([*pointers, views[-1].pointer])
    return f"{name}<{', '.join(map(str, sizes))}>({given}"


@dataclass(eq=False)
class Reduction(Statement):
    """Over some axes of the source; the target has the others, in order."""

    target: View
    source: Value
    axes: tuple[int, ...]
    reducer: Reducer
    finish: str = "{0}"  # of what was joined
    share: bool = False  # one thread's, at its place among all
    assignments: list[Assignment] = field(default_factory=list)

    @property
    def own_leaves(self) -> Iterator[Leaf]:
        for leaf in self.source.leaves:
            yield Leaf(leaf.view, False)

    @property
    def own_targets(self) -> Iterator[View]:
        yield self.target

    @property
    def flat(self) -> bool:
        return (self.share or math.prod(self.target.shape) == 1) and self.source.goes_flat(
            self.source.shape
        )

    def text(self, unstored: set[Storage], bounds: tuple[str, str] | None = None) -> str:
        if self.flat:
            return self._all(bounds)
        index = index_of(self.source.shape)
        kept = [axis for axis in range(len(index)) if axis not in self.axes]
        result = self.target.address(_squeezed(self.target.shape, index, kept))
        place = f"{self.target.pointer}[{result}]"
        if self.reducer == "argmax":
            return self._argmax(index, kept, place)
        scope = Scope()
        written = self.source.written(index, scope)
        many = [axis for axis in self.axes if self.source.shape[axis] > 1]
        if kept and many and max(kept) > max(many) and self.source.shape[max(kept)] > 1:
            return self._by_rows(index, kept, place, scope, written)
        join = JOINED[self.reducer].format("sum", written)
        inner = self._nested(index, self.axes, [*scope.lines, f"sum = {join};"])
        type_ = self.target.storage.type
        start = literal(START[self.reducer], self.source.dtype)
        lines = [f"{type_} sum = {start};", inner, f"{place} = {self.finish.format('sum')};"]
        return self._nested(index, kept, ["{", *lines, "}"], vector=False)

    def _all(self, bounds: tuple[str, str] | None) -> str:
        scope = Scope()
        written = self.source.written(None, scope)
        join = JOINED[self.reducer].format("sum", written)
        begin, end = bounds or ("0", str(math.prod(self.source.shape)))
        inner = loop("i", begin, end, [*scope.lines, f"sum = {join};"], independent=False)
        start = literal(START[self.reducer], self.source.dtype)
        place = f"{self.target.pointer}[{'me' if self.share else self.target.offset}]"
        return f"{{\nfloat sum = {start};\n{inner}\n{place} = {self.finish.format('sum')};\n}}"

    def _by_rows(
        self, index: tuple[str, ...], kept: Sequence[int], place: str, scope: Scope, written: str
    ) -> str:
        """The innermost axis stays: whole rows are joined."""
        start = literal(START[self.reducer], self.source.dtype)
        join = JOINED[self.reducer].format(place, written)
        begin = self._nested(index, kept, [f"{place} = {start};"])
        outer = [axis for axis in kept if axis != max(kept)]
        body = self._nested(index, [max(kept)], [*scope.lines, f"{place} = {join};"])
        middle = self._nested(index, [*outer, *self.axes], [body], vector=False)
        if self.finish == "{0}":
            return f"{begin}\n{middle}"
        end = self._nested(index, kept, [f"{place} = {self.finish.format(place)};"])
        return f"{begin}\n{middle}\n{end}"

    def _argmax(self, index: tuple[str, ...], kept: Sequence[int], place: str) -> str:
        (axis,) = self.axes
        scope = Scope()
        written = self.source.written(index, scope)
        look = [*scope.lines, f"const float x = {written};"]
        look.append(f"if (x > most || x != x) {{ most = x; best = {index[axis]}; }}")
        inner = self._nested(index, [axis], look, vector=False)
        lines = ["{", "float most = -INFINITY; long best = 0;", inner, f"{place} = best;", "}"]
        return self._nested(index, kept, lines, vector=False)

    def _nested(
        self, index: tuple[str, ...], axes: Sequence[int], lines: Sequence[str], vector: bool = True
    ) -> str:
        names = [index[axis] for axis in axes]
        shape = tuple(self.source.shape[axis] for axis in axes)
        named = [(name, size) for name, size in zip(names, shape, strict=True) if size > 1]
        return nest(
            tuple(name for name, _ in named), tuple(size for _, size in named), lines, vector
        )


@dataclass(eq=False)
class Scatter(Statement):
    """target[..., where, ...] += source along an axis; the target is in order."""

    target: View
    axis: int
    where: Value
    source: Value
    assignments: list[Assignment] = field(default_factory=list)

    @property
    def own_leaves(self) -> Iterator[Leaf]:
        for leaf in (*self.where.leaves, *self.source.leaves):
            yield Leaf(leaf.view, False)
        yield Leaf(self.target, False)

    @property
    def own_targets(self) -> Iterator[View]:
        yield self.target

    def text(self, unstored: set[Storage], bounds: tuple[str, str] | None = None) -> str:
        shape = self.where.shape
        index, scope = index_of(shape), Scope()
        where = scope.keep(self.where.written(index, scope), "int64_t")
        source = self.source.written(aligned_index(index, shape, self.source.shape), scope)
        to = tuple(where if axis == self.axis else name for axis, name in enumerate(index))
        # A size of one is no excuse to leave the place out.
        address = " + ".join(
            f"{name} * {stride}" for name, stride in zip(to, self.target.strides, strict=True)
        )
        line = f"{self.target.pointer}[{self.target.offset} + {address}] += {source};"
        return nest(index, shape, [*scope.lines, line], vector=False)


class Statements:
    """In turn; new assignments join earlier loops where they can."""

    def __init__(self, names: Iterator[str], kind: Kind = "temporary") -> None:
        self._names = names
        self._kind = kind  # of storage for new values
        self.all: list[Statement] = []

    def new(self, shape: Shape, dtype: torch.dtype, kind: Kind | None = None) -> View:
        storage = Storage(next(self._names), max(1, math.prod(shape)), dtype, kind or self._kind)
        return whole(storage, shape)

    def add(self, statement: Statement) -> None:
        self.all.append(statement)

    def assign(self, target: View, source: Value) -> None:
        new = Loop(target.shape, [Assignment(target, source)])
        for earlier in reversed(self.all):
            if earlier.space == new.shape and _may_join(earlier, new):
                earlier.assignments += new.assignments
                return
            if _conflict(earlier, new):
                break
        self.all.append(new)

    def kept(self, value: Value, kind: Kind | None = None) -> View:
        """In memory, in order, as new."""
        view = self.new(value.shape, value.dtype, kind)
        self.assign(view, value)
        return view


def _conflict(earlier: Statement, later: Statement) -> bool:
    return bool(earlier.writes & (later.reads | later.writes) or earlier.reads & later.writes)


def _may_join(earlier: Statement, later: Loop) -> bool:
    """Where both touch the same memory, they do so at the same element."""
    if isinstance(earlier, Loop) and earlier.flat != later.flat and _large(later.shape):
        return False  # a loop in order is faster than one by axes
    places = {view.storage: view for view in (*earlier.targets, *later.targets)}
    touched = [
        *((leaf.view, leaf.aligned) for leaf in (*earlier.leaves, *later.leaves)),
        *((view, True) for view in (*earlier.targets, *later.targets)),
    ]
    own = {view.storage for view in earlier.own_targets}
    for view, aligned in touched:
        place = places.get(view.storage)
        if place is None:
            continue
        shared = view.storage in own or (
            view.storage in earlier.writes | earlier.reads
            and view.storage in later.writes | later.reads
        )
        if shared and view.storage in earlier.writes | later.writes:
            same = (view.shape, view.strides, view.offset) == (
                place.shape, place.strides, place.offset,
            )  # fmt: skip
            if not (aligned and same):
                return False
    # What a product reads must stay until it is done.
    return not ({leaf.view.storage for leaf in earlier.own_leaves} & later.writes)


def _large(shape: Shape) -> bool:
    return math.prod(shape) >= 1024


def _write(
    assignments: Sequence[Assignment], index: Index, scope: Scope, unstored: set[Storage]
) -> None:
    for one in assignments:
        written = one.source.written(index, scope)
        stored = one.target.storage not in unstored
        scope.assign(one.target, one.target.address(index), written, stored=stored)


def index_of(shape: Shape) -> tuple[str, ...]:
    return tuple("0" if size == 1 else f"d{axis}" for axis, size in enumerate(shape))


def _squeezed(shape: Shape, index: tuple[str, ...], kept: Sequence[int]) -> tuple[str, ...]:
    """The places of kept axes for a target that may still have the others, as ones."""
    if len(shape) == len(kept):
        return tuple(index[axis] for axis in kept)
    return tuple(index[axis] if axis in kept else "0" for axis in range(len(index)))


def loop(
    name: str,
    begin: str,
    end: str,
    lines: Sequence[str],
    *,
    vector: bool = True,
    independent: bool = True,
) -> str:
    pragma = "#pragma GCC ivdep\n" if vector and independent else ""
    body = "\n".join(lines)
    return f"{pragma}for (long {name} = {begin}; {name} < {end}; ++{name}) {{\n{body}\n}}"


def nest(
    index: Sequence[str], shape: Sequence[int], lines: Sequence[str], vector: bool = True
) -> str:
    """Loops inside each other; an axis of one element has none."""
    text = "\n".join(lines)
    inner = vector
    for name, size in reversed([*zip(index, shape, strict=True)]):
        if name != "0":
            text = loop(name, "0", str(size), [text], vector=inner)
            inner = False
    return text


def spread(sizes: Sequence[tuple[int, int, int]], alignment: int = 64) -> tuple[list[int], int]:
    """Places for (bytes, first, last use): memory is given again once it is read last.

    Returns them in bytes, and how many there are in all.
    """
    places: list[int] = []
    taken: list[tuple[int, int, int, int]] = []  # begin, end, first, last
    for size, first, last in sizes:
        rounded = -(-size // alignment) * alignment
        busy = sorted(
            (begin, end) for begin, end, *use in taken if use[0] <= last and use[1] >= first
        )
        place = 0
        for begin, end in busy:
            if begin - place >= rounded:
                break
            place = max(place, end)
        places.append(place)
        taken.append((place, place + rounded, first, last))
    return places, max((end for _, end, *_ in taken), default=0)


def room_for_gates(rows: int, depth: int) -> int:
    """Elements that `gated_product` needs beside its result: gated_products.h, on any processor."""
    return -(-rows * (depth + 3) // 16) + WIDEST_TILE + (rows + depth) * TABLE_COLUMNS


def room_for_tiles(columns: int, depth: int) -> int:
    """Elements of a right factor whose columns are rounded up to whole tiles, of any processor."""
    return depth * (-(-columns // WIDEST_TILE) * WIDEST_TILE)
