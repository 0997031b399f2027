# SPDX-License-Identifier: Apache-2.0
"""Operators with a number that may be an input: `x.add_(gradient, alpha=-lr)` for every learning rate.

PyTorch wants Python numbers there, and an operator compiled with a number in it serves that number only. Written out
in plain products and sums it takes tensors, and the floats that Dynamo keeps open.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from trnlab.frontends.torch.decompositions import fused_optimizers
from trnlab.frontends.torch.pytorch import pytree

NAMES = ("alpha", "value", "other", "weight")
_OTHER_OVERLOADS = frozenset({"mul", "div", "fill", "masked_fill"})  # take a tensor in place of their number


@cache
def base_name(op: Any) -> str:
    """`add` of `aten::add_.Tensor` and of `aten::add.out`."""
    name: str = op._schema.name
    return name.removeprefix("aten::").removesuffix("_")


def arguments(op: Any) -> frozenset[str]:
    """Names of the arguments whose floats may be tensors without dimensions."""
    if base_name(op) in fused_optimizers.NAMES:
        return frozenset({"lr"})
    known = base_name(op) in _OTHER_OVERLOADS or base_name(op) in _WRITTEN_OUT
    return frozenset(a.name for a in op._schema.arguments if str(a.type) == "Tensor" or (known and a.name in NAMES))


def call(op: Any, given: dict[str, Any], resizes: bool = False) -> Any:
    """The operator on arguments by name. Writes to what the operator writes to, and returns that then.

    resizes: `out` has another size than the result, which is only returned.
    """
    base = base_name(op)
    if base in fused_optimizers.NAMES and op._schema.is_mutable:
        return fused_optimizers.update(base, given)
    operands = {name: value for name, value in given.items() if name != "out"}
    if base not in _WRITTEN_OUT:
        if resizes:
            return _resized(op.overloadpacket, operands, given["out"].dtype)
        return (op.overloadpacket if base in _OTHER_OVERLOADS else op)(**given)
    if resizes:
        return _resized(_WRITTEN_OUT[base], operands, given["out"].dtype)
    result = _WRITTEN_OUT[base](**operands)
    if "out" in given:
        return given["out"].copy_(result)
    return given["self"].copy_(result) if op._schema.is_mutable else result


def _resized(function: Callable[..., Any], operands: dict[str, Any], dtype: torch.dtype) -> Any:
    """The result for an empty `out` of this format. Raises NotImplementedError where PyTorch would convert it."""
    if not any(isinstance(v, torch.Tensor) for v in operands.values()):
        return function(**operands, dtype=dtype)  # makes elements from numbers
    result = function(**operands)
    if isinstance(result, torch.Tensor) and result.dtype is not dtype:
        raise NotImplementedError(f"converts {result.dtype} to {dtype}")
    return result


def _scaled(x: Any, factor: Any) -> Any:
    return x if isinstance(factor, (int, float)) and factor == 1 else x * factor


_WRITTEN_OUT: dict[str, Callable[..., Any]] = {
    "copy": lambda self, src, non_blocking=False: src.to(self.dtype).expand(self.shape),
    "add": lambda self, other, alpha=1: self + _scaled(other, alpha),
    "sub": lambda self, other, alpha=1: self - _scaled(other, alpha),
    "rsub": lambda self, other, alpha=1: other - _scaled(self, alpha),
    "addcmul": lambda self, tensor1, tensor2, value=1: self + _scaled(tensor1 * tensor2, value),
    "addcdiv": lambda self, tensor1, tensor2, value=1: self + _scaled(tensor1 / tensor2, value),
    "lerp": lambda self, end, weight: self + weight * (end - self),
}


# -- floats that Dynamo keeps open ----------------------------------------------------------------------------------


def decompositions() -> dict[Any, Callable[..., Any]]:
    """By operator, for calls with a float that Dynamo keeps open, which PyTorch knows only in plain arithmetic.

    Where it meets another operator it fixes the float, and compiles again for the next one: a schedule of learning
    rates would cost a program for each step.
    """
    aten = torch.ops.aten
    table: dict[Any, Callable[..., Any]] = {}
    for base, form in {**_WRITTEN_OUT, **_PLAIN}.items():
        lists = getattr(aten, f"_foreach_{base}", None)
        for overload in lists.overloads() if lists is not None else ():
            if "out" not in overload:
                table[getattr(lists, overload)] = _open(_per_element(form))
        single = getattr(aten, base)
        for overload in ("Tensor", "Scalar", "default"):
            if base not in _PLAIN and overload in single.overloads():
                table[getattr(single, overload)] = _open(form, "alpha" if base in ("add", "sub", "rsub") else None)
    return table


def _open(form: Callable[..., Any], argument: str | None = None) -> Callable[..., Any]:
    """`form` where a float is open, in this argument or in any; else the operator stays what it is."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get(argument) if argument is not None else (args, kwargs)
        is_open = any(isinstance(x, torch.SymFloat) for x in pytree.tree_leaves(given))
        return form(*args, **kwargs) if is_open else NotImplemented

    return decomposed


def _per_element(form: Callable[..., Any]) -> Callable[..., Any]:
    def each(first: Any, *args: Any, **kwargs: Any) -> list[Any]:
        def pick(value: Any, i: int) -> Any:
            return value[i] if isinstance(value, (list, tuple)) else value

        return [
            form(x, *(pick(a, i) for a in args), **{k: pick(a, i) for k, a in kwargs.items()})
            for i, x in enumerate(first)
        ]

    return each


_PLAIN: dict[str, Callable[..., Any]] = {
    "mul": lambda self, other: self * other,
    "div": lambda self, other: self / other,
}
