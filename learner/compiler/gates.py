"""Finds products with the gradient of a single output through a ReLU (gated_products.h).

At the last hidden layer of a network that ends in one number, as Q(s, a) does, the gradient is an
outer product where the ReLU was open and zero where it was not. Two products follow, for the
weights of the layer and for what is below it: four of the nine large ones of a critic's step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.bmm.default)
LEAST_ROWS = 32  # below, writing sums down costs what it saves
WHOLE = 16  # lanes of the widest vectors: no other sizes are taken


@dataclass(frozen=True)
class Gated:
    """A factor of a product: rows[..., M, 1] columns[..., 1, N] where gate[..., M, N] is open."""

    node: Node  # the factor
    gate: Node
    rows: Node
    columns: Node
    is_turned: bool  # the factor is its transpose
    is_right: bool
    other: Node  # factor


def is_outer(product: Node) -> bool:
    """A product of a column and a row."""
    return product.target in PRODUCTS and _given(product)[0].meta["val"].shape[-1] == 1


def gated_factor(product: Node) -> Gated | None:
    """Of a product that is worth it."""
    if product.target not in PRODUCTS:
        return None
    left, right = _given(product)
    for factor, other, is_right in ((left, right, False), (right, left, True)):
        of = _given(factor)[0] if _is_turn(factor) else factor
        if _is_gated(of) and _is_worth_it(factor, other, is_right):
            outer, gate = _given(of)
            rows, columns = _given(outer)
            return Gated(factor, gate, rows, columns, of is not factor, is_right, other)
    return None


def is_only_gated(node: Node) -> bool:
    """A gradient behind gates, or its transpose, that no product needs in memory."""
    return _is_gated(_given(node)[0] if _is_turn(node) else node) and all(
        is_only_gated(user) if _is_turn(user) else gated_factor(user) is not None
        for user in node.users
        if user.target in PRODUCTS or _is_turn(user)
    )


def _is_gated(node: Node) -> bool:
    if node.target is not aten.threshold_backward.default:
        return False
    threshold = node.args[2]
    return isinstance(threshold, int | float) and threshold == 0 and is_outer(_given(node)[0])


def _is_worth_it(factor: Node, other: Node, is_right: bool) -> bool:
    """The axis that both have is summed over; the other ones are those of the result."""
    rows = factor.meta["val"].shape[-1 if is_right else -2]
    columns = other.meta["val"].shape[-2 if is_right else -1]
    whole = columns % WHOLE == 0 and (rows % WHOLE == 0 or not is_right)
    return bool(whole and rows >= LEAST_ROWS)


def _is_turn(node: Node) -> bool:
    """Of the last two axes."""
    if node.target is aten.t.default:
        return True
    if node.target is not aten.transpose.int:
        return False
    _, *axes = node.args
    rank = node.meta["val"].ndim
    return {axis % rank for axis in axes if isinstance(axis, int)} == {rank - 2, rank - 1}


def _given(node: Node) -> list[Node]:
    return [one for one in node.args if isinstance(one, Node)]
