# SPDX-License-Identifier: Apache-2.0
"""A bias of any values in the form that the fused kernels of attention take: see ADR 156.

softmax(s + b) is softmax(s + b - c) for any number c of each query. With c the largest b that a query sees, scores
with their bias are as large as scores are, whatever the bias is: they can be rounded where only their largest is
looked for, and the logarithm of the sum of exponentials keeps its digits. Forward, b - c is turned, [S, T]: the
kernel has keys on partitions where it takes exponentials.

Where c is so large that s + b is b in float32 (a mask of the least finite number, of a query that sees no key), all
keys with that bias weigh the same, as they do where the graph is written out: the scores of such queries are made
zero. Numbers that a table has are taken not to be masks, however large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnlab.compiler.analysis.strided import VIEW_OPS
from trnlab.compiler.rewriting.composites import spelled_out
from trnlab.compiler.rewriting.recognize.masks import KnownValues
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import rewrite, splat
from trnlab.kernels.attention_bias import sums_on_chip
from trnlab.kernels.attention_tiles import is_fused
from trnlab.numerics.dtypes import float32, int32

ABSORBING = 5e8  # beside numbers that large, scores are nothing in float32
LOWEST = -1e30  # a bias that low hides a key of a query that has another one
MODERATE = 1e4  # how far apart the numbers of a bias are that is not shifted for each query
_KEPT = frozenset({*VIEW_OPS, "convert", "add", "subtract", "negate"})


@dataclass(frozen=True, eq=False)
class _Shift:
    """A bias as kernels take it."""

    rows: Value  # [B or 1, H or 1, T or 1, S], float32
    turned: Value  # the same as [.., S, T or 1]
    top: Value  # what was subtracted [B or 1, H or 1, T or 1, 1], minus infinity where no key is seen
    heard: Value | None  # 0 for queries whose bias drowns their scores, else 1; None where there are none


@dataclass(frozen=True, eq=False)
class _Forward:
    """One attention whose bias was shifted: its operands as they were, and lse as it is."""

    given: tuple[Value, ...]
    lse: Value
    shift: _Shift


def shift_biases(graph: Graph) -> None:
    """Shift each bias of attention that the fused kernels would take then, forward and in the backward pass of the
    same graph; write out gradients of other biases."""
    writer = _Writer()
    if rewrite(graph, {"trn.attention": writer.forward, "trn.attention_backward": writer.backward}):
        remove_dead_ops(graph)


def _is_general(op: Op, plain: int, q: Value) -> bool:
    attrs = op.attrs
    fused = is_fused(q.shape[3], q.dtype, attrs["scale"])
    return len(op.operands) > plain and not attrs["hides"] and not attrs["shifted"] and fused


class _Writer:
    """What was shifted so far."""

    def __init__(self) -> None:
        self._known = KnownValues()
        self._shifts: dict[tuple[Value, bool, int], _Shift] = {}
        self._forward: dict[Value, _Forward] = {}  # by lse as it was given to others

    def forward(self, op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
        """Attention with its bias shifted."""
        q, k, v, *bias = op.operands
        if not _is_general(op, 3, q):
            return None
        rest, causal = self._parts(bias[0], op.attrs["causal"])
        shift = self._shift(b, rest, causal, q.shape[2])
        queries = _heard(b, q, shift)
        attrs = {**op.attrs, "shifted": True, "causal": causal}
        out, lse = b.append(op.name, (queries, k, v, shift.turned), attrs).results
        top = b.select(b.compare(shift.top, "EQ", -math.inf), 0.0, shift.top)
        whole = b.add(lse, b.reshape(b.broadcast_to(top, (*lse.shape, 1)), lse.shape))
        self._forward[whole] = _Forward(op.operands, lse, shift)
        return out, whole

    def backward(self, op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
        """Its gradients; of the scores too, one way or the other."""
        dout, q, k, v, out, lse, *bias = op.operands
        found = self._forward.get(lse)
        if not _is_general(op, 6, q) or found is None or found.given != (q, k, v, *bias):
            return spelled_out(op, b) if op.attrs["dbias"] else None
        rows, causal = found.shift.rows, self._parts(bias[0], op.attrs["causal"])[1]
        attrs = {**op.attrs, "shifted": True, "causal": causal}
        apart = op.attrs["dbias"] == "sum" and not sums_on_chip(q.shape[2], k.shape[2])
        if apart:
            attrs["dbias"] = "each"
        more = [] if found.shift.heard is None else [found.shift.heard]
        dq, dk, dv, *dbias = b.append(op.name, (dout, q, k, v, out, found.lse, rows, *more), attrs).results
        if apart:
            dbias = [b.reduce(dbias[0], [0], keepdims=True)]
        return dq, dk, dv, *dbias

    def _parts(self, bias: Value, causal: bool) -> tuple[Value, bool]:
        """A bias without the causal mask that it may have in it, and whether attention is causal."""
        op = bias.op
        if causal or op is None or op.name != "select":
            return bias, causal
        visible, number = self._known.get(op.operands[0]), splat(op.operands[2])
        pairs = bias.shape[2:]
        if visible is None or number is None or number > LOWEST or pairs[0] < pairs[1]:
            return bias, causal
        own = bool((visible == np.tri(pairs[0], pairs[1], dtype=np.bool_)).all())
        sees = number == -math.inf or _is_heard(op.operands[1], self._known, finite=True)
        return (op.operands[1], True) if own and sees else (bias, causal)

    def _shift(self, b: GraphBuilder, bias: Value, causal: bool, queries: int) -> _Shift:
        key = bias, causal, queries
        if key not in self._shifts:
            self._shifts[key] = _shifted(b, bias, causal, queries, self._known)
        return self._shifts[key]


def _shifted(b: GraphBuilder, bias: Value, causal: bool, queries: int, known: KnownValues) -> _Shift:
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
    if not _is_heard(bias, known):
        drowned = b.and_(b.compare(b.abs(top), "GE", ABSORBING), b.not_(none))
        heard = b.select(drowned, 0.0, b.constant(1.0, float32, top.shape))
    return _Shift(rows, b.transpose(rows, (0, 1, 3, 2)), top, heard)


def _is_moderate(array: np.ndarray[Any, Any]) -> bool:
    """Whether numbers are near enough to each other that a query's largest may be far below all queries'."""
    finite = array[array != -math.inf]
    return not finite.size or bool(finite.max() - finite.min() <= MODERATE)  # not where there is a NaN


def _is_heard(value: Value, known: KnownValues, finite: bool = False) -> bool:
    """Whether no number of a bias drowns scores, but minus infinity unless all are to be `finite`: all are known, or
    come from a table, or are sums of such."""
    op, array = value.op, known.get(value)
    if array is not None:
        return bool(((np.abs(array) < ABSORBING) | ((array == -math.inf) & (not finite))).all())
    if op is None:
        return False
    if op.name == "gather":
        return True
    if op.name == "select":
        return all(_is_heard(v, known, finite) for v in op.operands[1:])
    return op.name in _KEPT and all(_is_heard(v, known, finite) for v in op.operands)


def _heard(b: GraphBuilder, x: Value, shift: _Shift) -> Value:
    """Queries, zero for those that are not heard."""
    if shift.heard is None:
        return x
    return b.multiply(x, b.broadcast_to(b.convert(shift.heard, x.dtype), x.shape))
