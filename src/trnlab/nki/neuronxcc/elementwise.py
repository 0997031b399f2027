# SPDX-License-Identifier: Apache-2.0
"""Operations element by element: what nl.add, nl.exp, x + y and x < y have in common.

Inputs of one element along a dimension repeat, numbers are weakly typed (an int counts as int32, a float as float32),
and a mask leaves out a part.

Source: "NKI Type Promotion" and "Weakly Typed Scalar Type Inference" of the 2.2x documentation of aws-neuron-sdk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trnlab.isa.alu import alu_op
from trnlab.isa.base import Memory
from trnlab.lang import compose
from trnlab.lang import instructions as ins
from trnlab.lang.formats import FORMATS, Format, format_of
from trnlab.lang.recorder import current
from trnlab.lang.storage import MemorySpace
from trnlab.lang.tensor import Tensor
from trnlab.nki.neuronxcc.defined import Box, defined, record, unwritten
from trnlab.nki.neuronxcc.masked import boxed, cut, rows_of, trimmed
from trnlab.nki.neuronxcc.zeros import settle

BOOL, FLOAT32, INT32, UINT8 = FORMATS["bool"], FORMATS["float32"], FORMATS["int32"], FORMATS["uint8"]
_PSUM = Memory.PSUM  # to look a member up takes 200 ns in Python 3.11


def result(shape: tuple[int, ...], dtype: Any, region: MemorySpace = MemorySpace.sbuf) -> Tensor:
    """A fresh tile for a result."""
    return unwritten(current().tensor(shape, dtype, region))


def computed(
    shape: tuple[int, ...], dtype: Any, mask: Any, inputs: tuple[Any, ...], emit: Callable[..., Any]
) -> Tensor:
    """A result that emit(result, *inputs) computes where the mask leaves something."""
    out = result(shape, dtype)
    parts = trimmed(mask, out, *inputs)
    if parts is not None:
        emit(*parts)
    return out


def row_result(data: Tensor, mask: Any, shape: tuple[int, ...], dtype: Any, emit: Callable[..., Any]) -> Tensor:
    """A result of `shape` that has one row for each row of data, of what the mask leaves of data.

    emit(part of the result, part of data, box) computes it; the box is what is left of data.
    """
    settle(data)
    out = result(shape, dtype)
    box: Box = {a: edges for a, edges in defined(data).items() if not a}
    box |= boxed(mask, data.shape)
    if not any(low >= high for low, high in box.values()):
        into = rows_of(box)
        emit(cut(out, into), cut(data, box), box)
        record(out, into)
    return out


def column(operand: Any) -> Any:
    """A per-partition operand in the format that the engines take."""
    if not isinstance(operand, Tensor):
        return operand
    settle(operand)
    return operand if operand.format is FLOAT32 or operand.format == FLOAT32 else compose.copy(operand, FLOAT32)


def not_both_psum(x: Tensor, y: Tensor) -> Tensor:
    """y, in SBUF where x is in PSUM."""
    return compose.in_sbuf(y) if x.storage.region.memory is _PSUM else y


def format_of_operand(x: Any) -> Format:
    """The format that an operand counts as: a tile's own, a NumPy scalar's, or that of a weakly typed number."""
    if isinstance(x, Tensor):
        return x.format
    if isinstance(x, np.generic):
        return format_of(x.dtype)
    if isinstance(x, bool):
        return UINT8
    return INT32 if isinstance(x, int) else FLOAT32


def promoted(x: Any, y: Any, op: str = "add") -> Format:
    """The format of x op y where the kernel names none. Bits keep the tile's format."""
    if alu_op(op).bitvec and not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        return x.format if isinstance(x, Tensor) else y.format  # type: ignore[no-any-return]
    return compose.promoted(format_of_operand(x), format_of_operand(y))


def same_rank(x: Any, y: Any) -> tuple[Any, Any]:
    """Both tiles with as many dimensions as the larger: one that lacks some repeats along them."""
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or x.ndim == y.ndim:
        return x, y
    ndim = max(x.ndim, y.ndim)
    return tuple(t if t.ndim == ndim else _widened(t, ndim) for t in (x, y))  # type: ignore[return-value]


def _widened(x: Tensor, ndim: int) -> Tensor:
    return x._reshaped((x.shape[0], *(1,) * (ndim - x.ndim), *x.shape[1:]))


def common_shape(x: Any, y: Any) -> tuple[int, ...]:
    """The shape of x op y; at least one is a tile."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return compose.broadcast_shape(x.shape, y.shape)
    tile = x if isinstance(x, Tensor) else y
    assert isinstance(tile, Tensor)
    return tile.shape


def binary_result(x: Any, y: Any, op: str, dtype: Any = None) -> tuple[tuple[int, ...], Any]:
    """Shape and format of x op y."""
    return common_shape(x, y), dtype or promoted(x, y, op)


def binary(op: str, x: Any, y: Any, dtype: Any = None, mask: Any = None) -> Any:
    """x op y. op: a name of the ALU."""
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        return compose.binary(op, x, y)
    x, y = same_rank(x, y)

    def emit(out: Tensor, x: Any, y: Any) -> None:
        compose.binary(op, x, y, dst=out)

    return computed(*binary_result(x, y, op, dtype), mask, (x, y), emit)


def compared(op: str, x: Any, y: Any, dtype: Any = None, mask: Any = None) -> Any:
    """1 where x op y holds, 0 elsewhere, in the format bool."""
    return binary(op, x, y, dtype or BOOL, mask)


def divided(x: Any, y: Any, dtype: Any = None, mask: Any = None) -> Any:
    """x / y. The quotient of integers is a float32."""
    if dtype is None:
        dtype = promoted(x, y)
        dtype = FLOAT32 if format_of(dtype).dtype.kind in "iu" else dtype
    return binary("divide", x, y, dtype, mask)


def function(name: str, x: Tensor, dtype: Any = None, mask: Any = None) -> Tensor:
    """An activation function of each element."""

    def emit(out: Tensor, x: Tensor) -> None:
        compose.function(name, x, dst=out)

    return computed(x.shape, dtype or x.format, mask, (x,), emit)


def copied(x: Tensor, dtype: Any = None, mask: Any = None) -> Tensor:
    """A copy in SBUF."""

    def emit(out: Tensor, x: Tensor) -> None:
        compose.copy(x, dst=out)

    return computed(x.shape, dtype or x.format, mask, (x,), emit)


def unary(op: str, x: Tensor, dtype: Any = None, mask: Any = None) -> Tensor:
    """An ALU operator of one input."""

    def emit(out: Tensor, x: Tensor) -> None:
        ins.tensor_scalar(out, x, op, None)

    return computed(x.shape, dtype or x.format, mask, (x,), emit)


def negated(x: Tensor) -> Any:
    """-x in x's own format."""
    return binary("multiply", x, -1, x.format)


def inverted(x: Tensor, dtype: Any = None, mask: Any = None) -> Tensor:
    """~x: the other truth value of a bool, flipped bits of an integer."""
    return unary("logical_not" if x.format == BOOL else "invert", x, dtype, mask)
