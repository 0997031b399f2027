# SPDX-License-Identifier: Apache-2.0
"""What the ops mean: a NumPy interpreter, the living definition of the graph.

Float values are held in float32 (or float64, for references) and rounded to their format after every op: to nearest,
ties to even. Integers wrap. Sums are made in the holding format and rounded once. Out-of-range indices are clamped
by gather and dropped by scatter, as in StableHLO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from trnlab.collectives import Communicator
from trnlab.errors import GraphError
from trnlab.graph import composites, loops
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.collectives import execute
from trnlab.graph.indexing import gather, scatter
from trnlab.graph.ir import Callee, Graph, Op, TensorType
from trnlab.graph.ops import COLLECTIVE, OPS
from trnlab.numerics.dtypes import DType, bool_, float32, int32
from trnlab.numerics.dtypes import dtype as find_dtype
from trnlab.numerics.mx import block_rounded, mx_dtype
from trnlab.numerics.rounding import narrow

Array = np.ndarray[Any, Any]
Attrs = Mapping[str, Any]


def interpret(
    graph: Graph, inputs: Sequence[Any], precision: str = "float32", ranks: Communicator | None = None
) -> list[Array]:
    """Outputs of the graph for `inputs`; nothing is overwritten, aliases or not.

    ranks: the connection with the others that interpret it at the same time, where the graph has collectives.
    precision: "float32", or "float64" to hold float32 values unrounded. Outputs come in the NumPy dtype of their
    format (with "float64", floats come as float64). Raises GraphError (TRN306) when the inputs do not fit the graph.
    """
    held = np.dtype(precision)
    _check_inputs(graph, inputs)
    values = {v: _enter(np.asarray(x), v.dtype, held) for v, x in zip(graph.inputs, inputs)}
    last_reader = {v: op for op in graph.ops for v in op.operands}
    keep = set(graph.outputs)
    with np.errstate(all="ignore"):
        for op in graph.ops:
            values.update(zip(op.results, _run(op, [values[v] for v in op.operands], held, ranks)))
            for v in dict.fromkeys(op.operands):
                if last_reader[v] is op and v not in keep:
                    del values[v]
    return [_leave(values[v], v.dtype, held) for v in graph.outputs]


def apply(name: str, arrays: Sequence[Array], types: Sequence[TensorType], attrs: Attrs) -> tuple[Array, ...]:
    """One op on arrays in the NumPy dtypes of their formats, in float32; `types` are those of the operands."""
    b = GraphBuilder(name)
    operands = [b.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)]
    for value in b.append(name, operands, dict(attrs)).results:
        b.output(value)
    return tuple(interpret(b.graph, arrays))


def _check_inputs(graph: Graph, inputs: Sequence[Any]) -> None:
    if len(inputs) != len(graph.inputs):
        raise GraphError("wrong number of inputs", code="TRN306", limit=len(graph.inputs), got=len(inputs))
    for value, array in zip(graph.inputs, inputs):
        if np.shape(array) != value.shape:
            raise GraphError(
                f"input {value.name!r} has the wrong shape", code="TRN306", limit=value.shape, got=np.shape(array)
            )


def _run(op: Op, arrays: list[Array], held: np.dtype[Any], ranks: Communicator | None) -> list[Array]:
    if OPS[op.name].kind == COLLECTIVE:
        given = [
            _leave(x, v.dtype, held) for x, v in zip(arrays, op.operands)
        ]  # sums are rounded where they are made
        results: Sequence[Any] = [_enter(x, v.dtype, held) for x, v in zip(execute(op, given, ranks), op.results)]
    elif OPS[op.name].composite:
        definition = _definition(op.name, tuple(v.type for v in op.operands), tuple(sorted(op.attrs.items())))
        results = interpret(definition, arrays, held.name)
    elif op.name == "loop":
        results = loops.run(op, arrays, lambda graph, given: interpret(graph, given, held.name, ranks))
    else:
        found = _MEANINGS[op.name](op, *arrays)
        results = found if isinstance(found, list) else [found]
    return [_round(np.asarray(r), v.dtype, held) for r, v in zip(results, op.results)]


@lru_cache(maxsize=256)
def _definition(name: str, types: tuple[TensorType, ...], attrs: tuple[tuple[str, Any], ...]) -> Graph:
    """A composite's definition as a graph."""
    b = GraphBuilder(name)
    operands = [b.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)]
    for value in composites.define(name, operands, dict(attrs), b):
        b.output(value)
    return b.build()


# -- formats ------------------------------------------------------------------------------------------------------


