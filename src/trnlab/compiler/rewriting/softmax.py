# SPDX-License-Identifier: Apache-2.0
"""The largest element of each row of a product and the sum of the exponentials, in one look at it.

A softmax spells them out one after the other: a loop over rows that are too long to stay on chip reads them for the
sum, and again for what the softmax is for. The product's epilogue takes both of each tile on its way out, the
exponentials of distances from the tile's own largest element.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import inf
from typing import NamedTuple

from trnlab.compiler.rewriting.moments import as_made, is_product, part_of
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import made_by, rewrite, splat
from trnlab.numerics.dtypes import float32

LEAST_ROW = 4096  # elements: shorter rows are loaded once and stay
MOST_STEPS = 6  # from the product to the rows


def join_softmax_statistics(graph: Graph) -> None:
    """Replace largest elements along rows of products, and sums of the exponentials of what is left of the rows
    without them; same meaning."""
    sums = {op.result: found for op in graph.ops if (found := _largest_of(op)) is not None}
    tops, joined = {found.result for found in sums.values()}, dict[Value, Value]()

    def reduction(op: Op, b: GraphBuilder) -> Value | None:
        if op.result in tops:
            x, attrs = as_made(op.operands[0]), {"dimensions": op.attrs["dimensions"]}
            joined[op.result] = b.append("trn.softmax_statistics", (x,), attrs).result
            return b.convert(part_of(b, joined[op.result], 0), op.result.dtype)
        found = sums.get(op.result)
        if found is None:
            return None
        top, total = (part_of(b, joined[found.result], i) for i in (0, 1))
        return b.select(b.op("is_finite", top), total, b.exponential(top)) if found.guarded else total

    if sums:
        rewrite(graph, {"exponential": partial(_over_sum, sums)})
        rewrite(graph, {"subtract": _gradient_of_logits, "add": _gradient_with_a_number})
        rewrite(graph, {"reduce": reduction})
        remove_dead_ops(graph)


class _Largest(NamedTuple):
    """The largest elements of rows, from which others are told. guarded: from zero where they are not finite, as
    JAX's logsumexp does; the sum is then that of the exponentials, infinity or nothing."""

    result: Value
    guarded: bool


def _largest_of(op: Op) -> _Largest | None:
    """The largest elements m of the rows of a product whose sums of exp(x - m) an op is."""
    grown = made_by(op.operands[0], "exponential") if op.name == "reduce" and op.attrs["kind"] == "add" else None
    apart = made_by(grown.operands[0], "subtract") if grown is not None else None
    repeated = _of_rows(apart.operands[1]) if apart is not None else None
    if apart is None or repeated is None:
        return None
    x, unguarded = apart.operands[0], _unguarded(repeated)
    top = made_by(unshaped(as_made(unguarded)), "reduce")
    if top is None or top.attrs["kind"] != "maximum" or as_made(top.operands[0]) is not as_made(x):
        return None
    last = len(x.shape) - 1
    along = op.attrs["dimensions"] == top.attrs["dimensions"] == (last,) and x.dtype is float32
    if not along or x.shape[last] < LEAST_ROW or not ends_product(x):
        return None
    return _Largest(top.result, unguarded is not repeated)


def _unguarded(value: Value) -> Value:
    """m, if a value is m where that is finite and else zero."""
    chosen = made_by(value, "select")
    finite = made_by(chosen.operands[0], "is_finite") if chosen is not None else None
    if chosen is None or finite is None or splat(chosen.operands[2]) != 0.0:
        return value
    return finite.operands[0] if chosen.operands[1] is finite.operands[0] else value


def _over_sum(sums: Mapping[Value, _Largest], op: Op, b: GraphBuilder) -> Value | None:
    """exp(y - log s) as exp(y) / s, for the y = x - m that s is the sum of exponentials of: ScalarE takes -m with the
    exponential, but no second number. s is 1 at least."""
    total = made_by(op.operands[0], "subtract")
    repeated = _of_rows(total.operands[1]) if total is not None else None
    log = made_by(repeated, "log") if repeated is not None else None
    if total is None or log is None:
        return None
    s = unshaped(log.operands[0])
    whole = s.op is not None and s in sums and not sums[s].guarded
    summed = made_by(s.op.operands[0], "exponential") if s.op is not None and whole else None
    if summed is None or summed.operands[0] is not total.operands[0]:
        return None
    share = b.broadcast_in_dim(b.divide(1.0, s), op.result.shape, range(len(s.shape)))
    return b.multiply(b.exponential(total.operands[0]), share)


