# SPDX-License-Identifier: Apache-2.0
"""Compose ops that only move elements or change their format, and drop those that do nothing."""

from __future__ import annotations

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.rewrite import made_by, rewrite, splat
from trnlab.numerics.dtypes import (
    DType,
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
    float16,
    float32,
    tfloat32,
    uint32,
)

# Formats that hold every value of another format.
_FLOATS: dict[DType, tuple[DType, ...]] = {
    float8_e4m3: (float16, bfloat16, tfloat32, float32),
    float8_e4m3fn: (float16, bfloat16, tfloat32, float32),
    float8_e5m2: (float16, bfloat16, tfloat32, float32),
    float8_e8m0fnu: (bfloat16, tfloat32, float32),
    float16: (tfloat32, float32),
    bfloat16: (tfloat32, float32),
    tfloat32: (float32,),
}
_INTEGER_BITS = {
    float32: 24,
    tfloat32: 11,
    float16: 11,
    bfloat16: 8,
    float8_e4m3: 4,
    float8_e4m3fn: 4,
    float8_e5m2: 3,
    float8_e8m0fnu: 0,
}


def compose_shapes(graph: Graph) -> bool:
    """One walk over the ops that move elements, converts, and reductions that have nothing to combine."""
    return rewrite(
        graph,
        {
            "reshape": _reshape,
            "transpose": _transpose,
            "broadcast_in_dim": _broadcast,
            "slice": _slice,
            "concatenate": _concatenate,
            "pad": _pad,
            "convert": _convert,
            "reduce": _reduce,
        },
    )


def holds_exactly(small: DType, large: DType) -> bool:
    """Whether `large` holds every value of `small`, so that converting to it loses nothing."""
    if small is large:
        return True
    if small is bool_:
        return large is not float8_e8m0fnu  # which has no zero
    if large is bool_:
        return False
    if small.is_float:
        return large in _FLOATS.get(small, ())
    bits = small.itemsize * 8
    if large.is_float:
        return bits - (small.kind == "i") <= _INTEGER_BITS[large]
    return large.itemsize > small.itemsize and (small.kind == "u" or large.kind == "i")


def _reshape(op: Op, b: GraphBuilder) -> Value | None:
    (x,) = op.operands
    if op.result.shape == x.shape:
        return x
    inner = made_by(x, "reshape")
    return b.reshape(inner.operands[0], op.result.shape) if inner else None


def _transpose(op: Op, b: GraphBuilder) -> Value | None:
    (x,), order = op.operands, op.attrs["permutation"]
    if order == tuple(range(len(order))):
        return x
    inner = made_by(x, "transpose")
    if inner:
        return b.transpose(inner.operands[0], [inner.attrs["permutation"][a] for a in order])
    moved = [a for a in order if x.shape[a] != 1]
    return b.reshape(x, op.result.shape) if moved == sorted(moved) else None


def _broadcast(op: Op, b: GraphBuilder) -> Value | None:
    """Also looks through a reshape that only adds or drops dimensions of size 1."""
    (x,), dims, shape = op.operands, op.attrs["broadcast_dimensions"], op.result.shape
    if op.result.type.size == x.type.size and list(dims) == sorted(dims):
        return b.reshape(x, shape)
    inner = made_by(x, "broadcast_in_dim")
    if inner:
        return b.broadcast_in_dim(inner.operands[0], shape, [dims[a] for a in inner.attrs["broadcast_dimensions"]])
    inner = made_by(x, "reshape")
    if inner is None:
        return None
    source = inner.operands[0]
    kept = [a for a, n in enumerate(x.shape) if n != 1]
    if [x.shape[a] for a in kept] != list(source.shape):
        return None
    return b.broadcast_in_dim(source, shape, [dims[a] for a in kept])


def _slice(op: Op, b: GraphBuilder) -> Value | None:
    (x,) = op.operands
    if op.result.shape == x.shape:
        return x
    start, limit, strides = (op.attrs[k] for k in ("start_indices", "limit_indices", "strides"))
    inner = made_by(x, "slice")
    if inner:
        first, step = inner.attrs["start_indices"], inner.attrs["strides"]
        low = [f + s * t for f, s, t in zip(first, start, step)]
        high = [f + (m - 1) * t + 1 if m > 0 else f for f, m, t in zip(first, limit, step)]
        limits = [max(h, n) for h, n in zip(high, low)]
        return b.slice(inner.operands[0], low, limits, [s * t for s, t in zip(strides, step)])
    joined = made_by(x, "concatenate")
    return _slice_of_concatenate(joined, start, limit, strides, b) if joined else None


def _slice_of_concatenate(
    joined: Op, start: tuple[int, ...], limit: tuple[int, ...], strides: tuple[int, ...], b: GraphBuilder
) -> Value | None:
    """A slice that lies within one of the pieces is a slice of that piece."""
    axis, offset = joined.attrs["dimension"], 0
    for piece in joined.operands:
        size = piece.shape[axis]
        if offset <= start[axis] and limit[axis] <= offset + size and start[axis] < limit[axis]:
            low, high = list(start), list(limit)
            low[axis], high[axis] = low[axis] - offset, high[axis] - offset
            return b.slice(piece, low, high, strides)
        offset += size
    return None


def _concatenate(op: Op, b: GraphBuilder) -> Value | None:
    pieces = [v for v in op.operands if v.type.size > 0]
    if len(pieces) == 1:
        return pieces[0]
    if pieces and len(pieces) < len(op.operands):
        return b.concatenate(pieces, op.attrs["dimension"])
    return _whole_of_slices(pieces, op.attrs["dimension"], op.result)


def _whole_of_slices(pieces: list[Value], axis: int, result: Value) -> Value | None:
    """x where the pieces are slices of x that lie side by side and together cover it."""
    slices = [s for s in (made_by(v, "slice") for v in pieces) if s is not None]
    if not slices or len(slices) < len(pieces):
        return None
    source, reached = slices[0].operands[0], 0
    if source.type != result.type:
        return None
    for piece in slices:
        unit = all(s == 1 for s in piece.attrs["strides"])
        if piece.operands[0] is not source or piece.attrs["start_indices"][axis] != reached or not unit:
            return None
        reached = piece.attrs["limit_indices"][axis]
    return source


def _pad(op: Op, b: GraphBuilder) -> Value | None:
    """No padding is nothing; padding all around a constant of the padding value is a larger constant."""
    x, value = op.operands
    if op.result.shape == x.shape and not any(op.attrs["edge_padding_low"]):
        return x
    number = splat(value)
    if number is not None and repr(splat(x)) == repr(number):
        return b.constant(number, x.dtype, op.result.shape)
    return None


def _reduce(op: Op, b: GraphBuilder) -> Value | None:
    """Reducing dimensions of size 1 only drops them."""
    (x,) = op.operands
    return b.reshape(x, op.result.shape) if op.result.type.size == x.type.size else None


def _convert(op: Op, b: GraphBuilder) -> Value | None:
    """Drop a convert to the same format; skip a first convert that lost nothing."""
    (x,), target = op.operands, op.attrs["dtype"]
    if x.dtype is target:
        return x
    inner = made_by(x, "convert")
    if x.dtype.is_float and target is uint32:
        return None  # negative floats become 0, negative integers wrap
    if inner and holds_exactly(inner.operands[0].dtype, x.dtype):
        return b.convert(inner.operands[0], target)
    return None
