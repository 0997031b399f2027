# SPDX-License-Identifier: Apache-2.0
"""What stands for a value of a module while it is read: numbers that are known, or a value of a graph.

Most of what steers a program is known when it is read: loop counters, offsets, shapes, the counters of random bits.
An op whose operands are all known is computed here, in any format, 64 bits too. Loops then unroll by themselves. What
was computed so is a recipe, too: a graph that needs it gets the ops, not a large constant, where it can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.errors import Location, TrnlabError
from trnlab.frontends.stablehlo.mlir import FLOAT64, WIDE
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.ir import TensorType, Value
from trnlab.graph.loops import LoopWindow
from trnlab.graph.ops import ELEMENTWISE, OPS
from trnlab.numerics.dtypes import bool_, float32

Array = np.ndarray[Any, Any]
SMALL = 1024  # elements: numbers that are computed whatever they are
_LARGEST = 2**24  # elements of whole numbers that are computed


@dataclass(frozen=True)
class ConstantOrigin:
    """How known numbers came about."""

    name: str
    operands: tuple[TracedValue, ...]
    attrs: Mapping[str, Any]
    where: Location | None
    origin: str


@dataclass(frozen=True, eq=False)
class Update:
    """A tensor that goes round a loop, `into`, of which the round at hand overwrites a window with `value`."""

    into: TracedValue
    value: TracedValue
    window: LoopWindow


@dataclass(eq=False)
class TracedValue:
    """One value.

    `home` is the tracer that it belongs to; known numbers belong to nobody.
    """

    type: TensorType
    known: Array | None = None  # its elements
    recipe: ConstantOrigin | None = None
    value: Value | None = None  # in the graph of `segment`
    segment: Any = None
    slot: int | None = None  # its number among the program's
    home: Any = None
    error: TrnlabError | None = None  # why there is no such value, for whoever needs it
    # each, update: only in the round of a loop (`rolled`): its elements in each of the rounds, [rounds, ...]; a
    # tensor of which one window is written
    each: Array | None = None
    update: Update | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return self.type.shape

    @property
    def is_wide(self) -> bool:
        """Whether its format has 64 bits."""
        return self.type.dtype in WIDE


def known(array: Array, kind: TensorType) -> TracedValue:
    """An entry of numbers."""
    return TracedValue(kind, known=array)


def broken(error: TrnlabError) -> TracedValue:
    """The entry of a result that cannot be had."""
    return TracedValue(TensorType((), bool_), error=error)


def is_splat(array: Array) -> bool:
    """Whether all elements are one element of memory."""
    return array.size > 0 and all(s == 0 or n == 1 for n, s in zip(array.shape, array.strides))


def worth_computing(operands: Sequence[TracedValue], kind: TensorType) -> bool:
    """Whether to compute an op of known operands at once: whole numbers, few numbers, and all that has 64 bits."""
    if any(e.known is None for e in operands):
        return False
    size = max((kind.size, *(e.type.size for e in operands)))
    if size <= SMALL or kind.dtype in WIDE or any(e.is_wide for e in operands):
        return True
    if all(e.known is not None and is_splat(e.known) for e in operands):
        return True
    return not kind.dtype.is_float and size <= _LARGEST


def compute(name: str, operands: Sequence[TracedValue], attrs: Mapping[str, Any], kind: TensorType) -> Array:
    """The result of an op of known operands, which has `kind`, as the graph's interpreter defines it."""
    arrays = [e.known for e in operands if e.known is not None]
    if name == "convert":
        return _converted(arrays[0], operands[0].type, kind)
    splats = OPS[name].kind == ELEMENTWISE and kind.size > 1 and all(map(is_splat, arrays))
    shapes = [() if splats else e.shape for e in operands]
    if splats:
        arrays = [a.reshape(-1)[0] if a.size == 1 else a[(0,) * a.ndim] for a in arrays]
    elif name in ("broadcast_in_dim", "reshape") and is_splat(arrays[0]):
        return np.broadcast_to(arrays[0][(0,) * arrays[0].ndim], kind.shape)
    b = GraphBuilder(name)
    values = [b.input(f"x{i}", s, _held(e.type)) for i, (s, e) in enumerate(zip(shapes, operands))]
    b.output(b.append(name, values, dict(attrs)).result)
    wide = FLOAT64 in (kind.dtype, *(e.type.dtype for e in operands))
    (result,) = interpret(b.graph, arrays, "float64" if wide else "float32")
    result = np.asarray(result).astype(kind.dtype.numpy, copy=False)
    return np.broadcast_to(result.reshape(()), kind.shape) if splats else result


def _held(kind: TensorType) -> Any:
    """The format in which the interpreter holds numbers: float64 is its float32, unrounded."""
    return float32 if kind.dtype is FLOAT64 else kind.dtype


def _converted(array: Array, source: TensorType, kind: TensorType) -> Array:
    """Floats become whole numbers as in the graph's interpreter; whole numbers keep their lowest bits."""
    if array.size > 1 and is_splat(array):
        one = _converted(array[(0,) * array.ndim].reshape(1), source, TensorType((1,), kind.dtype))
        return np.broadcast_to(one[0], kind.shape)
    if kind.dtype.kind == "b":
        return (array != 0).astype(np.uint8)
    if kind.dtype.is_integer and source.dtype.is_float:
        low, high = kind.dtype.limits
        whole = np.clip(np.trunc(np.nan_to_num(array.astype(np.float64))), low, high)
        with np.errstate(invalid="ignore"):
            return whole.astype(kind.dtype.numpy)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(kind.dtype.numpy)