def _gradient_of_logits(op: Op, b: GraphBuilder) -> Value | None:
    """The gradient of the logits, select(is_target, g, 0) - p g, as (select(is_target, 1, 0) - p) g: a number that is
    the same in all rows is multiplied in the same instruction as the comparison."""
    hit, weighted = made_by(op.operands[0], "select"), made_by(op.operands[1], "multiply")
    if hit is None or weighted is None or repr(splat(hit.operands[2])) != "0.0":
        return None
    given, taken = _of_rows(hit.operands[1]), _of_rows(weighted.operands[1])
    if given is None or taken is None or not _same_where_hit(given, taken, hit.operands[0]):
        return None
    one = b.select(hit.operands[0], b.constant(1.0, float32, op.result.shape), hit.operands[2])
    return b.multiply(b.subtract(one, weighted.operands[0]), weighted.operands[1])


def _gradient_with_a_number(op: Op, b: GraphBuilder) -> Value | None:
    """select(is_target, -g, 0) + p g of a number g, as JAX has it, as p g - select(is_target, g, 0): of a positive
    number the comparison and its factor are one instruction."""
    for hit, rest in (op.operands, op.operands[::-1]):
        chosen, weighted = made_by(hit, "select"), made_by(rest, "multiply")
        number = splat(chosen.operands[1]) if chosen is not None else None
        if chosen is None or weighted is None or number is None or not -inf < number < 0:
            continue
        grown = any(made_by(v, "exponential") is not None for v in weighted.operands)
        if grown and repr(splat(chosen.operands[2])) == "0.0":
            given = b.constant(-number, hit.dtype, hit.shape)
            return b.subtract(rest, b.select(chosen.operands[0], given, chosen.operands[2]))
    return None


def _same_where_hit(given: Value, taken: Value, hits: Value) -> bool:
    """Whether what the target of a row gets is what the row's other elements get, and none gets any where no element
    is the target: its number is then outside of the row."""
    if given is taken:
        return True
    kept, compared = made_by(taken, "select"), made_by(hits, "compare")
    inside = made_by(kept.operands[0], "and") if kept is not None else None
    if kept is None or compared is None or inside is None or splat(kept.operands[2]) != 0.0:
        return False
    columns, ids = made_by(compared.operands[0], "iota"), _of_rows(compared.operands[1])
    last = len(hits.shape) - 1
    found = {
        (bound.attrs["comparison_direction"], splat(bound.operands[1]))
        for value in inside.operands
        if (bound := made_by(value, "compare")) is not None and unshaped(bound.operands[0]) is ids
    }
    counted = columns is not None and columns.attrs["iota_dimension"] == last
    equal = compared.attrs["comparison_direction"] == "EQ" and unshaped(kept.operands[1]) is given
    return counted and equal and found == {("GE", 0), ("LT", hits.shape[last])}


def _of_rows(value: Value) -> Value | None:
    """The numbers, one a row, that a value repeats along its last dimension."""
    spread = made_by(value, "broadcast_in_dim")
    if spread is None:
        return None
    rows, given = value.shape[:-1], spread.operands[0].shape
    in_order = spread.attrs["broadcast_dimensions"] == tuple(range(len(given)))
    return unshaped(spread.operands[0]) if in_order and given in (rows, (*rows, 1)) else None


def unshaped(value: Value) -> Value:
    """The same numbers in the same order, in the shape that they were made in."""
    while (shaped := made_by(value, "reshape")) is not None:
        value = shaped.operands[0]
    return value


def ends_product(x: Value, steps: int = MOST_STEPS) -> bool:
    """Whether a value is a product of two matrices, or what a few elementwise ops make of one: a bias, a cap."""
    maker = x.op
    if maker is None or not steps:
        return False
    if OPS[maker.name].kind == ELEMENTWISE:
        return any(ends_product(operand, steps - 1) for operand in maker.operands)
    return is_product(x) and not maker.attrs.get("lhs_batching_dimensions")
