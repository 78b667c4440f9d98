"""Operations that only see a value with other axes: nothing is computed, hardly ever copied."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from learner.compiler.translation import Operations, Translation
from learner.compiler.values import Shape, Value, View, contiguous, seen, shape_of

aten = torch.ops.aten


def arguments(node: Node, *defaults: Any) -> tuple[Any, ...]:
    """All of them, the last by these defaults where they were left out."""
    given: tuple[Any, ...] = tuple(node.args)
    return given + defaults[len(given) - 1 :]


def _same(translation: Translation, node: Node) -> Value:
    return translation.value(node.args[0])


def _expand(translation: Translation, node: Node) -> Value:
    source, shape = translation.value(node.args[0]), shape_of(node.meta["val"])
    if source.shape == shape:
        return source
    lead = len(shape) - len(source.shape)

    def strides(view: View) -> tuple[Shape, int]:
        own = (
            0 if size == 1 else stride
            for size, stride in zip(view.shape, view.strides, strict=True)
        )
        return (*(0,) * lead, *own), view.offset

    def mapped(index: tuple[str, ...]) -> tuple[str, ...]:
        own = zip(index[lead:], source.shape, strict=True)
        return tuple("0" if size == 1 else where for where, size in own)

    return translation.axes(node, strides, mapped)


def _view(translation: Translation, node: Node) -> Value:
    source, shape = translation.value(node.args[0]), shape_of(node.meta["val"])
    if source.shape == shape:
        return source
    if [size for size in source.shape if size != 1] == [size for size in shape if size != 1]:
        return _without_ones(translation, node, source, shape)
    memory = translation.in_memory(node.args[0])
    if not memory.in_order:
        memory = translation.statements.kept(memory)
    return View(memory.storage, shape, contiguous(shape), memory.offset, memory.part)


def _without_ones(translation: Translation, node: Node, source: Value, shape: Shape) -> Value:
    """The same axes but for those of one element."""
    own = [axis for axis, size in enumerate(source.shape) if size != 1]
    new = [axis for axis, size in enumerate(shape) if size != 1]
    own_of = dict(zip(new, own, strict=True))
    new_of = dict(zip(own, new, strict=True))

    def strides(view: View) -> tuple[Shape, int]:
        found = (view.strides[own_of[a]] if a in own_of else 0 for a in range(len(shape)))
        return tuple(found), view.offset

    def mapped(index: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(index[new_of[a]] if a in new_of else "0" for a in range(len(source.shape)))

    return translation.axes(node, strides, mapped)


def _in_order(translation: Translation, node: Node, order: Sequence[int]) -> Value:
    back = [order.index(axis) for axis in range(len(order))]
    return translation.axes(
        node,
        lambda view: (tuple(view.strides[axis] for axis in order), view.offset),
        lambda index: tuple(index[place] for place in back),
    )


def _t(translation: Translation, node: Node) -> Value:
    rank = len(translation.value(node.args[0]).shape)
    return _in_order(translation, node, list(reversed(range(rank))))


def _transpose(translation: Translation, node: Node) -> Value:
    source, one, other = arguments(node)
    order = list(range(len(translation.value(source).shape)))
    order[one], order[other] = order[other], order[one]
    return _in_order(translation, node, order)


def _permute(translation: Translation, node: Node) -> Value:
    _, axes = arguments(node)
    return _in_order(translation, node, [axis % len(axes) for axis in axes])


def _select(translation: Translation, node: Node) -> Value:
    source, axis, at = arguments(node)
    shape = translation.value(source).shape
    axis %= len(shape)
    at %= shape[axis]
    return translation.axes(
        node,
        lambda view: (
            view.strides[:axis] + view.strides[axis + 1 :],
            view.offset + at * view.strides[axis],
        ),
        lambda index: (*index[:axis], str(at), *index[axis:]),
    )


def _slice(translation: Translation, node: Node) -> Value:
    source, axis, begin, _, step = arguments(node, 0, None, None, 1)
    shape = translation.value(source).shape
    axis %= len(shape)
    begin = begin or 0
    begin = max(0, begin + shape[axis]) if begin < 0 else min(begin, shape[axis])

    def strides(view: View) -> tuple[Shape, int]:
        own = list(view.strides)
        own[axis] *= step
        return tuple(own), view.offset + begin * view.strides[axis]

    def mapped(index: tuple[str, ...]) -> tuple[str, ...]:
        own = list(index)
        own[axis] = f"({own[axis]} * {step} + {begin})"
        return tuple(own)

    return translation.axes(node, strides, mapped)


def _split(translation: Translation, node: Node) -> Node:
    return node  # its parts are made where one of them is taken


def _getitem(translation: Translation, node: Node) -> Value:
    parts, number = arguments(node)
    source, _, axis = arguments(parts, None, parts.kwargs.get("dim", 0))
    value, shape = translation.value(source), shape_of(node.meta["val"])
    axis %= len(value.shape)
    begin = sum(one.shape[axis] for one in parts.meta["val"][:number])
    if isinstance(value, View):
        offset = value.offset + begin * value.strides[axis]
        return View(value.storage, shape, value.strides, offset, value.part)

    def mapped(index: tuple[str, ...]) -> tuple[str, ...]:
        return (*index[:axis], f"({index[axis]} + {begin})", *index[axis + 1 :])

    return seen(value, shape, mapped)


OTHER_AXES: Operations = {
    aten.detach.default: _same,
    aten.expand.default: _expand,
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.reshape.default: _view,
    aten.squeeze.dim: _view,
    aten.squeeze.dims: _view,
    aten.unsqueeze.default: _view,
    aten.t.default: _t,
    aten.transpose.int: _transpose,
    aten.permute.default: _permute,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    operator.getitem: _getitem,
}