def _enter(array: Array, dtype: DType, held: np.dtype[Any]) -> Array:
    """As held: bools as NumPy's, floats in the holding format, rounded to theirs."""
    if dtype is bool_:
        return array.astype(np.bool_)
    return _round(array, dtype, held)


def _leave(array: Array, dtype: DType, held: np.dtype[Any]) -> Array:
    return array if dtype.is_float and held == np.float64 else array.astype(dtype.numpy)


def _round(array: Array, dtype: DType, held: np.dtype[Any]) -> Array:
    """Round to `dtype`, held as `held` when it is a float format; integers wrap."""
    if dtype is bool_:
        return array.astype(np.bool_, copy=False)
    if not dtype.is_float:
        return array.astype(dtype.numpy, copy=False)
    if dtype is float32:
        return array.astype(held, copy=False)
    return narrow(array, dtype).reshape(array.shape).astype(held)


# -- elementwise --------------------------------------------------------------------------------------------------

_erf = np.frompyfunc(math.erf, 1, 1)


def _logistic(x: Array) -> Array:
    """1/(1+e^-x) without overflow: e^-|x| never exceeds one."""
    small = np.exp(-np.abs(x))
    result: Array = np.where(x >= 0, 1, small) / (1 + small)
    return result


def _divide(x: Array, y: Array) -> Array:
    """Integers truncate toward zero; x / 0 is all ones."""
    if x.dtype.kind == "f":
        return np.asarray(x / y)
    wide, by = x.astype(np.int64), y.astype(np.int64)
    quotient = np.sign(wide) * np.sign(by) * (np.abs(wide) // np.maximum(np.abs(by), 1))
    return np.where(by == 0, -1, quotient)


def _remainder(x: Array, y: Array) -> Array:
    """The sign is the dividend's; the remainder by an integer 0 is the dividend."""
    return np.asarray(
        np.fmod(x, y) if x.dtype.kind == "f" else np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y)))
    )


def _power(x: Array, y: Array) -> Array:
    """Integers wrap; a negative exponent gives the integer part of the reciprocal.

    Where an exponent is 0.5 throughout NumPy takes roots, which differ from powers at -0 and at minus infinity.
    """
    if x.dtype.kind == "f":
        unsigned = (np.abs(y) == 0.5) & ((x == 0) | np.isneginf(x))
        return np.asarray(np.power(np.where(unsigned, np.abs(x), x), y))
    whole = np.power(x, np.maximum(y, 0))
    reciprocal = np.where(np.abs(x) == 1, np.power(x, np.abs(y) % 2), 0)
    return np.where(y < 0, reciprocal, whole)


def _shift(x: Array, y: Array, name: str) -> Array:
    """Bits moved by y; by less than nothing or by the width or more, all of them leave, and zeros or signs enter."""
    width = 8 * x.dtype.itemsize
    inside = (y >= 0) & (y < width)
    distance = np.where(inside, y, 0).astype(np.uint64)
    if name == "shift_right_arithmetic" and x.dtype.kind == "i":
        return np.asarray(x.astype(np.int64) >> np.where(inside, y, width - 1).astype(np.int64))
    bits = x.view(f"u{x.dtype.itemsize}").astype(np.uint64)
    moved = bits << distance if name == "shift_left" else bits >> distance
    return np.where(inside, moved, 0).astype(f"u{x.dtype.itemsize}").view(x.dtype)


