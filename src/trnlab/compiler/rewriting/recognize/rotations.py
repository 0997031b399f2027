# SPDX-License-Identifier: Apache-2.0
"""Rotary positions (Su et al. 2021, arXiv:2104.09864), in which the halves of a head are exchanged and one negated.

Written out, that is a concatenation of slices, which would be made in memory. As one op it is an instruction for
each half of a tile, in the loop or the epilogue that computes what stands beside it. Heads are turned in the order in
which the product before has them, where they were transposed behind it: x cos + rotate(x) sin of a transposed x is
the same of x, transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product
from typing import NamedTuple

from trnlab.compiler.rewriting.recognize.pair_rotations import is_half, is_stack, of_neighbours, pair_rotation
from trnlab.compiler.rewriting.recognize.partial_rotations import joined_pads, partial_rotation, widened
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import made_by, recomputed, rewrite, splat

LONGEST = 512  # of rows that are turned: several of them lie in the columns of a loop, which is cut between them
STEPS = 4  # ops from the sum back to what was transposed
FOLLOWING = frozenset({"add", "subtract", "multiply", "convert", "negate", "trn.rotate_half"})


def recognize_rotations(graph: Graph) -> bool:
    """Replace rotations that are written out; whether there were any."""
    rewrite(graph, {"add": joined_pads})
    if not rewrite(graph, {"concatenate": _rotation}):
        return False
    rewrite(graph, dict.fromkeys(("add", "subtract"), _before_transpose))
    remove_dead_ops(graph)
    return True


def _rotation(op: Op, b: GraphBuilder) -> Value | None:
    """(-b, a) of rows (a, b), or (b, -a), which is what leads back; of halves, or of pairs."""
    *_, columns = op.result.shape
    if not op.result.dtype.is_float or len(op.operands) != 2:
        return None
    if is_stack(op) and _may_turn(2 * op.result.shape[-2]):
        return pair_rotation(op, b) or _of_products(op, b, pairs=True)
    if op.attrs["dimension"] != len(op.result.shape) - 1 or not _may_turn(columns):
        return None
    return partial_rotation(op, b, columns) or _of_rows(op, b) or _of_products(op, b, pairs=False)


def _may_turn(columns: int) -> bool:
    return 4 <= columns <= LONGEST and columns % 2 == 0


def _of_rows(op: Op, b: GraphBuilder) -> Value | None:
    """Halves of whole rows."""
    first, second = op.operands
    turned, returned = made_by(first, "negate"), made_by(second, "negate")
    if turned is not None and (x := _of_halves(b, turned.operands[0], second)) is not None:
        return b.op("trn.rotate_half", x)
    if returned is not None and (x := _of_halves(b, first, returned.operands[0])) is not None:
        return b.negate(b.op("trn.rotate_half", x))
    return None


class _Term(NamedTuple):
    """A product of half a row, or less it."""

    minus: bool
    half: Value
    factor: Value


def _of_products(op: Op, b: GraphBuilder, *, pairs: bool) -> Value | None:
    """x cos + rotate(x) sin, where each half is written out: (a cos - b sin, b cos + a sin), or back. pairs: they
    are stacked, a and b being neighbours."""
    whole, twice = (of_neighbours, _each_twice) if pairs else (_of_halves, _twice)
    terms = [_terms(_behind(v, v.shape[:-1]), is_half) if pairs else _terms(v, _is_slice) for v in op.operands]
    for low, high in product(*(permutations(found) for found in terms)) if all(terms) else ():
        (kept, turned), (same, other) = low, high
        matches = turned.half is same.half and other.half is kept.half
        factors = kept.factor is same.factor and turned.factor is other.factor
        signs = not kept.minus and not same.minus and turned.minus is not other.minus
        x = whole(b, same.half, kept.half) if matches and factors and signs else None
        if x is None:
            continue
        cosine, sine = (twice(b, each, x.shape) for each in (kept.factor, turned.factor))
        if cosine is not None and sine is not None:
            rotated = b.multiply(b.op("trn.rotate_half", x, pairs=pairs), sine)
            found = b.binary("add" if turned.minus else "subtract", b.multiply(x, cosine), rotated)
            return b.reshape(found, op.result.shape)
    return None


def _is_slice(x: Value) -> bool:
    return made_by(x, "slice") is not None


def _terms(x: Value, is_half: Callable[[Value], bool]) -> list[_Term]:
    """The two products whose sum or difference x is, each with half a row first; none where it is another."""
    op, found = x.op, list[_Term]()
    if op is None or op.name not in ("add", "subtract"):
        return []
    for operand, minus in zip(op.operands, (False, op.name == "subtract")):
        made = made_by(operand, "multiply")
        for half, factor in (made.operands, made.operands[::-1]) if made is not None else ():
            negated = made_by(half, "negate")
            half = half if negated is None else negated.operands[0]
            if is_half(half):
                found.append(_Term(minus is not (negated is not None), half, factor))
                break
    return found if len(found) == 2 else []


def _behind(x: Value, shape: tuple[int, ...]) -> Value:
    """What a reshape made x of, where it had this shape; else x."""
    made = made_by(x, "reshape")
    return made.operands[0] if made is not None and made.operands[0].shape == shape else x


def _twice(b: GraphBuilder, x: Value, shape: tuple[int, ...]) -> Value | None:
    """What varies along half a row, of a whole row whose halves are alike; None for more than a broadcast."""
    return widened(b, x, shape, lambda source: b.concatenate([source, source], len(source.shape) - 1))


def _each_twice(b: GraphBuilder, x: Value, shape: tuple[int, ...]) -> Value | None:
    """What varies along pairs, of a whole row whose neighbours are alike; None for more than a broadcast."""

    def doubled(source: Value) -> Value:
        *lead, count = source.shape
        return b.reshape(b.broadcast_in_dim(source, (*lead, count, 2), range(len(lead) + 1)), (*lead, 2 * count))

    return widened(b, x, shape, doubled)


def _of_halves(b: GraphBuilder, high: Value, low: Value) -> Value | None:
    """The value whose second and first half along the last dimension these are."""
    upper, lower = made_by(high, "slice"), made_by(low, "slice")
    if upper is None or lower is None or upper.operands[0] is not lower.operands[0]:
        return None
    (x,), half = upper.operands, high.shape[-1]
    whole = [(0, n, 1) for n in x.shape[:-1]]
    found = [_bounds(upper) == [*whole, (half, 2 * half, 1)], _bounds(lower) == [*whole, (0, half, 1)]]
    return x if all(found) and x.shape[-1] == 2 * half else None


def _bounds(op: Op) -> list[tuple[int, int, int]]:
    """First, end and step of each dimension of a slice."""
    return list(zip(*(op.attrs[name] for name in ("start_indices", "limit_indices", "strides"))))


def _before_transpose(op: Op, b: GraphBuilder) -> Value | None:
    """A sum with a rotation in it, computed before the transpose of what is rotated."""
    order = _order(op.result, STEPS)
    if order is None:
        return None
    found = recomputed(b, op.result, lambda op: op.name in FOLLOWING, lambda x: _before(b, x, order), {})
    return None if found is None else b.transpose(found, order)


def _order(x: Value, steps: int) -> tuple[int, ...] | None:
    """The permutation behind which a rotation among the ops that make x stands, if rows stay rows."""
    op = x.op
    if op is None or not steps or op.name not in FOLLOWING:
        return None
    if op.name == "trn.rotate_half":
        moved = made_by(op.operands[0], "transpose")
        order = None if moved is None else tuple(moved.attrs["permutation"])
        return order if order is not None and order[-1] == len(order) - 1 else None
    return next((found for v in op.operands if (found := _order(v, steps - 1)) is not None), None)


def _before(b: GraphBuilder, x: Value, order: tuple[int, ...]) -> Value | None:
    """The value whose transpose by `order` is x, of a transpose, a number or what is broadcast; else None."""
    op = x.op
    if op is None or len(x.shape) != len(order):
        return None
    shape = tuple(x.shape[order.index(d)] for d in range(len(order)))
    number = splat(x)
    if number is not None:
        return b.constant(number, x.dtype, shape)
    if op.name == "transpose":
        return op.operands[0] if tuple(op.attrs["permutation"]) == order else None
    if op.name != "broadcast_in_dim":
        return None
    dims = [order[d] for d in op.attrs["broadcast_dimensions"]]
    return b.broadcast_in_dim(op.operands[0], shape, dims) if dims == sorted(dims) else None
