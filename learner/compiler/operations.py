"""Operations that are not done element by element: products, sums over axes, picking, joining.

To translate another one: a formula (`learner.compiler.formulas`) if it is element-wise, a function
here if it is not, or its name among `TAKEN_APART` if torch can write it as others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from learner.compiler.axes import OTHER_AXES, arguments
from learner.compiler.gates import Gated, gated_factor, is_outer
from learner.compiler.statements import (
    GatedProduct,
    Product,
    Reduction,
    Scatter,
    room_for_gates,
    room_for_tiles,
)
from learner.compiler.translation import Operations, Translation
from learner.compiler.values import (
    TYPES,
    Index,
    Lazy,
    Leaf,
    Scope,
    Untranslated,
    Value,
    View,
    constant,
    literal,
    pointwise,
    shape_of,
    whole,
)

aten = torch.ops.aten
FLOAT = torch.float32

# Joining


def _cat(translation: Translation, node: Node) -> View:
    values, axis = arguments(node, 0)
    target, at = translation.new(node), 0
    axis %= len(target.shape)
    for value in map(translation.value, values):
        offset = at * target.strides[axis]
        translation.statements.assign(replace(target, shape=value.shape, offset=offset), value)
        at += value.shape[axis]
    return target


def _stack(translation: Translation, node: Node) -> View:
    values, axis = arguments(node, 0)
    target = translation.new(node)
    axis %= len(target.shape)
    strides = target.strides[:axis] + target.strides[axis + 1 :]
    for at, value in enumerate(map(translation.value, values)):
        part = View(target.storage, value.shape, strides, at * target.strides[axis])
        translation.statements.assign(part, value)
    return target


# Constants


def _filled(value: float) -> Callable[[Translation, Node], Value]:
    def filled(translation: Translation, node: Node) -> Value:
        of = node.meta["val"]
        return constant(value, shape_of(of), of.dtype)

    return filled


def _full(translation: Translation, node: Node) -> Value:
    of = node.meta["val"]
    return constant(arguments(node)[1], shape_of(of), of.dtype)


def _scalar(translation: Translation, node: Node) -> Value:
    of = node.meta["val"]
    return constant(arguments(node)[0], shape_of(of), of.dtype)


def _arange(translation: Translation, node: Node) -> Value:
    of = node.meta["val"]
    begin, step = 0, 1
    if node.target is not aten.arange.default:
        begin, _, step = arguments(node, None, 1)
    return Lazy(
        shape_of(of),
        of.dtype,
        lambda index, scope: f"({begin} + {'i' if index is None else index[0]} * {step})",
    )


def _cast(translation: Translation, node: Node) -> Value:
    of = node.meta["val"]
    if of.dtype not in TYPES:
        raise Untranslated(f"a tensor of {of.dtype}")
    type_ = TYPES[of.dtype]
    source = translation.value(node.args[0])
    return pointwise(shape_of(of), of.dtype, [source], lambda x: f"{type_}({x})")


# Products


def _product(translation: Translation, node: Node) -> Value:
    of, statements = node.meta["val"], translation.statements
    if of.dtype != FLOAT:
        raise Untranslated(f"a product of {of.dtype}")
    if is_outer(node):
        factors = [*map(translation.in_memory, arguments(node))]
        return pointwise(shape_of(of), FLOAT, factors, lambda x, y: f"({x} * {y})")
    gated = gated_factor(node)
    if gated and isinstance(translation.value(gated.node), Lazy):  # what it is made of is there
        return _gated_product(translation, node, gated)
    left, right = map(translation.in_memory, arguments(node))
    shape = shape_of(of)
    if len(right.shape) == 1:  # a vector is a matrix of one column
        right = replace(right, shape=(*right.shape, 1), strides=(*right.strides, 1))
        shape = (*shape, 1)
    target = statements.new(shape, FLOAT, translation.kind_of(node))
    packed = statements.new((room_for_tiles(shape[-1], left.shape[-1]),), FLOAT, "temporary")
    statements.add(Product(_suited(left), _suited(right), target, packed))
    return whole(target.storage, shape_of(of))


def _gated_product(translation: Translation, node: Node, gated: Gated) -> View:
    gate, rows, depths, other = map(
        translation.in_memory, (gated.gate, gated.rows, gated.columns, gated.other)
    )
    if gated.is_turned:
        gate, rows, depths = _turned(gate), _turned(depths), _turned(rows)
    if gated.is_right:
        gate, rows, depths, other = _turned(gate), _turned(depths), _turned(rows), _turned(other)
    statements = translation.statements
    target = translation.new(node)
    room = statements.new((room_for_gates(*gate.shape[-2:]),), FLOAT, "temporary")
    statements.add(
        GatedProduct(gate, other, target, room, rows=rows, depths=depths, turned=gated.is_right)
    )
    return target


def _turned(view: View) -> View:
    *batch, rows, columns = view.shape
    *steps, down, along = view.strides
    return replace(view, shape=(*batch, columns, rows), strides=(*steps, along, down))


def _suited(view: View) -> View:
    """An axis of one element may have any stride: the one that suits loops."""
    *_, rows, columns = view.shape
    *batch, down, along = view.strides
    if columns == 1:
        along = 1
    if rows == 1:
        down = columns if along == 1 else 1
    return replace(view, strides=(*batch, down, along))


# Over axes


def _axes(node: Node, source: Value) -> list[int]:
    given = node.args[1] if len(node.args) > 1 else None
    if given is None or given == []:
        return list(range(len(source.shape)))
    axes: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    return [int(axis) % max(1, len(source.shape)) for axis in axes]


def _sum(translation: Translation, node: Node) -> View:
    source = translation.value(node.args[0])
    return translation.reduced(node, source, _axes(node, source), "sum")


def _mean(translation: Translation, node: Node) -> View:
    source = translation.value(node.args[0])
    axes = _axes(node, source)
    return translation.reduced(node, source, axes, "sum", _over(_count(source, axes)))


def _count(source: Value, axes: Sequence[int]) -> int:
    return math.prod(source.shape[axis] for axis in axes) if source.shape else 1


def _over(count: float) -> str:
    return f"({{0}} / {literal(count, FLOAT)})"


def _least(translation: Translation, node: Node) -> View:
    source = translation.value(node.args[0])
    return translation.reduced(node, source, _axes(node, source), "least")


def _greatest(translation: Translation, node: Node) -> View:
    source = translation.value(node.args[0])
    return translation.reduced(node, source, _axes(node, source), "greatest")


def _argmax(translation: Translation, node: Node) -> View:
    value, axis = arguments(node, None)[:2]
    if axis is None:
        raise Untranslated("argmax over all elements")
    return translation.reduced(node, translation.value(value), (axis,), "argmax")


def _norm(translation: Translation, node: Node) -> View:
    value, order = arguments(node, 2)[:2]
    if order != 2:
        raise Untranslated(f"the norm of order {order}")
    source = translation.value(value)
    square = pointwise(source.shape, source.dtype, [source], lambda x: f"square({x})")
    return translation.reduced(node, square, range(len(source.shape)), "sum", "std::sqrt({0})")


def _deviation(translation: Translation, node: Node) -> View:
    """In two passes, as torch does it."""
    source = translation.value(node.args[0])
    axes, correction = _axes(node, source), node.kwargs.get("correction", 1)
    assert isinstance(correction, int | float)
    count, statements = _count(source, axes), translation.statements
    ones = tuple(1 if axis in axes else size for axis, size in enumerate(source.shape))
    mean = statements.new(ones, FLOAT)
    statements.add(Reduction(mean, source, tuple(axes), "sum", _over(count)))
    square = pointwise(source.shape, FLOAT, [source, mean], lambda x, of: f"square({x} - {of})")
    finish = f"std::sqrt({_over(count - correction)})"
    return translation.reduced(node, square, axes, "sum", finish)


# Picking


def _picked(
    node: Node,
    source: View,
    places: Value,
    place_of: Callable[[tuple[str, ...]], tuple[str, ...]],
    index_of: Callable[[str, tuple[str, ...]], tuple[str, ...]],
) -> Lazy:
    """Elements of `source` at places that are values themselves.

    For an index of the result, `place_of` is that of the place, and `index_of` that of the source.
    """

    def write(index: Index, scope: Scope) -> str:
        assert index is not None
        place = scope.keep(places.written(place_of(index), scope), "int64_t")
        steps = zip(index_of(place, index), source.strides, strict=True)
        address = [str(source.offset), *(f"{name} * {stride}" for name, stride in steps)]
        return f"{source.pointer}[{' + '.join(address)}]"

    of = node.meta["val"]
    leaves = (Leaf(source, False), *(Leaf(leaf.view, False) for leaf in places.leaves))
    return Lazy(shape_of(of), of.dtype, write, leaves, flat=False)


def _gather(translation: Translation, node: Node) -> Lazy:
    value, axis, where = arguments(node)[:3]
    source = translation.in_memory(value)
    axis %= len(source.shape)
    return _picked(
        node,
        source,
        translation.value(where),
        lambda index: index,
        lambda place, index: (*index[:axis], place, *index[axis + 1 :]),
    )


def _index(translation: Translation, node: Node) -> Lazy:
    value, (where, *others) = arguments(node)
    if others or where is None:
        raise Untranslated("an index of several axes")
    places = translation.value(where)
    if places.dtype == torch.bool:
        raise Untranslated("an index by a mask")
    lead = len(places.shape)
    return _picked(
        node,
        translation.in_memory(value),
        places,
        lambda index: index[:lead],
        lambda place, index: (place, *index[lead:]),
    )


def _scatter_add(translation: Translation, node: Node) -> View:
    before, axis, *rest = arguments(node)
    target = translation.new(node)
    translation.statements.assign(target, translation.value(before))
    where, source = map(translation.value, rest)
    translation.statements.add(Scatter(target, axis % len(target.shape), where, source))
    return target


OPERATIONS: Operations = {
    **OTHER_AXES,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.ones_like.default: _filled(1.0),
    aten.ones.default: _filled(1.0),
    aten.zeros_like.default: _filled(0.0),
    aten.zeros.default: _filled(0.0),
    aten.new_zeros.default: _filled(0.0),
    aten.full.default: _full,
    aten.full_like.default: _full,
    aten.scalar_tensor.default: _scalar,
    aten.arange.default: _arange,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
    aten._to_copy.default: _cast,
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.mv.default: _product,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.amin.default: _least,
    aten.amax.default: _greatest,
    aten.argmax.default: _argmax,
    aten.linalg_vector_norm.default: _norm,
    aten.std.correction: _deviation,
    aten.gather.default: _gather,
    aten.index.Tensor: _index,
    aten.scatter_add.default: _scatter_add,
}

# Recorded as others.
TAKEN_APART = (
    aten.smooth_l1_loss.default, aten.smooth_l1_loss_backward.default,
    aten.huber_loss.default, aten.huber_loss_backward.default,
    aten.mse_loss.default, aten.mse_loss_backward.default,
    aten.binary_cross_entropy_with_logits.default, aten.logsumexp.default,
    aten._log_softmax.default, aten._log_softmax_backward_data.default,
    aten._softmax.default, aten._softmax_backward_data.default,
    aten.index_select.default, aten.select_backward.default, aten.slice_backward.default,
)  # fmt: skip