_UNARY: dict[str, Callable[[Array], Any]] = {
    "negate": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "log": np.log,
    "log_plus_one": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "logistic": _logistic,
    "sine": np.sin,
    "cosine": np.cos,
    "erf": lambda x: np.asarray(_erf(x)).astype(x.dtype),
    "atan": np.arctan,
    "floor": np.floor,
    "ceil": np.ceil,
    "round_nearest_even": np.rint,
    "is_finite": np.isfinite,
    "not": np.invert,
}
_BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": _divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": _power,
    "remainder": _remainder,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    **{n: partial(_shift, name=n) for n in ("shift_left", "shift_right_logical", "shift_right_arithmetic")},
}
_COMPARE: dict[str, Callable[[Array, Array], Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def _compare(op: Op, x: Array, y: Array) -> Any:
    return _COMPARE[op.attrs["comparison_direction"]](x, y)


def _clamp(op: Op, low: Array, x: Array, high: Array) -> Any:
    return np.minimum(np.maximum(x, low), high)


def _convert(op: Op, x: Array) -> Array:
    """Anything to bool asks whether it is not zero; integers to narrower ones keep their lowest bits.

    Floats to integers truncate. What is beyond 32 bits becomes the nearest 32-bit integer, NaN becomes 0; narrower
    formats keep the lowest bits, and 0 of what is beyond 32 bits. (C leaves both open. PyTorch on x86 does the same
    for narrow formats; for int32 it gives -2^31 where this saturates.)
    """
    target: DType = op.attrs["dtype"]
    if target is bool_:
        return np.asarray(x != 0)
    if target.is_float or x.dtype.kind != "f":
        return x
    x = np.trunc(np.nan_to_num(x.astype(np.float64)))
    if target.itemsize < int32.itemsize:
        return np.where(np.abs(x) < 2**31, x, 0).astype(np.int64)
    return np.asarray(np.clip(x, *target.limits)).astype(np.int64)


def _bitcast_convert(op: Op, x: Array) -> Array:
    """The same bits, whatever the format in which numbers are held here."""
    bits: Array = np.ascontiguousarray(x).astype(op.operands[0].dtype.numpy, copy=False)
    return bits.view(op.result.dtype.numpy).reshape(x.shape)


# -- sources and shapes -------------------------------------------------------------------------------------------


def _constant(op: Op) -> Array:
    value, dtype = op.attrs["value"], op.result.dtype
    if isinstance(value, np.ndarray):
        return value.astype(np.float32) if dtype.is_float else value
    plain = np.asarray(value, np.float32 if dtype.is_float else dtype.numpy)
    return np.broadcast_to(plain, op.result.shape)


def _iota(op: Op) -> Array:
    shape, axis = op.attrs["shape"], op.attrs["iota_dimension"]
    line = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.broadcast_to(line, shape)


def _broadcast_in_dim(op: Op, x: Array) -> Array:
    aligned = [1] * len(op.result.shape)
    for axis, size in zip(op.attrs["broadcast_dimensions"], x.shape):
        aligned[axis] = size
    order = np.argsort(op.attrs["broadcast_dimensions"])
    return np.broadcast_to(np.transpose(x, order).reshape(aligned), op.result.shape)


def _slice(op: Op, x: Array) -> Array:
    bounds = zip(op.attrs["start_indices"], op.attrs["limit_indices"], op.attrs["strides"])
    return x[tuple(slice(*b) for b in bounds)]


def _concatenate(op: Op, *xs: Array) -> Array:
    return np.concatenate(xs, op.attrs["dimension"])


def _pad(op: Op, x: Array, value: Array) -> Array:
    low, high, inside = (op.attrs[k] for k in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    return _padded(x, low, high, inside, value)


def _padded(x: Array, low: Sequence[int], high: Sequence[int], inside: Sequence[int], value: Any = 0) -> Array:
    """Spread over the padded grid; negative padding then crops it."""
    spread = [n + max(n - 1, 0) * i for n, i in zip(x.shape, inside)]
    grid = np.full([n + max(a, 0) + max(b, 0) for n, a, b in zip(spread, low, high)], value, x.dtype)
    grid[tuple(slice(max(a, 0), max(a, 0) + n, i + 1) for n, a, i in zip(spread, low, inside))] = x
    return grid[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, a, b in zip(grid.shape, low, high))]


# -- reductions, products -----------------------------------------------------------------------------------------

_REDUCERS: dict[str, np.ufunc] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def _reduce(op: Op, x: Array) -> Array:
    kind, dims = op.attrs["kind"], op.attrs["dimensions"]
    start = identity(kind, x.dtype)
    if x.dtype.kind == "f" and kind == "add":
        return np.asarray(np.sum(x, axis=dims))
    return np.asarray(_REDUCERS[kind].reduce(x, axis=dims, dtype=x.dtype, initial=start))


def identity(kind: str, dtype: np.dtype[Any]) -> Any:
    """What the reduction of nothing gives."""
    if kind in ("add", "multiply"):
        return 0 if kind == "add" else 1
    if dtype.kind == "b":
        return kind == "and"
    if kind in ("and", "or"):
        return dtype.type(0) if kind == "or" else np.invert(dtype.type(0))
    if dtype.kind == "f":
        return -np.inf if kind == "maximum" else np.inf
    return np.iinfo(dtype).min if kind == "maximum" else np.iinfo(dtype).max


def _dot_general(op: Op, lhs: Array, rhs: Array) -> Array:
    """Each side as [batch, free, contracted], rounded, in blocks of 32 if it says so, then one batched product."""
    lhs, rhs = _rounded(lhs, op.attrs["lhs_cast"]), _rounded(rhs, op.attrs["rhs_cast"])
    left, left_free = _as_matrices(lhs, op.attrs["lhs_batching_dimensions"], op.attrs["lhs_contracting_dimensions"])
    right, right_free = _as_matrices(rhs, op.attrs["rhs_batching_dimensions"], op.attrs["rhs_contracting_dimensions"])
    if op.attrs["lhs_mx"]:
        left = block_rounded(left, mx_dtype(op.attrs["lhs_mx"])).astype(lhs.dtype)
        right = block_rounded(right, mx_dtype(op.attrs["rhs_mx"])).astype(rhs.dtype)
    if lhs.dtype.kind != "f":
        left, right = left.astype(np.int64), right.astype(np.int64)
    batch = tuple(lhs.shape[a] for a in op.attrs["lhs_batching_dimensions"])
    return np.asarray(np.matmul(left, right.swapaxes(1, 2))).reshape((*batch, *left_free, *right_free))


def _rounded(x: Array, to: str) -> Array:
    return x.astype(find_dtype(to).numpy).astype(x.dtype) if to else x


def _as_matrices(x: Array, batch: tuple[int, ...], contract: tuple[int, ...]) -> tuple[Array, tuple[int, ...]]:
    free = tuple(a for a in range(x.ndim) if a not in batch and a not in contract)
    sizes = [math.prod(x.shape[a] for a in axes) for axes in (batch, free, contract)]
    return x.transpose(*batch, *free, *contract).reshape(sizes), tuple(x.shape[a] for a in free)


def _convolution(op: Op, lhs: Array, rhs: Array) -> Array:
    """One matrix product for each element of the window, in groups: [G, images, places, C] and [G, C, O]."""
    attrs, space = op.attrs, op.result.shape[2:]
    rank, groups, batches = len(space), attrs["feature_group_count"], attrs["batch_group_count"]
    if attrs["window_reversal"]:
        rhs = np.flip(rhs, tuple(range(2, 2 + rank)))
    inside = [d - 1 for d in attrs["lhs_dilation"]]
    spread = _padded(lhs, (0, 0, *attrs["padding_low"]), (0, 0, *attrs["padding_high"]), (0, 0, *inside))
    images, channels, out = lhs.shape[0] // batches, lhs.shape[1] // groups, rhs.shape[0] // (groups * batches)
    total = np.zeros((groups * batches, images * math.prod(space), out), lhs.dtype)
    for element in np.ndindex(*rhs.shape[2:]):
        begins = [e * d for e, d in zip(element, attrs["rhs_dilation"])]
        steps = [slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(begins, space, attrs["window_strides"])]
        seen = spread[(slice(None), slice(None), *steps)] if min(space, default=1) else spread[..., :0]
        seen = seen.reshape(batches, images, groups, channels, *space).transpose(0, 2, 1, *range(4, 4 + rank), 3)
        weights = rhs[(slice(None), slice(None), *element)].reshape(groups * batches, out, channels)
        total += np.matmul(seen.reshape(groups * batches, -1, channels), weights.swapaxes(1, 2))
    return (
        total.reshape(-1, images, *space, out).transpose(1, 0, rank + 2, *range(2, 2 + rank)).reshape(op.result.shape)
    )


# -- code beyond the graph ----------------------------------------------------------------------------------------


def _custom_call(op: Op, *xs: Array) -> list[Array]:
    callee: Callee = op.attrs["callee"]
    results = callee.execute([x.astype(t.dtype.numpy) for x, t in zip(xs, callee.operands)])
    return [r.astype(np.float32) if t.dtype.is_float else r for r, t in zip(results, callee.results)]


_MEANINGS: dict[str, Callable[..., Any]] = {
    "custom_call": _custom_call,
    **{name: (lambda op, x, f=f: f(x)) for name, f in _UNARY.items()},
    **{name: (lambda op, x, y, f=f: f(x, y)) for name, f in _BINARY.items()},
    "compare": _compare,
    "select": lambda op, pred, x, y: np.where(pred, x, y),
    "clamp": _clamp,
    "convert": _convert,
    "bitcast_convert": _bitcast_convert,
    "constant": _constant,
    "iota": _iota,
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": lambda op, x: x.reshape(op.attrs["shape"]),
    "transpose": lambda op, x: x.transpose(op.attrs["permutation"]),
    "optimization_barrier": lambda op, x: x,
    "slice": _slice,
    "concatenate": _concatenate,
    "pad": _pad,
    "reduce": _reduce,
    "dot_general": _dot_general,
    "convolution": _convolution,
    "gather": lambda op, x, ids: gather(x, ids, op.attrs),
    "scatter": lambda op, x, ids, update: scatter(x, ids, update, op.attrs),
}
assert {*_MEANINGS, "loop"} == {name for name, d in OPS.items() if not d.composite and d.kind != COLLECTIVE}
