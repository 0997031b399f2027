# SPDX-License-Identifier: Apache-2.0
"""Ops in the forms that fusion and the lowerings know: the rest of the compiler sees no others.

reduce     over trailing dimensions, or sums over leading ones; never over everything at once when that is long
scatter    into zeros
gather     of rows
dot        without a batch, of matrices: what several dimensions number is one
transpose  that changes the order in memory: several that together do not are a reshape
"""

from __future__ import annotations

from math import prod

from trnlab.compiler.analysis.strided import LOOK_OPS, view_of_origin
from trnlab.compiler.rewriting.picks import columns_of_rows, is_summed, one_hot_sum, spread_along, take_along
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.loops import Body
from trnlab.graph.ops import CALL, COLLECTIVE, DOT, OPS
from trnlab.graph.passes.rewrite import is_zero, rewrite
from trnlab.numerics.dtypes import float32

LONG = 4096  # elements of one row beyond which a reduction of everything is spread over partitions
SPREAD = 1 << 16  # elements of a product's operand from which on it is written to memory
FEW = 32  # arrays whose sum is made of additions


def canonicalize(graph: Graph) -> None:
    """Bring ops into their canonical forms; same meaning."""
    rewrite(
        graph,
        {
            "reduce": _reduce,
            "scatter": _scatter,
            "gather": _gather,
            "trn.sum_along": _sum_along,
            "dot_general": _dot,
            "transpose": _transpose,
        },
    )


def _transpose(op: Op, b: GraphBuilder) -> Value | None:
    columns = columns_of_rows(b, op)
    if columns is not None:
        return columns
    seen = view_of_origin(op.result)
    if seen.base is op.result or not seen.is_contiguous:
        return None
    return b.reshape(seen.base, op.result.shape)


# -- reduce ---------------------------------------------------------------------------------------------------------


def _reduce(op: Op, b: GraphBuilder) -> Value:
    (x,) = op.operands
    kind: str = op.attrs["kind"]
    dims = tuple(d for d in op.attrs["dimensions"] if x.shape[d] > 1)
    total = one_hot_sum(b, x, dims[0]) if kind == "add" and len(dims) == 1 else None
    if total is None:
        total = _reduce_dims(b, x, dims, kind)
    return b.reshape(total, op.result.shape) if total.shape != op.result.shape else total


def _reduce_dims(b: GraphBuilder, x: Value, dims: tuple[int, ...], kind: str) -> Value:
    """Reduce over dimensions longer than one."""
    rank = len(x.shape)
    if not dims:
        return x
    kept = [d for d in range(rank) if d not in dims]
    if all(x.shape[d] == 1 for d in kept):
        return reduce_all(b, b.reshape(x, (x.type.size,)), kind)
    if sorted(dims) == list(range(rank - len(dims), rank)):
        return b.reduce(x, dims, kind)
    if kind != "add":
        return _reduce_dims(b, b.transpose(x, (*kept, *sorted(dims))), tuple(range(len(kept), rank)), kind)
    if sorted(dims) != list(range(len(dims))):
        return _reduce_dims(b, b.transpose(x, (*sorted(dims), *kept)), tuple(range(len(dims))), kind)
    return _sum_of_few(b, x, len(dims)) or b.reduce(x, dims, kind)


def _sum_of_few(b: GraphBuilder, x: Value, leading: int) -> Value | None:
    """The sum over leading dimensions of a few arrays of many rows, as of positions over a batch, by additions with
    rows on partitions. The PE array would sum up to 128 arrays at once, but leave all sums in one row.
    """
    count, rows = prod(x.shape[:leading]), prod(x.shape[leading:-1])
    if not x.dtype.is_float or count > FEW or len(x.shape) < leading + 2 or rows < 2 * count:
        return None
    terms = b.reshape(x, (count, *x.shape[leading:]))
    sums = [b.convert(b.reshape(b.slice_dim(terms, 0, i, i + 1), terms.shape[1:]), float32) for i in range(count)]
    while len(sums) > 1:  # in pairs: errors grow with the number of levels only
        sums = [b.add(*sums[i : i + 2]) if i + 1 < len(sums) else sums[i] for i in range(0, len(sums), 2)]
    return b.convert(sums[0], x.dtype)


