# SPDX-License-Identifier: Apache-2.0
"""The operators of the ALU: what `op=` may name in the instructions of VectorE, GpSimd and (a few) ScalarE.

Arithmetic operators work on float32, whatever the operands' formats; bitvec operators on the bits of integers. Truth
is 1.0 or 0.0. `max` and `min` return NaN when either input is NaN (assumed: nothing is published).

Source: "Supported Math Operators for NKI ISA", nki/api/nki.api.shared.rst in aws-neuron/aws-neuron-sdk. It lists
neither divide nor mod; that the hardware has them is our assumption (`published` is False for these).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.isa.base import Array, Engine

VECTOR_GPSIMD = frozenset({Engine.VECTOR, Engine.GPSIMD})
VECTOR_ONLY = frozenset({Engine.VECTOR})
GPSIMD_ONLY = frozenset({Engine.GPSIMD})
ALL_THREE = frozenset({Engine.VECTOR, Engine.GPSIMD, Engine.SCALAR})


@dataclass(frozen=True, slots=True)
class AluOp:
    """One operator. `code` is what simulators switch on; `function` takes two arrays of one dtype."""

    name: str
    code: int
    function: Callable[[Any, Any], Any]
    bitvec: bool = False
    reduces: bool = False  # legal in a reduction
    integer: bool = False  # defined on 32-bit integers as well, exactly
    unary: bool = False  # ignores its second operand
    engines: frozenset[Engine] = VECTOR_GPSIMD  # where it exists
    feature: str | None = None  # what the chip must have
    published: bool = True

    def __call__(self, x: Any, y: Any) -> Any:
        """The operator on two arrays (or an array and a number of its dtype)."""
        with np.errstate(all="ignore"):
            return self.function(x, y)


def _truth(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def function(x: Any, y: Any) -> Any:
        return compare(x, y).astype(np.result_type(x))

    return function


def _unsigned(x: Any) -> Any:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _shift_left(x: Any, y: Any) -> Any:
    """Bits moved up; a distance of the word's width or more leaves zero."""
    width = 8 * x.dtype.itemsize
    distance = np.asarray(y).astype(np.int64)
    moved = _unsigned(x).astype(np.uint64) << np.clip(distance, 0, 32).astype(np.uint64)
    return np.where(distance < width, moved, 0).astype(_unsigned(x).dtype).view(x.dtype)


def _shift_right(x: Any, y: Any) -> Any:
    """Bits moved down, zeros from above, for signed formats too."""
    distance = np.clip(np.asarray(y).astype(np.int64), 0, 63).astype(np.uint64)
    return (_unsigned(x).astype(np.uint64) >> distance).astype(_unsigned(x).dtype).view(x.dtype)


def _abs_pick(larger: bool) -> Callable[[Any, Any], Any]:
    """The input of larger (smaller) magnitude with its sign; on a tie the second."""

    def function(x: Any, y: Any) -> Any:
        first = np.abs(x) > np.abs(y) if larger else np.abs(x) < np.abs(y)
        return np.where(first, x, y)

    return function


