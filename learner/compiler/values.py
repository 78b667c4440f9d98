"""What a value of a recorded step is in C++: elements in memory, or an expression for each of them.

A `View` says where elements lie. A `Lazy` value is in no memory: it is written out where it is
needed, for the index that is asked for. Inside a loop a `Scope` reads an element once and keeps it
under a name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from repertory.errors import RepertoryError

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bool: "bool",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.uint8: "uint8_t",
}
# temporary: of one thread, until it is read last; kept: of one thread, to the end of the step;
# shared: of all threads; given: a tensor that the step is called with.
Kind = Literal["temporary", "kept", "shared", "given"]
Shape = tuple[int, ...]
Index = tuple[str, ...] | None  # None: by the place `i` among all elements, which lie in order


class Untranslated(RepertoryError):
    """An operation or a type that has no translation to C++ yet."""


@dataclass(eq=False)
class Storage:
    """Memory of so many elements; where it lies is said once all statements are known."""

    name: str
    size: int
    dtype: torch.dtype
    kind: Kind

    @property
    def type(self) -> str:
        if self.dtype not in TYPES:
            raise Untranslated(f"a tensor of {self.dtype}")
        return TYPES[self.dtype]

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class View:
    """Elements of a storage: of this thread's, or of what part `part` has as its own."""

    storage: Storage
    shape: Shape
    strides: Shape
    offset: int = 0
    part: int | None = None

    @property
    def pointer(self) -> str:
        return self.storage.name + ("" if self.part is None else f"_{self.part}")

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.dtype

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return (Leaf(self, True),)

    @property
    def in_order(self) -> bool:
        """Its elements lie as those of a new tensor do."""
        return all(
            size == 1 or stride == expected
            for size, stride, expected in zip(
                self.shape, self.strides, contiguous(self.shape), strict=True
            )
        )

    def goes_flat(self, shape: Shape) -> bool:
        return math.prod(self.shape) == 1 or (self.shape == shape and self.in_order)

    def address(self, index: Index) -> str:
        if index is None:
            if math.prod(self.shape) == 1:
                return str(self.offset)
            return f"{self.offset} + i" if self.offset else "i"
        terms = [
            where if stride == 1 else f"{where} * {stride}"
            for where, stride, size in zip(index, self.strides, self.shape, strict=True)
            if size != 1 and stride and where != "0"
        ]
        if self.offset or not terms:
            terms.insert(0, str(self.offset))
        return " + ".join(terms)

    def written(self, index: Index, scope: Scope) -> str:
        return scope.read(self, self.address(index))


@dataclass(frozen=True)
class Leaf:
    """A view that an expression reads; `aligned`: at the very index it is asked for."""

    view: View
    aligned: bool


@dataclass(frozen=True)
class Lazy:
    shape: Shape
    dtype: torch.dtype
    write: Callable[[Index, Scope], str]
    leaves: tuple[Leaf, ...] = ()
    flat: bool = True

    def goes_flat(self, shape: Shape) -> bool:
        return math.prod(self.shape) == 1 or (self.shape == shape and self.flat)

    def written(self, index: Index, scope: Scope) -> str:
        if index is None and math.prod(self.shape) == 1:
            index = ("0",) * len(self.shape)
        return self.write(index, scope)


Value = View | Lazy


@dataclass
class Scope:
    """The inside of a loop: its lines, and the elements that have a name by now."""

    lines: list[str] = field(default_factory=list)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def read(self, view: View, address: str) -> str:
        place = (view.pointer, address)
        if place not in self.names:
            self.names[place] = self.keep(f"{view.pointer}[{address}]", view.storage.type)
        return self.names[place]

    def keep(self, expression: str, type_: str) -> str:
        name = f"x{next(self.numbers)}"
        self.lines.append(f"const {type_} {name} = {expression};")
        return name

    def assign(self, view: View, address: str, expression: str, *, stored: bool) -> None:
        name = self.keep(expression, view.storage.type)
        self.names[view.pointer, address] = name
        if stored:
            self.lines.append(f"{view.pointer}[{address}] = {name};")


def contiguous(shape: Sequence[int]) -> Shape:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def whole(storage: Storage, shape: Shape) -> View:
    """All of a storage, in order."""
    return View(storage, shape, contiguous(shape))


def shape_of(tensor: Tensor) -> Shape:
    return tuple(int(size) for size in tensor.shape)


def constant(value: float | bool, shape: Shape, dtype: torch.dtype) -> Lazy:
    return Lazy(shape, dtype, lambda index, scope: literal(value, dtype))


def literal(value: float | bool, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return str(int(value))
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{float(value)!r}f"


def aligned_index(index: Index, shape: Shape, operand: Shape) -> Index:
    """Of an operand that is broadcast to `shape`."""
    if index is None:
        return None
    last = index[len(shape) - len(operand) :]
    return tuple("0" if size == 1 else where for where, size in zip(last, operand, strict=True))


def pointwise(
    shape: Shape, dtype: torch.dtype, operands: Sequence[Value], formula: Callable[..., str]
) -> Lazy:
    """`formula` of the written operands, each broadcast to the shape."""

    def write(index: Index, scope: Scope) -> str:
        return formula(
            *(one.written(aligned_index(index, shape, one.shape), scope) for one in operands)
        )

    leaves = tuple(
        leaf if one.shape == shape else Leaf(leaf.view, False)
        for one in operands
        for leaf in one.leaves
    )
    return Lazy(shape, dtype, write, leaves, all(one.goes_flat(shape) for one in operands))


def seen(value: Value, shape: Shape, mapped: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Lazy:
    """A lazy value with other axes: `mapped` gives its own index for one of the new shape."""

    def write(index: Index, scope: Scope) -> str:
        assert index is not None
        return value.written(mapped(index), scope)

    leaves = tuple(Leaf(leaf.view, False) for leaf in value.leaves)
    return Lazy(shape, value.dtype, write, leaves, flat=False)
