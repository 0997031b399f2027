# SPDX-License-Identifier: Apache-2.0
"""Gradients of matrix products: products again, put together so that none of them is transposed where it need not."""

from __future__ import annotations

from collections.abc import Sequence

from trnlab.graph.grad.context import BackwardPass, Gradients
from trnlab.graph.ir import Op, Value


def dot_general(p: BackwardPass, op: Op, d: Value) -> Gradients:
    """d [batch, rest of lhs, rest of rhs] with each operand in turn, over what the other one has alone."""
    lhs, rhs = op.operands
    a = op.attrs
    batch = tuple(a["lhs_batching_dimensions"]), tuple(a["rhs_batching_dimensions"])
    contract = tuple(a["lhs_contracting_dimensions"]), tuple(a["rhs_contracting_dimensions"])
    rest = [_rest(x, *dims) for x, dims in ((lhs, (batch[0], contract[0])), (rhs, (batch[1], contract[1])))]
    count = len(batch[0])
    left = tuple(range(count, count + len(rest[0])))
    right = tuple(range(count + len(rest[0]), len(d.shape)))
    of_lhs = of_rhs = None
    if p.needs(lhs):
        sides = _Sides(batch[0], rest[0], contract[0], batch[1], rest[1], contract[1], right)
        of_lhs = _product(p, op, d, lhs, rhs, sides)
    if p.needs(rhs):
        sides = _Sides(batch[1], rest[1], contract[1], batch[0], rest[0], contract[0], left)
        of_rhs = _product(p, op, d, rhs, lhs, sides)
    return [of_lhs, of_rhs]


class _Sides:
    """Dimensions of the operand whose gradient is made: batch, its own, contracted; the same of the other one; and
    those of d that only the other one has."""

    def __init__(self, *dims: tuple[int, ...]) -> None:
        self.batch, self.own, self.contract, self.other_batch, self.other, self.other_contract, self.of_d = dims


def _rest(x: Value, batch: Sequence[int], contract: Sequence[int]) -> tuple[int, ...]:
    return tuple(i for i in range(len(x.shape)) if i not in batch and i not in contract)


def _product(p: BackwardPass, op: Op, d: Value, x: Value, other: Value, sides: _Sides) -> Value:
    """The gradient of x, in the order of its dimensions."""
    b, other = p.b, p.saved(other)
    ends = tuple(range(len(sides.batch)))
    # The contracted dimensions of the other operand stay, in its order; where x has them depends on which one it met.
    met = sorted(zip(sides.other_contract, sides.contract))
    remaining = tuple(dim for _, dim in met)
    natural = (*sides.batch, *sides.own, *remaining)
    turned = (*sides.batch, *remaining, *sides.own)
    keep = {"dt": p.form(x), "precision": op.attrs["precision"], "asked": op.attrs["asked"]}
    whole = tuple(range(len(x.shape)))
    if turned == whole and natural != whole:
        return b.dot_general(other, d, (sides.other, sides.of_d), (sides.other_batch, ends), **keep)
    made = b.dot_general(d, other, (sides.of_d, sides.other), (ends, sides.other_batch), **keep)
    return made if natural == whole else b.transpose(made, [natural.index(i) for i in whole])