_ABS, _SQUARE = "alu_abs_max_min", "alu_square_relu"
ALU: dict[str, AluOp] = {
    op.name: op
    for op in (
        AluOp("bypass", 0, lambda x, y: x, unary=True, integer=True),
        AluOp("add", 1, np.add, reduces=True, integer=True, engines=ALL_THREE),
        AluOp("subtract", 2, np.subtract, reduces=True, integer=True),
        AluOp("multiply", 3, np.multiply, reduces=True, integer=True, engines=ALL_THREE),
        AluOp("divide", 4, np.divide, published=False),
        AluOp("max", 5, np.maximum, reduces=True, integer=True),
        AluOp("min", 6, np.minimum, reduces=True, integer=True),
        AluOp("power", 7, np.power, engines=GPSIMD_ONLY),
        AluOp("mod", 8, np.fmod, published=False),
        AluOp("is_equal", 9, _truth(np.equal), integer=True),
        AluOp("not_equal", 10, _truth(np.not_equal), integer=True),
        AluOp("is_gt", 11, _truth(np.greater), integer=True),
        AluOp("is_ge", 12, _truth(np.greater_equal), integer=True),
        AluOp("is_lt", 13, _truth(np.less), integer=True),
        AluOp("is_le", 14, _truth(np.less_equal), integer=True),
        AluOp("logical_and", 15, _truth(np.logical_and), reduces=True, integer=True),
        AluOp("logical_or", 16, _truth(np.logical_or), reduces=True, integer=True),
        AluOp("logical_xor", 17, _truth(np.logical_xor), reduces=True, integer=True),
        AluOp("bitwise_and", 18, np.bitwise_and, bitvec=True, reduces=True, engines=VECTOR_ONLY),
        AluOp("bitwise_or", 19, np.bitwise_or, bitvec=True, reduces=True, engines=VECTOR_ONLY),
        AluOp("bitwise_xor", 20, np.bitwise_xor, bitvec=True, reduces=True, engines=VECTOR_ONLY),
        AluOp("left_shift", 21, _shift_left, bitvec=True, engines=VECTOR_ONLY),
        AluOp("right_shift", 22, _shift_right, bitvec=True, engines=VECTOR_ONLY),
        AluOp("abs_max", 23, _abs_pick(True), feature=_ABS, engines=VECTOR_ONLY),
        AluOp("abs_min", 24, _abs_pick(False), feature=_ABS, engines=VECTOR_ONLY),
        AluOp("abs", 25, lambda x, y: np.abs(x), unary=True, engines=VECTOR_ONLY),
        AluOp("rsqrt", 26, lambda x, y: np.float32(1) / np.sqrt(x), unary=True, engines=GPSIMD_ONLY),
        AluOp("invert", 27, lambda x, y: np.bitwise_not(x), bitvec=True, unary=True, engines=VECTOR_ONLY),
        AluOp("square", 29, lambda x, y: np.square(x), unary=True, feature=_SQUARE, engines=VECTOR_ONLY),
        AluOp("relu", 30, lambda x, y: np.maximum(x, 0), unary=True, feature=_SQUARE, engines=VECTOR_ONLY),
        AluOp("reciprocal", 31, lambda x, y: np.float32(1) / x, unary=True, engines=VECTOR_ONLY),
        AluOp("logical_not", 28, lambda x, y: _truth(np.equal)(x, np.zeros_like(x)), unary=True),
    )
}
BY_CODE = {op.code: op for op in ALU.values()}

# The names that nki.language gives to some of these.
ALIASES = {
    "maximum": "max",
    "minimum": "min",
    "equal": "is_equal",
    "greater": "is_gt",
    "greater_equal": "is_ge",
    "less": "is_lt",
    "less_equal": "is_le",
    "copy": "bypass",
}


def alu_op(name: str) -> AluOp:
    """The operator called `name`, by our name or nki.language's. Raises KeyError for an unknown name."""
    return ALU[ALIASES.get(name, name)]


def binary(op: AluOp, x: Array, y: Array) -> Array:
    """`op` on two tiles: bits for bitvec, exact for two 32-bit integers (wrapping), float32 otherwise."""
    if op.bitvec:
        return np.asarray(op(x, y))
    if is_int32(x) and is_int32(y) and op.integer:
        return np.asarray(op(x.astype(np.int64), y.astype(np.int64))).astype(x.dtype)
    return np.asarray(op(x.astype(np.float32), y.astype(np.float32)), np.float32)


def with_scalar(op: AluOp, x: Array, scalar: Any, reverse: bool) -> Array:
    """`x op scalar`, or `scalar op x` when reversed; `scalar` is a number or an array that broadcasts."""
    dtype = x.dtype if op.bitvec else np.dtype(np.float32)
    left, right = x.astype(dtype), np.asarray(0 if scalar is None else scalar).astype(dtype)
    if reverse and not op.unary:
        left, right = np.broadcast_to(right, left.shape), left
    return np.asarray(op(left, right), dtype)


def reduce(op: AluOp, x: Array, axis: tuple[int, ...]) -> Array:
    """Fold `op` over the trailing `axis`, kept flat: [P, outer..., reduced...] -> [P, outer...].

    Arithmetic folds in float32; the order of the additions is not part of the meaning. Subtraction takes all later
    elements from the first.
    """
    flat = x.reshape(*x.shape[: axis[0]], -1)
    if not op.bitvec:
        flat = flat.astype(np.float32)
    if op.name.startswith("logical"):
        flat = np.not_equal(flat, 0).astype(np.float32)  # one element alone is a truth value too
    with np.errstate(all="ignore"):
        if isinstance(op.function, np.ufunc):
            return np.asarray(op.function.reduce(flat, axis=-1))
        result = flat[..., 0]
        for i in range(1, flat.shape[-1]):
            result = op(result, flat[..., i])
    return np.asarray(result)


def is_int32(x: Array) -> bool:
    """Whether the elements are 32-bit integers."""
    return x.dtype.kind in "iu" and x.dtype.itemsize == 4
