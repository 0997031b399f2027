# SPDX-License-Identifier: Apache-2.0
"""A bias of attention as kernels take it: without what it repeats along the batch, without the causal mask that it
has in it, and shifted (`biases`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.compiler.analysis.strided import VIEW_OPS
from trnlab.compiler.rewriting.recognize.masks import KnownValues
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS
from trnlab.graph.passes.rewrite import splat
from trnlab.numerics.dtypes import float32, int32

ABSORBING = 5e8  # beside numbers that large, scores are nothing in float32
LOWEST = -1e30  # a bias that low hides a key of a query that has another one
MODERATE = 1e4  # how far apart the numbers of a bias are that is not shifted for each query
_KEPT = frozenset({*VIEW_OPS, "convert", "add", "subtract", "negate"})


@dataclass(frozen=True, eq=False)
class SplitBias:
    """A bias as kernels take it. N: 1, or a divisor of B, which it is repeated along."""

    rows: Value  # [N, H or 1, T or 1, S], float32
    top: Value  # what was subtracted [N, H or 1, T or 1, 1], minus infinity where no key is seen
    heard: Value | None  # 0 for queries whose bias drowns their scores, else 1; None where there are none


def shifted(b: GraphBuilder, bias: Value, causal: bool, queries: int, known: KnownValues) -> SplitBias:
    """The bias less the largest that each query sees."""
    array, wide = known.get(bias), b.convert(bias, float32)
    if causal and wide.shape[2] == 1 and not (array is not None and _is_moderate(array)):
        wide = b.broadcast_to(wide, (*wide.shape[:2], queries, wide.shape[3]))
    visible = None
    if causal and wide.shape[2] > 1:
        pairs = wide.shape[2:]
        visible = b.compare(b.iota(pairs, int32, 0), "GE", b.iota(pairs, int32, 1))
        visible = b.broadcast_to(visible, wide.shape)
        wide = b.select(visible, wide, -math.inf)
    top = b.reduce(wide, [3], "maximum", keepdims=True)
    none = b.compare(top, "EQ", -math.inf)
    less = b.subtract(wide, b.broadcast_to(b.select(none, 0.0, top), wide.shape))
    rows = less if visible is None else b.select(visible, less, -math.inf)
    heard = None
    if not is_heard(bias, known):
        drowned = b.and_(b.compare(b.abs(top), "GE", ABSORBING), b.not_(none))
        heard = b.select(drowned, 0.0, b.constant(1.0, float32, top.shape))
    return SplitBias(rows, top, heard)


def without_causality(bias: Value, causal: bool, known: KnownValues) -> tuple[Value, bool]:
    """A bias without the causal mask that it may have in it, and whether attention is causal."""
    op = bias.op
    if causal or op is None or op.name != "select":
        return bias, causal
    visible, number = known.get(op.operands[0]), splat(op.operands[2])
    pairs = bias.shape[2:]
    if visible is None or number is None or number > LOWEST or pairs[0] < pairs[1]:
        return bias, causal
    own = bool((visible == np.tri(pairs[0], pairs[1], dtype=np.bool_)).all())
    sees = number == -math.inf or is_heard(op.operands[1], known, finite=True)
    return (op.operands[1], True) if own and sees else (bias, causal)


def _is_moderate(array: np.ndarray[Any, Any]) -> bool:
    """Whether numbers are near enough to each other that a query's largest may be far below all queries'."""
    finite = array[array != -math.inf]
    return not finite.size or bool(finite.max() - finite.min() <= MODERATE)  # not where there is a NaN


def is_heard(value: Value, known: KnownValues, finite: bool = False) -> bool:
    """Whether no number of a bias drowns scores, but minus infinity and NaN unless all are to be `finite`: all are
    known, or come from a table, or are sums of such."""
    pending, seen = [value], set[Value]()
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        op, array = one.op, known.get(one)
        if array is not None:
            beyond = (array == -math.inf) | np.isnan(array)  # whatever the score, it is that
            if not ((np.abs(array) < ABSORBING) | (beyond & (not finite))).all():
                return False
        elif op is not None and (op.name == "select" or op.name in _KEPT):
            pending.extend(op.operands[op.name == "select" :])
        elif op is None or op.name != "gather":
            return False
    return True


# -- what is repeated along the batch -------------------------------------------------------------------------------


class Once:
    """Values [B, ...] without what they repeat: [N, ...], N a divisor of B."""

    def __init__(self) -> None:
        self._found: dict[Value, Value] = {}
        self._rules: dict[str, Callable[[GraphBuilder, Op], Value | None]] = {
            "broadcast_in_dim": self._broadcast,
            "reshape": self._reshape,
            "reduce": self._reduce,
            "constant": self._constant,
        }

    def of(self, b: GraphBuilder, value: Value) -> Value:
        """A value without what it repeats; itself where that is nothing."""
        if value not in self._found:
            op, made = value.op, None
            if op is not None and value.shape and value.shape[0] > 1:
                rule = self._rules.get(op.name, self._elementwise if OPS[op.name].kind == ELEMENTWISE else None)
                made = rule(b, op) if rule is not None else None
            self._found[value] = value if made is None else made
        return self._found[value]

    def _elementwise(self, b: GraphBuilder, op: Op) -> Value | None:
        parts = [self.of(b, v) for v in op.operands]
        period = max(v.shape[0] for v in parts if v.shape)
        if period == op.result.shape[0] or any(v.shape and v.shape[0] not in (1, period) for v in parts):
            return None
        whole = [b.broadcast_to(v, (period, *v.shape[1:])) if v.shape else v for v in parts]
        return b.append(op.name, whole, op.attrs).result

    def _constant(self, b: GraphBuilder, op: Op) -> Value | None:
        number = splat(op.result)
        return None if number is None else b.constant(number, op.result.dtype, (1, *op.result.shape[1:]))

    def _reduce(self, b: GraphBuilder, op: Op) -> Value | None:
        """A reduction of other dimensions than the batch."""
        less = self.of(b, op.operands[0])
        if 0 in op.attrs["dimensions"] or less is op.operands[0]:
            return None
        return b.append(op.name, [less], op.attrs).result

    def _broadcast(self, b: GraphBuilder, op: Op) -> Value | None:
        operand, dims = op.operands[0], op.attrs["broadcast_dimensions"]
        period = 1
        if 0 in dims and operand.shape[0] > 1:
            operand = self.of(b, operand)
            period = operand.shape[0]
            if period == op.result.shape[0]:
                return None
        return b.broadcast_in_dim(operand, (period, *op.result.shape[1:]), dims)

    def _reshape(self, b: GraphBuilder, op: Op) -> Value | None:
        """The form of [B, ...], or of [B / N, N, ...] that is repeated."""
        operand, shape = op.operands[0], op.result.shape
        less = self.of(b, operand)
        if less.shape[:1] == operand.shape[:1] or not operand.shape[0]:
            return None
        if operand.shape[0] == shape[0]:
            return b.reshape(less, (less.shape[0], *shape[1:]))
        if less.shape[0] == 1 and shape[0] % operand.shape[0] == 0:
            return b.reshape(less, (shape[0] // operand.shape[0], *shape[1:]))
        return None


def repeated(b: GraphBuilder, value: Value, batch: int) -> Value:
    """The way back: a value [N, ...] as [B, ...], or as it is where N is 1."""
    period, *rest = value.shape
    if period in (1, batch):
        return value
    whole = b.broadcast_in_dim(value, (batch // period, period, *rest), range(1, len(rest) + 2))
    return b.reshape(whole, (batch, *rest))