def reduce_all(b: GraphBuilder, x: Value, kind: str) -> Value:
    """The reduction of a vector to one number, a long one's in two steps."""
    (count,) = x.shape
    if count > LONG:
        parts = next((p for p in range(128, 1, -1) if count % p == 0), 1)
        if parts > 1:
            x = b.reduce(b.reshape(x, (parts, count // parts)), (1,), kind)
    return b.reduce(x, (0,), kind)


# -- products -------------------------------------------------------------------------------------------------------


def _dot(op: Op, b: GraphBuilder) -> Value | None:
    """The product of two matrices, where reshapes alone make operands such: a token's place in its sequence and the
    sequence's in the batch, or heads and their elements, are then one dimension."""
    attrs = op.attrs
    if attrs["lhs_batching_dimensions"] or attrs["lhs_mx"] or attrs["rhs_mx"]:
        return None
    if all(len(v.shape) == 2 for v in op.operands):
        return None
    looks = [_matrix(v, attrs[f"{side}_contracting_dimensions"]) for v, side in zip(op.operands, ("lhs", "rhs"))]
    if any(look is None for look in looks):
        return None
    operands, contracted = [], []
    for value, look in zip(op.operands, looks):
        assert look is not None
        order, shape, contracts = look
        operands.append(b.reshape(b.transpose(value, order) if order else value, shape))
        contracted.append((contracts,))
    dims = {"lhs_contracting_dimensions": contracted[0], "rhs_contracting_dimensions": contracted[1]}
    return b.reshape(b.op("dot_general", *operands, **{**attrs, **dims}), op.result.shape)


def _matrix(value: Value, contracted: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, int], int] | None:
    """(permutation, shape, which dimension is contracted) of an operand as a matrix, or None.

    Only attention's results are permuted: in memory, all heads of a token are side by side.
    """
    dims = tuple(range(len(value.shape)))
    tokens = value.op is not None and value.op.name.startswith("trn.attention") and len(dims) == 4
    free = tuple(d for d in dims if d not in contracted)
    if not free or not contracted:
        return None
    for order in (dims, (0, 2, 1, 3)) if tokens else (dims,):
        for parts, at in (((contracted, free), 0), ((free, contracted), 1)):
            if (*parts[0], *parts[1]) == order:
                rows, cols = (prod(value.shape[d] for d in part) for part in parts)
                return (() if order == dims else order), (rows, cols), at
    return None


# -- rows by index --------------------------------------------------------------------------------------------------


def _scatter(op: Op, b: GraphBuilder) -> Value | None:
    into, ids, update = op.operands
    if is_zero(into):
        return None
    zeros = b.broadcast_in_dim(b.constant(0.0, into.dtype), into.shape, ())
    summed = b.append("scatter", (zeros, ids, update), op.attrs).results[0]
    return b.binary("add", into, summed)


def _gather(op: Op, b: GraphBuilder) -> Value | None:
    return take_along(b, *op.operands) if op.attrs["operand_batching_dims"] else None


def _sum_along(op: Op, b: GraphBuilder) -> Value | None:
    x, ids = op.operands
    if is_summed(x, ids, op.attrs["places"]):
        return None
    spread = spread_along(b, b.convert(x, float32), ids, op.attrs["places"])
    return b.convert(_reduce_dims(b, spread, (len(x.shape) - 1,), "add"), op.attrs["dtype"])


# -- code from elsewhere --------------------------------------------------------------------------------------------


def own_operands(graph: Graph) -> None:
    """Copy what a custom_call or a loop overwrites, and numbers filled into a shape, which do not lie in memory; and
    what a product would load as one number again and again, a transfer for each."""
    rules = {name: _own_operands for name, d in OPS.items() if d.kind in (CALL, COLLECTIVE)}
    rewrite(graph, rules | {name: _spread_operands for name, d in OPS.items() if d.kind == DOT})


def _spread_operands(op: Op, b: GraphBuilder) -> None:
    op.operands = tuple(b.op("convert", v, dtype=v.dtype) if _is_one_number(v) else v for v in op.operands)


def _is_one_number(value: Value) -> bool:
    """Whether a large value is one that was computed, everywhere."""
    return value.type.size >= SPREAD and _looked_at(value).type.size == 1


def _own_operands(op: Op, b: GraphBuilder) -> None:
    overwritten = set(updates_of(op).values()) if OPS[op.name].kind == CALL else set()
    read = {r.operand for r in op.attrs["body"].reads} if op.name == "loop" else {*range(len(op.operands))}
    op.operands = tuple(
        b.op("convert", v, dtype=v.dtype) if i in overwritten or (i in read and _is_filled(v)) else v
        for i, v in enumerate(op.operands)
    )


def updates_of(op: Op) -> dict[int, int]:
    """Results of a custom_call or a loop that begin as an operand, and which: results of a loop that its rounds do
    not overwrite as a whole."""
    if op.name == "custom_call":
        return dict(op.attrs["callee"].updates)
    body: Body = op.attrs["body"]
    parts = [(i, w.operand) for i, w in enumerate(body.writes) if not body.filled(i, op.results[i].type.size)]
    return {i: operand for i, operand in parts if operand is not None}


def _is_filled(value: Value) -> bool:
    """Whether a value is a constant or an index, seen through views."""
    op = _looked_at(value).op
    return op is not None and op.name in ("constant", "iota")


def _looked_at(value: Value) -> Value:
    """What a value is a view of."""
    while value.op is not None and value.op.name in LOOK_OPS:
        value = value.op.operands[0]
    return value


# -- outputs --------------------------------------------------------------------------------------------------------


def compute_outputs(graph: Graph) -> None:
    """Copy outputs that no op computes, and all but the first of outputs that are the same value.

    An input that is returned as its own update stays as it is.
    """
    seen: set[Value] = set()
    for index, value in enumerate(graph.outputs):
        kept = index in graph.aliases and value is graph.inputs[graph.aliases[index]]
        given = value.op is None or value.op.name in ("constant", "iota")
        if not kept and value.type.size and (given or value in seen):
            copy = Op("convert", (value,), {"dtype": value.dtype}, ())
            result = Value(value.type, copy, 0, value.name)
            copy.results = (result,)
            graph.ops.append(copy)
            graph.outputs[index] = result
        seen.add(graph.outputs[index])
