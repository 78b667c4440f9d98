"""Operations on single elements as C++: by ATen's name, a formula of the written operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from learner.compiler.values import literal

aten = torch.ops.aten
FLOAT = torch.float32


def number(value: Any) -> str:
    return literal(value, FLOAT)


def _scaled(value: str, alpha: Any) -> str:
    return value if alpha == 1 else f"{number(alpha)} * {value}"


def _power(x: str, exponent: Any) -> str:
    if exponent == 1:
        return x
    if exponent == 2:
        return f"square({x})"
    if exponent == 0.5:
        return f"std::sqrt({x})"
    return f"std::pow({x}, {number(exponent)})"


def _clamp(x: str, low: Any = None, high: Any = None) -> str:
    if low is not None:
        x = f"at_least({x}, {low if isinstance(low, str) else number(low)})"
    if high is not None:
        x = f"at_most({x}, {high if isinstance(high, str) else number(high)})"
    return x


# Operands that are values come as text, settings as they are.
FORMULAS: dict[Any, Callable[..., str]] = {
    aten.relu.default: lambda x: f"at_least({x}, 0.0f)",
    aten.tanh.default: lambda x: f"tanh_of({x})",
    aten.sigmoid.default: lambda x: f"sigmoid_of({x})",
    aten.exp.default: lambda x: f"exp_of({x})",
    aten.log.default: lambda x: f"std::log({x})",
    aten.log1p.default: lambda x: f"std::log1p({x})",
    aten.sqrt.default: lambda x: f"std::sqrt({x})",
    aten.rsqrt.default: lambda x: f"(1.0f / std::sqrt({x}))",
    aten.reciprocal.default: lambda x: f"(1.0f / {x})",
    aten.neg.default: lambda x: f"(-{x})",
    aten.abs.default: lambda x: f"std::abs({x})",
    aten.sign.default: lambda x: f"sign_of({x})",
    aten.floor.default: lambda x: f"std::floor({x})",
    aten.ceil.default: lambda x: f"std::ceil({x})",
    aten.isfinite.default: lambda x: f"std::isfinite({x})",
    aten.clone.default: lambda x, memory_format=None: x,
    aten.alias.default: lambda x: x,
    aten.lift_fresh_copy.default: lambda x: x,
    aten.pow.Tensor_Scalar: _power,
    aten.clamp.default: _clamp,
    aten.clamp.Tensor: _clamp,
    aten.clamp_min.default: lambda x, low: _clamp(x, low),
    aten.clamp_max.default: lambda x, high: _clamp(x, None, high),
    aten.add.Tensor: lambda x, y, alpha=1: f"({x} + {_scaled(y, alpha)})",
    aten.add.Scalar: lambda x, y, alpha=1: f"({x} + {_scaled(y, alpha)})",
    aten.sub.Tensor: lambda x, y, alpha=1: f"({x} - {_scaled(y, alpha)})",
    aten.sub.Scalar: lambda x, y, alpha=1: f"({x} - {_scaled(y, alpha)})",
    aten.rsub.Scalar: lambda x, y, alpha=1: f"({y} - {_scaled(x, alpha)})",
    aten.mul.Tensor: lambda x, y: f"({x} * {y})",
    aten.mul.Scalar: lambda x, y: f"({x} * {y})",
    aten.div.Tensor: lambda x, y: f"({x} / {y})",
    aten.div.Scalar: lambda x, y: f"({x} / {y})",
    aten.xlogy.Tensor: lambda x, y: f"({x} == 0 && {y} == {y} ? 0.0f : {x} * std::log({y}))",
    aten.minimum.default: lambda x, y: f"least({x}, {y})",
    aten.maximum.default: lambda x, y: f"greatest({x}, {y})",
    aten.lerp.Scalar: lambda x, y, w: f"({x} + {w} * ({y} - {x}))",
    aten.lerp.Tensor: lambda x, y, w: f"({x} + {w} * ({y} - {x}))",
    aten.addcmul.default: lambda x, y, z, value=1: f"({x} + {_scaled(f'{y} * {z}', value)})",
    aten.addcdiv.default: lambda x, y, z, value=1: f"({x} + {_scaled(f'{y} / {z}', value)})",
    aten.where.self: lambda condition, x, y: f"({condition} ? {x} : {y})",
    aten.masked_fill.Scalar: lambda x, mask, y: f"({mask} ? {y} : {x})",
    aten.logical_and.default: lambda x, y: f"({x} && {y})",
    aten.bitwise_and.Tensor: lambda x, y: f"({x} & {y})",
    aten.logical_or.default: lambda x, y: f"({x} || {y})",
    aten.logical_not.default: lambda x: f"(!{x})",
    aten.threshold_backward.default: lambda g, x, at: f"({x} <= {at} ? 0.0f : {g})",
    aten.tanh_backward.default: lambda g, y: f"({g} * (1.0f - {y} * {y}))",
    aten.sigmoid_backward.default: lambda g, y: f"({g} * (1.0f - {y}) * {y})",
    aten.softplus.default: lambda x, beta=1, limit=20: (
        f"softplus_of({x}, {number(beta)}, {number(limit)})"
    ),
    aten.softplus_backward.default: lambda g, x, beta, limit: (
        f"({g} * softplus_slope({x}, {beta}, {limit}))"
    ),
}
SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
for _name, _sign in SIGNS.items():
    for _kind in ("Tensor", "Scalar"):
        FORMULAS[getattr(getattr(aten, _name), _kind)] = f"({{}} {_sign} {{}})".format

# Arguments that stay numbers in a formula, by place or name.
SETTINGS: dict[Any, frozenset[Any]] = {
    aten.pow.Tensor_Scalar: frozenset({1}),
    aten.clamp.default: frozenset({1, 2, "min", "max"}),
    aten.softplus.default: frozenset({1, 2}),
}
NAMED: dict[str, str] = {"min": "low", "max": "high"}

# In place: the same formula, written to its first operand.
IN_PLACE: dict[Any, Any] = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.add_.Scalar: aten.add.Scalar,
    aten.sub_.Tensor: aten.sub.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.mul_.Scalar: aten.mul.Scalar,
    aten.div_.Tensor: aten.div.Tensor,
    aten.lerp_.Scalar: aten.lerp.Scalar,
    aten.lerp_.Tensor: aten.lerp.Tensor,
    aten.addcmul_.default: aten.addcmul.default,
    aten.logical_and_.default: aten.logical_and.default,
    aten.masked_fill_.Scalar: aten.masked_fill.Scalar,
    aten.clamp_.default: aten.clamp.default,
    aten.clamp_min_.default: aten.clamp_min.default,
}
FOREACH: dict[Any, Any] = {
    aten._foreach_lerp_.Scalar: aten.lerp.Scalar,
    aten._foreach_mul_.Tensor: aten.mul.Tensor,
    aten._foreach_mul_.Scalar: aten.mul.Scalar,
}
