# SPDX-License-Identifier: Apache-2.0
"""What is added to scores, or hides them, in the terms of `trn.attention`: a causal mask, a bias, and what becomes
of a query that sees no key. A bias that does more than hide is added to that of the masks.

Written out, such a query gives NaN when hidden scores are minus infinity, and the average of all values when they
are a large negative number, and then it learns nothing. The op gives zero. So where a mask is known, every query
must see a key; where it depends on data, such queries are made to see all keys, their scores made equal, or their
results NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trnlab.compiler.rewriting.recognize.axes import Dim, Dims, arrange, narrow
from trnlab.compiler.rewriting.recognize.facts import HIDDEN, ScoreStep, Steps
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import CALL, OPS
from trnlab.graph.passes.rewrite import splat
from trnlab.numerics.dtypes import bool_, float32, int32

Array = np.ndarray[Any, Any]
ABSORBING = -1e30  # that low, a number plus a score is the number
_MOST_ELEMENTS = 1 << 24  # of a mask that is worked out while compiling
_MOST_OPS = 100


@dataclass(frozen=True)
class Hiding:
    """The masks of one attention."""

    # causal, known: the causal mask; any other that is the same in every step, true where visible, [T, S] or more
    causal: bool = False
    known: Array | None = None
    steps: Steps = ()  # otherwise, masks that depend on data, in all of which `number` stands for hidden scores
    number: float | None = None
    added: Steps = ()  # any other bias


class KnownValues:
    """Values that no input has a part in, worked out once per graph."""

    def __init__(self) -> None:
        self._found: dict[Value, Array | None] = {}

    def get(self, value: Value) -> Array | None:
        """The value, or None where it depends on data or is too large."""
        if value not in self._found:
            ops = _made_from(value)
            if ops is None:
                self._found[value] = None
            else:
                self._found[value] = interpret(Graph("mask", [], ops, [value], ["mask"]), [])[0]
        return self._found[value]


def _made_from(value: Value) -> list[Op] | None:
    """All ops that make a value, in order."""
    found: dict[Op, None] = {}
    pending = [(value, False)]
    while pending:
        v, done = pending.pop()
        op = v.op
        if op is None or OPS[op.name].kind == CALL or v.type.size > _MOST_ELEMENTS or len(found) > _MOST_OPS:
            return None
        if done:
            found[op] = None
        elif op not in found:
            pending.append((v, True))
            pending.extend((x, False) for x in op.operands)
    return list(found)


# -- what the steps come to ------------------------------------------------------------------------------------------


def hiding_of(steps: Steps, groups: Sequence[Dim], known: KnownValues) -> Hiding | None:
    """The masks that the steps make; None for those that attention does not have. groups: axes of batch, heads,
    queries, keys."""
    found = [_as_hide(step, known) for step in steps if step.kind != "scale"]
    first = next((i for i, step in enumerate(found) if step.kind == "hide"), len(found))
    if any(step.kind == "add" for step in found[first:]) and found[first].number > ABSORBING:
        return None  # hidden scores are not all the number that hides then
    hiding = _hiding(tuple(step for step in found if step.kind == "hide"), groups, known)
    return None if hiding is None else replace(hiding, added=tuple(step for step in found if step.kind == "add"))


def _hiding(steps: Steps, groups: Sequence[Dim], known: KnownValues) -> Hiding | None:
    if not steps:
        return Hiding()
    masks = [known.get(s.value) if s.kind == "hide" and s.value is not None else None for s in steps]
    visible = [np.asarray(m == s.visible) for m, s in zip(masks, steps) if m is not None]
    if len(visible) == len(steps):
        return _of_known(visible, steps, groups)
    numbers = {step.number for step in steps}
    if all(step.kind == "hide" for step in steps) and len(numbers) == 1:
        return Hiding(steps=steps, number=numbers.pop())
    return None


def _of_known(visible: Sequence[Array], steps: Steps, groups: Sequence[Dim]) -> Hiding | None:
    whole: Array = np.ones((1, 1, 1, 1), bool)
    for mask, step in zip(visible, steps):
        whole = whole & _arranged(mask, step.dims, groups)
    for axis in (0, 1, 2):
        first = whole.take([0], axis)
        whole = first if (whole == first).all() else whole
    t, s = (math.prod(axis.size for axis in group) for group in groups[2:])
    if not whole.any(-1).all():
        return None
    if whole.all():
        return Hiding()
    if whole.shape[:2] == (1, 1) and np.array_equal(np.broadcast_to(whole[0, 0], (t, s)), np.tri(t, s, dtype=bool)):
        return Hiding(causal=True)
    return Hiding(known=np.broadcast_to(whole, (*whole.shape[:3], s)))


def _arranged(array: Array, dims: Dims, groups: Sequence[Dim]) -> Array:
    """As `arrange`, of an array."""
    b = GraphBuilder("mask")
    given = b.input("mask", array.shape, bool_)
    b.output(arrange(b, given, dims, groups))
    return interpret(b.graph, [array])[0].astype(bool)


def _as_hide(step: ScoreStep, known: KnownValues) -> ScoreStep:
    """A bias that is zero or a large negative number hides."""
    if step.kind != "add" or step.number != 1 or step.value is None:
        return step
    op = step.value.op
    if op is not None and op.name == "select":
        for i in (1, 2):
            zero, number = splat(op.operands[i]), splat(op.operands[3 - i])
            if zero == 0 and number is not None and number <= ABSORBING:
                mask, dims, negated = narrow(op.operands[0], step.dims)
                return ScoreStep("hide", float(number), mask, (i == 1) != negated, dims)
    array = known.get(step.value)
    if array is None or not ((array == 0) | (array <= HIDDEN)).all() or (array == 0).all():
        return step
    b = GraphBuilder("mask")
    mask = b.constant(np.asarray(array == 0), bool_, array.shape)
    return replace(step, kind="hide", number=float(array.max(initial=-math.inf, where=array != 0)), value=mask)


# -- as values -------------------------------------------------------------------------------------------------------


def mask_values(b: GraphBuilder, hiding: Hiding, groups: Sequence[Dim]) -> tuple[Value | None, Value | None]:
    """The bias [B or 1, H or 1, T or 1, S], and which queries see a key, [B or 1, H or 1, T or 1, 1]: None where
    there is none, and where all do."""
    hidden, alive = _masks(b, hiding, groups)
    if not hiding.added:
        return hidden, alive
    bias = _added(b, hiding, groups)
    if alive is not None:  # whose bias goes with their scores
        bias = b.select(b.broadcast_to(alive, np.broadcast_shapes(alive.shape, bias.shape)), bias, 0.0)
    return _undefined(b, bias if hidden is None else b.add(bias, hidden), hiding.causal), alive


def _undefined(b: GraphBuilder, bias: Value, causal: bool) -> Value:
    """NaN for a query all of whose scores are minus infinity, as what is written out gives."""
    shape, seen = bias.shape, bias
    if causal and shape[2] > 1:
        visible = b.compare(b.iota(shape[2:], int32, 0), "GE", b.iota(shape[2:], int32, 1))
        seen = b.select(b.broadcast_to(visible, shape), bias, -math.inf)
    none = b.compare(b.reduce(seen, [3], "maximum", keepdims=True), "EQ", -math.inf)
    return b.select(b.broadcast_to(none, shape), math.nan, bias)


def _added(b: GraphBuilder, hiding: Hiding, groups: Sequence[Dim]) -> Value:
    """The sum of what is added, in float32."""
    total = None
    for step in hiding.added:
        assert step.value is not None
        own = b.convert(arrange(b, step.value, step.dims, groups), float32)
        own = own if step.number == 1 else b.multiply(own, step.number)
        total = own if total is None else b.add(total, own)
    assert total is not None
    return b.broadcast_to(total, (*total.shape[:3], math.prod(axis.size for axis in groups[3])))


def _masks(b: GraphBuilder, hiding: Hiding, groups: Sequence[Dim]) -> tuple[Value | None, Value | None]:
    keys = math.prod(axis.size for axis in groups[3])
    if hiding.known is not None:
        visible = b.constant(np.ascontiguousarray(hiding.known), bool_, hiding.known.shape)
        return b.select(visible, 0.0, b.constant(-math.inf, float32, visible.shape)), None
    if not hiding.steps:
        return None, None
    return _hidden(b, hiding, groups, keys)


def _hidden(b: GraphBuilder, hiding: Hiding, groups: Sequence[Dim], keys: int) -> tuple[Value, Value]:
    """For masks of truth values: where hidden scores are a number, a query that sees no key sees all."""
    visible = None
    for step in hiding.steps:
        assert step.value is not None
        own = arrange(b, step.value, step.dims, groups)
        own = own if step.visible else b.not_(own)
        visible = own if visible is None else b.and_(visible, own)
    assert visible is not None
    visible = b.broadcast_to(visible, (*visible.shape[:3], keys))
    alive = b.reduce(visible, [3], "or", keepdims=True)
    if hiding.number != -math.inf:
        visible = b.or_(visible, b.not_(alive))
    return b.select(visible, 0.0, b.constant(-math.inf, float32, visible.shape)), alive
