# SPDX-License-Identifier: Apache-2.0
"""Elements of each row, picked by number, one as the losses of classifiers do.

An element is picked by going through all of its row, and adding up what a comparison leaves of it; where many are
picked of each row, GpSimdE gathers them. Where rows are long and in memory, as logits of a vocabulary are, a transfer
of one element brings it instead, and what is computed of the whole row on the way to the pick is computed of that
element.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from trnlab.compiler.analysis.strided import LOOK_OPS, view_of_origin
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.intervals import limits
from trnlab.graph.ir import Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS
from trnlab.graph.passes.rewrite import is_zero, made_by, recomputed, splat
from trnlab.kernels.sum_along import MOST_NUMBERS, MOST_ONE_HOT, one_hot_bytes
from trnlab.kernels.take_along import MOST_ROW
from trnlab.numerics.dtypes import bfloat16, float16, float32, int32

# Columns from which on elements come from memory: a pass over a row of fewer takes no longer than the transfers, of
# 2 us for 128 of them.
LONG_ROW = 4096
FEW, COMPARED = 8, 2048
"""Elements of each row from which on they are gathered, and comparisons with all places that they would take."""
SHARED, COMPARED_SUMS = 8, 1 << 22
"""Rows with the same numbers from which on their sums are a product, and comparisons of all numbers with all places,
below which they are compared."""
MANY_ROWS, MOST_COLUMNS, PARTITIONS = 1 << 14, 32, 128
"""Rows of a small table from which on its columns are gathered, and columns up to which: transfers of rows take 6 ns
each, GpSimdE as many elements of 128 partitions in 0.4 ns."""
WIDE = (bfloat16, float16, float32)
STEPS = 8  # ops between what is in memory and what is picked, at most
MAKERS = frozenset({"dot_general", "trn.dot_sum", "convolution"})  # whose results are in memory when others read them


def one_hot_sum(b: GraphBuilder, x: Value, dim: int) -> Value | None:
    """The sum along a dimension of a value in column ids[row], zeros elsewhere: the value, if there is such a column.

    Losses and embeddings, and their backward passes, spell this out over whole matrices.
    """
    turned = made_by(x, "negate")
    if turned is not None:
        total = one_hot_sum(b, turned.operands[0], dim)
        return b.negate(total) if total is not None else None
    if x.op is None or x.op.name != "select" or not is_zero(x.op.operands[2]):
        return None
    mask, chosen = x.op.operands[0].op, x.op.operands[1]
    if mask is None or mask.name != "compare" or mask.attrs["comparison_direction"] != "EQ":
        return None
    columns = [v for v in mask.operands if v.op and v.op.name == "iota" and v.op.attrs["iota_dimension"] == dim]
    ids = next((v for v in mask.operands if v not in columns), None)
    if not columns or ids is None or ids.dtype.is_float or x.shape[dim] > limits(ids.dtype).high:
        return None  # fractions are in no column, and narrow indices count round and round
    rows = _one_per_row(b, ids, dim)
    if rows is None:
        return None
    value = _of_rows(b, chosen, dim) or (_from_memory(b, chosen, rows) if dim == len(x.shape) - 1 else None)
    if value is None:
        return None
    inside = b.and_(b.compare(rows, "GE", 0), b.compare(rows, "LT", x.shape[dim]))
    return b.select(inside, value, b.constant(0, value.dtype, value.shape))


def take_along(b: GraphBuilder, x: Value, ids: Value) -> Value:
    """x [..., V] at ids [...] or [..., J], one element of each row or J: from memory, by the kernel that gathers, or
    what a comparison leaves of the row, combined so that every format is exact. Indices out of range take the nearest
    element.
    """
    ids, size = b.convert(ids, int32), x.shape[-1]
    many = len(ids.shape) == len(x.shape)
    if many and ids.shape[-1] == 1:
        return b.reshape(take_along(b, x, b.reshape(ids, ids.shape[:-1])), ids.shape)
    found = None if many else _from_memory(b, x, ids)
    if found is not None:
        return found
    if many and is_gathered(x, ids.shape[-1]):
        return b.op("trn.take_along", x, ids)
    if many and _has_long_rows(x):
        return _elements(b, x, ids)
    shape = (*ids.shape, size)
    wanted = b.broadcast_in_dim(b.clamp(0, ids, size - 1), shape, range(len(ids.shape)))
    if many:
        x = b.broadcast_in_dim(x, shape, (*range(len(x.shape) - 1), len(x.shape)))
    is_float = x.dtype.is_float
    rest = b.constant(-np.inf if is_float else 0, x.dtype, shape)  # a sum with zeros would take the sign of -0.0
    kept = b.select(b.compare(b.iota(shape, int32, len(shape) - 1), "EQ", wanted), x, rest)
    return b.reduce(kept, (len(shape) - 1,), "maximum" if is_float else "or")


def is_gathered(x: Value, count: int) -> bool:
    """Whether so many elements of each row are gathered by a kernel, whose time does not grow with the row's length,
    but which stores what it finds."""
    size = x.shape[-1]
    return count >= FEW and count * size >= COMPARED and size * x.dtype.itemsize <= MOST_ROW


def columns_of_rows(b: GraphBuilder, op: Op) -> Value | None:
    """Many rows [T, C] picked of a small table, and turned to [C, T], as biases of attention by distance are: of each
    column of the table, elements by number, which lie where they are wanted then. op: the transpose."""
    looked = op.operands[0]
    while (shaped := made_by(looked, "reshape")) is not None:
        looked = shaped.operands[0]
    picked, last = made_by(looked, "gather"), len(op.result.shape) - 1
    order = [d for d in op.attrs["permutation"] if op.operands[0].shape[d] > 1]
    if picked is None or not order or order != [last, *sorted(set(order) - {last})]:
        return None
    table, ids = picked.operands
    count, (size, *width) = ids.type.size, table.shape
    by_row = picked.attrs["slice_sizes"] == (1, *width) and picked.attrs["start_index_map"] == (0,)
    plain = by_row and not picked.attrs["operand_batching_dims"] and op.operands[0].shape[last] == width[0]
    if not plain or len(width) != 1 or ids.dtype is not int32 or count < MANY_ROWS or count % PARTITIONS:
        return None
    if size * table.dtype.itemsize > MOST_ROW or width[0] > MOST_COLUMNS:
        return None
    shape = (width[0], PARTITIONS, count // PARTITIONS)
    rows = b.broadcast_in_dim(b.transpose(table, (1, 0)), (*shape[:2], size), (0, 2))
    numbers = b.broadcast_in_dim(b.reshape(ids, shape[1:]), shape, (1, 2))
    return b.reshape(b.op("trn.take_along", rows, numbers), op.result.shape)


def spread_along(b: GraphBuilder, x: Value, ids: Value, places: int) -> Value:
    """[..., J, places] of x [..., J]: each element in the place that its number names, zeros elsewhere."""
    shape, last = (*x.shape, places), len(x.shape)
    numbers, spread = (b.broadcast_in_dim(v, shape, range(last)) for v in (ids, x))
    return b.select(b.compare(b.iota(shape, int32, last), "EQ", numbers), spread, b.constant(0.0, x.dtype, shape))


def is_summed(x: Value, ids: Value, places: int) -> bool:
    """Whether sums by number within rows are a product: enough rows have the same numbers, and a matrix of ones and
    zeros for them has room."""
    seen = view_of_origin(ids, LOOK_OPS)
    sharing = prod(n for n, step in zip(seen.shape, seen.strides) if not step)
    fits = x.shape[-1] <= MOST_NUMBERS and one_hot_bytes(x.shape[-1], places, x.dtype) <= MOST_ONE_HOT
    return fits and sharing >= SHARED and x.type.size * places >= COMPARED_SUMS and x.dtype in WIDE


def _one_per_row(b: GraphBuilder, x: Value, dim: int) -> Value | None:
    """A value that is the same along a dimension, without that."""
    op = made_by(x, "broadcast_in_dim")
    if op is None or not _repeats_along(op, dim):
        return None
    (source,) = op.operands
    kept = [(d, n) for d, n in zip(op.attrs["broadcast_dimensions"], source.shape) if d != dim]
    narrow = b.reshape(source, tuple(n for _, n in kept))
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    return b.broadcast_in_dim(narrow, shape, tuple(d - (d > dim) for d, _ in kept))


def _repeats_along(spread: Op, dim: int) -> bool:
    """Whether what a broadcast makes is the same along a dimension."""
    given = spread.operands[0].shape
    return all(d != dim or n == 1 for d, n in zip(spread.attrs["broadcast_dimensions"], given))


def _from_memory(b: GraphBuilder, x: Value, ids: Value) -> Value | None:
    """x at column ids[row], or the nearest, of each row, if it is computed element by element of long rows in memory
    and of values of whole rows. ids: int32."""
    if not _has_long_rows(x) or ids.dtype is not int32:
        return None
    source = _source(x, STEPS)
    if source is None:
        return None
    element = _elements(b, source, ids)

    leaf = partial(_of_rows, b, dim=len(x.shape) - 1)
    return recomputed(b, x, lambda op: OPS[op.name].kind == ELEMENTWISE, leaf, {source: element})


def _has_long_rows(x: Value) -> bool:
    """Whether an element of a row had better come by a transfer, which 32 bits can number."""
    return x.shape[-1] >= LONG_ROW and x.type.size <= limits(int32).high


def _elements(b: GraphBuilder, x: Value, ids: Value) -> Value:
    """x [..., V] at column ids [...] or [..., J] of each row, or the nearest, by transfers. ids: int32."""
    *lead, columns = x.shape
    begins = (np.arange(prod(lead), dtype=np.int32) * columns).reshape(*lead, *(1 for _ in ids.shape[len(lead) :]))
    flat = b.add(b.clamp(0, ids, columns - 1), b.broadcast_to(b.constant(begins), ids.shape))
    rows = b.take_rows(b.reshape(x, (x.type.size, 1)), b.reshape(flat, (ids.type.size,)))
    return b.reshape(rows, ids.shape)


def _of_rows(b: GraphBuilder, value: Value, dim: int) -> Value | None:
    """What a value is of each row, if it is the same along a dimension: a number, or numbers that are repeated."""
    number = splat(value)
    if number is None:
        return _one_per_row(b, value, dim)
    return b.constant(number, value.dtype, (*value.shape[:dim], *value.shape[dim + 1 :]))


def _source(x: Value, steps: int) -> Value | None:
    """The one value with all elements of x that lies in memory, and of which x is computed element by element. A
    product with numbers of columns, as a bias, lies there with them."""
    op, made = x.op, x
    while (shaped := made_by(made, "reshape")) is not None:
        made = shaped.operands[0]
    if made.op is None or made.op.name in MAKERS:
        return x
    if op is None or OPS[op.name].kind != ELEMENTWISE or not steps:
        return None
    spread = [made_by(v, "broadcast_in_dim") for v in op.operands]
    whole = [v for v, repeated in zip(op.operands, spread) if repeated is None and splat(v) is None]
    found = {_source(v, steps - 1) for v in whole}
    source = found.pop() if len(found) == 1 else None
    if all(repeated is None or _repeats_along(repeated, len(x.shape) - 1) for repeated in spread):
        return source
    return x if source is not None and source.op is not None else None
