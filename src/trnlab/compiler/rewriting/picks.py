# SPDX-License-Identifier: Apache-2.0
"""One element of each row, picked by a number, as the losses of classifiers do.

No engine gathers along the free dimension: an element is picked by going through all of its row, and adding up what a
comparison leaves of it. Where rows are long and in memory, as logits of a vocabulary are, a transfer of one element
brings it instead, and what is computed of the whole row on the way to the pick is computed of that element.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.intervals import limits
from trnlab.graph.ir import Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS
from trnlab.graph.passes.rewrite import is_zero, made_by, recomputed, splat
from trnlab.numerics.dtypes import int32

# Columns from which on elements come from memory: a pass over a row of fewer takes no longer than the transfers, of
# 2 us for 128 of them.
LONG_ROW = 4096
STEPS = 8  # ops between what is in memory and what is picked, at most
MAKERS = frozenset({"dot_general", "trn.dot_sum", "convolution"})  # whose results are in memory when others read them


def one_hot_sum(b: GraphBuilder, x: Value) -> Value | None:
    """The sum along rows of a value in column ids[row], zeros elsewhere: the value, if there is such a column.

    Losses and embeddings, and their backward passes, spell this out over whole matrices.
    """
    turned = made_by(x, "negate")
    if turned is not None:
        total = one_hot_sum(b, turned.operands[0])
        return b.negate(total) if total is not None else None
    if x.op is None or x.op.name != "select" or not is_zero(x.op.operands[2]):
        return None
    mask, chosen = x.op.operands[0].op, x.op.operands[1]
    if mask is None or mask.name != "compare" or mask.attrs["comparison_direction"] != "EQ":
        return None
    last = len(x.shape) - 1
    columns = [v for v in mask.operands if v.op and v.op.name == "iota" and v.op.attrs["iota_dimension"] == last]
    ids = next((v for v in mask.operands if v not in columns), None)
    if not columns or ids is None or ids.dtype.is_float or x.shape[last] > limits(ids.dtype).high:
        return None  # fractions are in no column, and narrow indices count round and round
    rows = _one_per_row(b, ids)
    if rows is None:
        return None
    value = _of_rows(b, chosen) or _from_memory(b, chosen, rows)
    if value is None:
        return None
    inside = b.and_(b.compare(rows, "GE", 0), b.compare(rows, "LT", x.shape[last]))
    return b.select(inside, value, b.constant(0, value.dtype, value.shape))


def take_along(b: GraphBuilder, x: Value, ids: Value) -> Value:
    """One element of each row: from memory, or the row, zero elsewhere, summed; of integers, which a sum rounds,
    combined by "or". Indices out of range take the nearest element.
    """
    last = len(x.shape) - 1
    ids = b.convert(ids, int32)
    found = _from_memory(b, x, ids)
    if found is not None:
        return found
    place = b.iota(x.shape, int32, last)
    wanted = b.broadcast_in_dim(b.clamp(0, ids, x.shape[last] - 1), x.shape, range(last))
    kept = b.select(b.compare(place, "EQ", wanted), x, b.constant(0, x.dtype, x.shape))
    return b.reduce(kept, (last,), "add" if x.dtype.is_float else "or")


def _one_per_row(b: GraphBuilder, x: Value) -> Value | None:
    """A value that is the same along the last dimension, without it."""
    op, last = made_by(x, "broadcast_in_dim"), len(x.shape) - 1
    if op is None or not _repeats_along_rows(op):
        return None
    (source,) = op.operands
    kept = [(d, n) for d, n in zip(op.attrs["broadcast_dimensions"], source.shape) if d != last]
    narrow = b.reshape(source, tuple(n for _, n in kept))
    return b.broadcast_in_dim(narrow, x.shape[:last], tuple(d for d, _ in kept))


def _repeats_along_rows(spread: Op) -> bool:
    """Whether what a broadcast makes is the same along its last dimension."""
    last, given = len(spread.result.shape) - 1, spread.operands[0].shape
    return all(d != last or n == 1 for d, n in zip(spread.attrs["broadcast_dimensions"], given))


def _from_memory(b: GraphBuilder, x: Value, ids: Value) -> Value | None:
    """x at column ids[row], or the nearest, of each row, if it is computed element by element of long rows in memory
    and of values of whole rows. ids: int32."""
    *lead, columns = x.shape
    if columns < LONG_ROW or x.type.size > limits(int32).high or ids.dtype is not int32:
        return None
    source = _source(x, STEPS)
    if source is None:
        return None
    begins = b.constant((np.arange(prod(lead), dtype=np.int32) * columns).reshape(lead))
    flat = b.reshape(b.add(b.clamp(0, ids, columns - 1), begins), (prod(lead),))
    element = b.reshape(b.take_rows(b.reshape(source, (source.type.size, 1)), flat), lead)

    leaf = partial(_of_rows, b)
    return recomputed(b, x, lambda op: OPS[op.name].kind == ELEMENTWISE, leaf, {source: element})


def _of_rows(b: GraphBuilder, value: Value) -> Value | None:
    """What a value is of each row, if it is the same along the row: a number, or numbers that are repeated."""
    number = splat(value)
    return _one_per_row(b, value) if number is None else b.constant(number, value.dtype, value.shape[:-1])


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
    if all(repeated is None or _repeats_along_rows(repeated) for repeated in spread):
        return source
    return x if source is not None and source.op is not None else None
