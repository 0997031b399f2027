# SPDX-License-Identifier: Apache-2.0
"""Which values of a graph are only another look at a value in memory, and how they look at it.

Reshape, transpose, slice and broadcast move nothing when a strided access pattern can express them; a value that
cannot be expressed forces its operand's view to be copied out first.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

import numpy as np

from trnlab.compiler.convolutions import is_weight_gradient
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import CALL, COLLECTIVE, ELEMENTWISE, OPS, REDUCE, WINDOW
from trnlab.program.strided import Strided, row_major

VIEW_OPS = frozenset({"reshape", "transpose", "slice", "broadcast_in_dim"})
BARRIER = "optimization_barrier"  # the same tensor; who reads it from here does not compute together with others
LOOK_OPS = VIEW_OPS | {BARRIER}
TURNED = 1 << 16  # elements from which on a turned view is copied for loops over rows


class ValueView(Strided[Value]):
    """A value as a strided view of `base`, another value, which is contiguous in memory."""

    __slots__ = ()

    @property
    def is_contiguous(self) -> bool:
        """Whether it is all of its base, in the order in which that lies in memory."""
        return self.offset == 0 and self.size == self.base.type.size and self.is_packed


def identity(value: Value) -> ValueView:
    """A value in memory seen as itself.

    An iota lies in memory as 0, 1, 2, ...: it strides along one dimension only. A number filled into a shape lies
    there once.
    """
    strides = row_major(value.shape)
    if value.op is not None and value.op.name == "iota":
        strides = tuple(int(axis == value.op.attrs["iota_dimension"]) for axis in range(len(value.shape)))
    elif is_filled(value):
        strides = (0,) * len(value.shape)
    return ValueView(value, 0, value.shape, strides)


def is_filled(value: Value) -> bool:
    """Whether a value is a constant given as one number."""
    return (
        value.op is not None and value.op.name == "constant" and not isinstance(value.op.attrs["value"], np.ndarray)
    )


def as_view(op: Op, source: ValueView) -> ValueView | None:
    """The result of view op `op` whose operand is `source`; None when it cannot be a view."""
    if op.name == BARRIER:
        return source
    if op.name == "reshape":
        return source.reshape(op.result.shape)
    if op.name == "transpose":
        return source.permute(*op.attrs["permutation"])
    if op.name == "slice":
        bounds = zip(op.attrs["start_indices"], op.attrs["limit_indices"], op.attrs["strides"])
        return source[tuple(slice(*one) for one in bounds)]
    assert op.name == "broadcast_in_dim"
    strides_out = [0] * len(op.result.shape)
    for axis, dim in enumerate(op.attrs["broadcast_dimensions"]):
        if source.shape[axis] != 1 or op.result.shape[dim] == 1:
            strides_out[dim] = source.strides[axis]
    return source.like(source.offset, op.result.shape, tuple(strides_out))


def view_of_origin(value: Value, through: Collection[str] = ("reshape", "transpose")) -> ValueView:
    """A value as a look at the last one before it whose elements lie in an order that these strides can say.

    through: the ops that are looked through, of LOOK_OPS.
    """
    op = value.op
    if op is None or op.name not in through:
        return identity(value)
    seen = as_view(op, view_of_origin(op.operands[0], through)) or as_view(op, identity(op.operands[0]))
    return identity(value) if seen is None else seen


def split_rows(seen: ValueView, rows: int, cols: int) -> tuple[ValueView, int] | None:
    """A look as rows and columns: in a shape whose leading dimensions, as many as the number says, make the rows.

    None when no dimension can be made to end where the rows do, and the elements are not one stride apart either.
    """
    for dims in range(len(seen.shape) + 1):
        if prod(seen.shape[:dims]) == rows and prod(seen.shape[dims:]) == cols:
            return (seen, dims) if dims else (seen.expand(0, 1), 1)
    for dim, count in enumerate(seen.shape):
        before = prod(seen.shape[:dim])
        inner = before * count // rows if rows % before == 0 and before * count % rows == 0 else 0
        if inner and inner < count:
            return seen.split(dim, count // inner, inner), dim + 1
    plain = seen.reshape((rows, cols))
    return None if plain is None else (plain, 1)


def resolve_views(graph: Graph) -> tuple[dict[Value, ValueView], set[Value]]:
    """Every view op's result as a look at a root, and the view results that must be copied out to memory.

    Copies are values whose reader's reshape cannot look through them, views that are outputs of the graph, and views
    that code from elsewhere reads, which wants them whole. Where a value with a layout of its own cannot be looked at
    as its reader needs it, it gives the layout up.
    """
    layouts = _layouts(graph)
    while True:
        looks, copies, stuck = _one_pass(graph, layouts)
        if not stuck:
            return looks, copies
        assert stuck <= layouts.keys(), "compute_roots has been run"
        for value in stuck:
            del layouts[value]


def compute_roots(graph: Graph) -> None:
    """Compute what lies in memory in no order that views of it can follow: an iota reshaped across dimensions."""
    layouts = _layouts(graph)
    for value in _one_pass(graph, layouts)[2] - layouts.keys():
        assert value.op is not None, "inputs lie row by row"
        copy = Op("convert", (value,), {"dtype": value.dtype}, (), value.op.loc, value.op.origin)
        copy.results = (Value(value.type, copy, 0, value.name),)
        for op in graph.ops:
            op.operands = tuple(copy.results[0] if v is value else v for v in op.operands)
        graph.ops.insert(graph.ops.index(value.op) + 1, copy)


def _one_pass(graph: Graph, layouts: dict[Value, ValueView]) -> tuple[dict[Value, ValueView], set[Value], set[Value]]:
    """Looks, copies, and the values that are neither views nor lie as their reader needs them.

    A value that is copied for one reader is the root of those that follow; those before look at what it looks at.
    """
    called, scanned = _called(graph), _scanned(graph)
    looks = dict(layouts)
    copies = {v for v in graph.outputs if v.op is not None and v.op.name in LOOK_OPS}
    stuck: set[Value] = set()
    for op in graph.ops:
        if op.name not in LOOK_OPS:
            continue
        operand = op.operands[0]
        seen = as_view(op, looks.get(operand) or identity(operand))
        if seen is None and operand.op is not None and operand.op.name in LOOK_OPS:
            copies.add(operand)
            looks.pop(operand, None)
            seen = as_view(op, identity(operand))
        if seen is None:
            stuck.add(operand)
        elif op.result in copies:
            continue
        elif (op.result in called and not seen.is_contiguous) or (op.result in scanned and _is_turned(seen)):
            copies.add(op.result)
        else:
            looks[op.result] = seen
    return looks, copies, stuck


def _scanned(graph: Graph) -> set[Value]:
    """Large values of floats that loops over rows, gathers and sums within rows read, element by element, images, of
    which convolutions load runs of pixels, and what attention adds to scores, which it may read for each element of a
    batch."""
    kinds = (ELEMENTWISE, REDUCE)
    read = {v for op in graph.ops if OPS[op.name].kind in kinds for v in op.operands}
    read |= {op.operands[0] for op in graph.ops if op.name in ("trn.take_along", "trn.sum_along")}
    for op in graph.ops:
        if op.name == "convolution":
            read |= {*op.operands[: 2 if is_weight_gradient(op) else 1]}
        elif OPS[op.name].kind == WINDOW:
            read |= {*op.operands}
    biases = {v for op in graph.ops if op.name == "trn.attention" for v in op.operands[3:]}
    return biases | {v for v in read if v.type.size >= TURNED and v.dtype.is_float and v.dtype.itemsize > 1}


def _is_turned(seen: ValueView) -> bool:
    """Whether neighbours of a view lie apart in memory: a transfer moves each element by itself, for as long as it
    would a line of memory, where the PE array turns a copy."""
    inner = next((s for n, s in zip(reversed(seen.shape), reversed(seen.strides)) if n > 1), 1)
    return inner > 1 and any(s == 1 and n > 1 for n, s in zip(seen.shape, seen.strides))


def _called(graph: Graph) -> set[Value]:
    """Values that code from elsewhere, or a collective, reads: whole, in the order of their dimensions."""
    return {v for op in graph.ops if OPS[op.name].kind in (CALL, COLLECTIVE) for v in op.operands}


def _layouts(graph: Graph) -> dict[Value, ValueView]:
    """Values that lie in memory in another order than their dimensions'.

    Attention's [B, H, T, D] lies as [B, T, H, D]: what comes before and after has all heads of a token side by side;
    so has its memory, and rows are long. The gradient of a convolution's weight is computed as [C, O, ...] and wanted
    as [O, C, ...] throughout.
    """
    found = {}
    outputs, readers = {*graph.outputs, *_called(graph)}, graph.users()
    for op in graph.ops:
        for value in op.results if op.name.startswith("trn.attention") else ():
            if len(value.shape) == 4 and value.index < 3 and value not in outputs:
                _, heads, tokens, size = value.shape
                found[value] = ValueView(value, 0, value.shape, (tokens * heads * size, size, heads * size, 1))
        if op.name == "convolution" and op.result not in outputs and all(map(_swaps, readers[op.result])):
            first, second, *space = op.result.shape
            inner = row_major((second, first, *space))
            found[op.result] = ValueView(op.result, 0, op.result.shape, (inner[1], inner[0], *inner[2:]))
    return found


def _swaps(op: Op) -> bool:
    """Whether an op exchanges the first two dimensions."""
    return op.name == "transpose" and op.attrs["permutation"][:2] == (1, 0)
