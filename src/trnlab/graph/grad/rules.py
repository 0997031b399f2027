# SPDX-License-Identifier: Apache-2.0
"""How each op passes a gradient back: from the gradients of its results to those of its operands.

A rule is given the backward pass, the op and what arrives at each of its results (None: nothing). It returns one
gradient for each operand, None where there is none. Sums are made in float32; the pass rounds them to the operand's
format. Where an op has a corner, the gradient is PyTorch's: zero at the corner of a maximum with a number, half to
each of two values that are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.grad.context import BackwardPass, Gradients, no_derivative
from trnlab.graph.grad.convolutions import convolution
from trnlab.graph.grad.products import dot_general
from trnlab.graph.ir import Op, Value
from trnlab.numerics.dtypes import float32

Rule = Callable[..., Gradients]
RULES: dict[str, Rule] = {"dot_general": dot_general, "convolution": convolution}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of some ops."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _unary(name: str) -> Callable[[Callable[[GraphBuilder, Value, Value], Value]], Rule]:
    """From a function of the builder, the operand and the result that gives the derivative there."""

    def register(slope: Callable[[GraphBuilder, Value, Value], Value]) -> Rule:
        def back(p: BackwardPass, op: Op, d: Value) -> Gradients:
            return [p.b.multiply(d, slope(p.b, p.saved(op.operands[0]), op.result))]

        return rule(name)(back)

    return register


# -- one operand --------------------------------------------------------------------------------------------------
_unary("exponential")(lambda b, x, y: y)
_unary("exponential_minus_one")(lambda b, x, y: b.add(y, 1.0))
_unary("log")(lambda b, x, y: b.divide(1.0, x))
_unary("log_plus_one")(lambda b, x, y: b.divide(1.0, b.add(x, 1.0)))
_unary("sqrt")(lambda b, x, y: b.divide(0.5, y))
_unary("rsqrt")(lambda b, x, y: b.multiply(b.multiply(y, b.multiply(y, y)), -0.5))
_unary("tanh")(lambda b, x, y: b.subtract(1.0, b.multiply(y, y)))
_unary("logistic")(lambda b, x, y: b.multiply(y, b.subtract(1.0, y)))
_unary("sine")(lambda b, x, y: b.cosine(x))
_unary("cosine")(lambda b, x, y: b.negate(b.sine(x)))
_unary("atan")(lambda b, x, y: b.divide(1.0, b.add(b.multiply(x, x), 1.0)))
_unary("erf")(lambda b, x, y: b.multiply(b.exponential(b.negate(b.multiply(x, x))), 2 / math.sqrt(math.pi)))
_unary("abs")(lambda b, x, y: b.sign(x))


@_unary("trn.silu")
def _silu(b: GraphBuilder, x: Value, y: Value) -> Value:
    """Written out as PyTorch has it for devices without a kernel of their own (`math_silu_backward`)."""
    part = b.logistic(x)
    return b.multiply(part, b.add(b.multiply(x, b.subtract(1.0, part)), 1.0))


@rule("trn.gelu")
def _gelu(p: BackwardPass, op: Op, d: Value) -> Gradients:
    return [p.b.multiply(d, p.b.gelu_dx(op.operands[0], op.attrs["approximate"]))]


@rule("negate")
def _negate(p: BackwardPass, op: Op, d: Value) -> Gradients:
    return [p.b.negate(d)]


@rule("convert", "optimization_barrier")
def _same(p: BackwardPass, op: Op, d: Value) -> Gradients:
    return [d]


@rule("sign", "floor", "ceil", "round_nearest_even")
def _flat(p: BackwardPass, op: Op, d: Value) -> Gradients:
    return [p.b.constant(0.0, p.form(op.operands[0]), op.operands[0].shape)]


# -- two and three operands ---------------------------------------------------------------------------------------
@rule("add")
def _add(p: BackwardPass, op: Op, d: Value) -> Gradients:
    return [d, d]


@rule("subtract")
def _subtract(p: BackwardPass, op: Op, d: Value) -> Gradients:
    return [d, p.b.negate(d) if p.needs(op.operands[1]) else None]


@rule("multiply")
def _multiply(p: BackwardPass, op: Op, d: Value) -> Gradients:
    x, y = op.operands
    return [p.b.multiply(d, p.saved(other)) if p.needs(one) else None for one, other in ((x, y), (y, x))]


@rule("divide")
def _divide(p: BackwardPass, op: Op, d: Value) -> Gradients:
    b, (x, y) = p.b, op.operands
    part = b.divide(d, p.saved(y))
    return [part if p.needs(x) else None, b.negate(b.multiply(part, op.result)) if p.needs(y) else None]


@rule("power")
def _power(p: BackwardPass, op: Op, d: Value) -> Gradients:
    b, (x, y) = p.b, op.operands
    of_base = b.multiply(d, b.multiply(y, b.power(x, b.subtract(y, 1.0)))) if p.needs(x) else None
    return [of_base, b.multiply(d, b.multiply(op.result, b.log(x))) if p.needs(y) else None]


@rule("maximum", "minimum")
def _extreme(p: BackwardPass, op: Op, d: Value) -> Gradients:
    b, (x, y) = p.b, op.operands
    chosen = "GT" if op.name == "maximum" else "LT"
    if not (p.needs(x) and p.needs(y)):
        return [
            b.select(b.compare(one, chosen, other), d, 0.0) if p.needs(one) else None
            for one, other in ((x, y), (y, x))
        ]
    shared = b.select(b.compare(x, "EQ", y), b.multiply(d, 0.5), 0.0)
    return [b.select(b.compare(one, chosen, other), d, shared) for one, other in ((x, y), (y, x))]


@rule("select")
def _select(p: BackwardPass, op: Op, d: Value) -> Gradients:
    b, (which, x, y) = p.b, op.operands
    return [
        None,
        b.select(which, d, 0.0) if p.needs(x) else None,
        b.select(which, 0.0, d) if p.needs(y) else None,
    ]


@rule("clamp")
def _clamp(p: BackwardPass, op: Op, d: Value) -> Gradients:
    """The gradient of the middle operand; bounds are taken for numbers."""
    b, (low, x, high) = p.b, op.operands
    low, high = (b.broadcast_to(bound, x.shape) for bound in (low, high))
    inside = b.and_(b.compare(x, "GE", low), b.compare(x, "LE", high))
    return [None, b.select(inside, d, 0.0), None]


# -- shapes -------------------------------------------------------------------------------------------------------
@rule("reshape")
def _reshape(p: BackwardPass, op: Op, d: Value) -> Gradients:
    return [p.b.reshape(d, op.operands[0].shape)]


@rule("transpose")
def _transpose(p: BackwardPass, op: Op, d: Value) -> Gradients:
    order = op.attrs["permutation"]
    return [p.b.transpose(d, sorted(range(len(order)), key=order.__getitem__))]


@rule("broadcast_in_dim")
def _broadcast(p: BackwardPass, op: Op, d: Value) -> Gradients:
    """Sums over what was stretched."""
    (x,), dims = op.operands, op.attrs["broadcast_dimensions"]
    stretched = [at for at, n in zip(dims, x.shape) if n == 1 and d.shape[at] != 1]
    summed = [at for at in range(len(d.shape)) if at not in dims] + stretched
    total = p.b.reduce(p.b.convert(d, float32), summed) if summed else d
    kept = [at for at in range(len(d.shape)) if at not in summed]
    order = [kept.index(at) for at in dims if at in kept]
    if order != sorted(order):
        total = p.b.transpose(total, order)
    return [p.b.reshape(total, x.shape)]


@rule("slice")
def _slice(p: BackwardPass, op: Op, d: Value) -> Gradients:
    (x,), a = op.operands, op.attrs
    starts, limits, strides = a["start_indices"], a["limit_indices"], a["strides"]
    cut = [at for at, n in enumerate(x.shape) if (starts[at], limits[at], strides[at]) != (0, n, 1)]
    if len(cut) == 1 and strides[cut[0]] == 1:
        p.give_run(x, cut[0], starts[cut[0]], limits[cut[0]], d)
        return [None]
    reach = [start + (n - 1) * stride + 1 for start, n, stride in zip(starts, d.shape, strides)]
    high = [n - end for n, end in zip(x.shape, reach)]
    return [p.b.pad(d, starts, high, [stride - 1 for stride in strides])]


@rule("concatenate")
def _concatenate(p: BackwardPass, op: Op, d: Value) -> Gradients:
    found, start, dimension = list[Value | None](), 0, op.attrs["dimension"]
    for x in op.operands:
        limit = start + x.shape[dimension]
        found.append(p.b.slice_dim(d, dimension, start, limit) if p.needs(x) else None)
        start = limit
    return found


@rule("pad")
def _pad(p: BackwardPass, op: Op, d: Value) -> Gradients:
    """The gradient of what is padded; what is filled in is taken for a number."""
    (x, _), a = op.operands, op.attrs
    low, high, inside = a["edge_padding_low"], a["edge_padding_high"], a["interior_padding"]
    whole = p.b.pad(d, [-min(n, 0) for n in low], [-min(n, 0) for n in high])
    starts = [max(n, 0) for n in low]
    limits = [start + (n - 1) * (gap + 1) + 1 if n else start for start, n, gap in zip(starts, x.shape, inside)]
    return [p.b.slice(whole, starts, limits, [gap + 1 for gap in inside]), None]


@rule("reduce")
def _reduce(p: BackwardPass, op: Op, d: Value) -> Gradients:
    """Gradients of sums, and of extremes, which share a gradient among all elements that are one."""
    b, (x,), kind = p.b, op.operands, op.attrs["kind"]
    kept = [at for at in range(len(x.shape)) if at not in op.attrs["dimensions"]]
    spread = b.broadcast_in_dim(d, x.shape, kept)
    if kind == "add":
        return [spread]
    if kind == "multiply":
        return [b.multiply(spread, b.divide(b.broadcast_in_dim(op.result, x.shape, kept), x))]
    hit = b.compare(x, "EQ", b.broadcast_in_dim(op.result, x.shape, kept))
    ones = b.convert(hit, float32)
    share = b.divide(
        spread, b.convert(b.broadcast_in_dim(b.reduce(ones, op.attrs["dimensions"]), x.shape, kept), x.dtype)
    )
    return [b.select(hit, share, 0.0)]


# -- rows, windows, attention, ranks ------------------------------------------------------------------------------
@rule("gather")
def _gather(p: BackwardPass, op: Op, d: Value) -> Gradients:
    """Rows of a table [V, C], as `GraphBuilder.take_rows` reads them: those of one id add up in float32."""
    (table, ids), a = op.operands, op.attrs
    rows = (len(ids.shape),), (0,), (0,), len(ids.shape)
    names = "offset_dims", "collapsed_slice_dims", "start_index_map", "index_vector_dim"
    if tuple(a[name] for name in names) != rows or len(table.shape) != 2 or a["operand_batching_dims"]:
        raise no_derivative(op, "a gather of anything but rows of a table")
    return [p.b.scatter_add_rows(ids, p.b.convert(d, float32), table.shape[0]), None]


@rule("trn.max_pool")
def _max_pool(p: BackwardPass, op: Op, d: Value) -> Gradients:
    return [p.b.op("trn.max_pool_backward", d, op.operands[0], **op.attrs)]


@rule("trn.avg_pool")
def _avg_pool(p: BackwardPass, op: Op, d: Value) -> Gradients:
    return [p.b.op("trn.avg_pool_backward", d, **op.attrs, size=op.operands[0].shape[-2:])]


@rule("trn.avg_pool_backward")
def _avg_pool_backward(p: BackwardPass, op: Op, d: Value) -> Gradients:
    return [p.b.op("trn.avg_pool", d, **{name: value for name, value in op.attrs.items() if name != "size"})]


@rule("trn.resize")
def _resize(p: BackwardPass, op: Op, d: Value) -> Gradients:
    return [p.b.op("trn.resize_backward", d, **op.attrs, size=op.operands[0].shape[-2:])]


@rule("trn.resize_backward")
def _resize_backward(p: BackwardPass, op: Op, d: Value) -> Gradients:
    return [p.b.op("trn.resize", d, **{name: value for name, value in op.attrs.items() if name != "size"})]


@rule("trn.attention")
def _attention(p: BackwardPass, op: Op, d: Value | None, of_sums: Value | None = None) -> Gradients:
    """Gradients of queries, keys and values, and of the bias unless it is known to hide; the sums have none."""
    if d is None or of_sums is not None:
        raise no_derivative(op, "the second result of attention")
    operands = (d, *op.operands[:3], *op.results, *op.operands[3:])
    if len(op.operands) == 3 or op.attrs["hides"]:
        return [*p.b.append("trn.attention_backward", operands, op.attrs).results, *([None] * (len(op.operands) - 3))]
    return [*p.b.attention_bias_backward(operands, causal=op.attrs["causal"], scale=op.attrs["scale"])]


@rule("all_gather")
def _all_gather(p: BackwardPass, op: Op, *given: Value | None) -> Gradients:
    """Each rank's part of the sum, which is made in the format of the operand's gradient."""
    a = op.attrs
    arriving = [None if d is None else p.b.convert(d, p.form(x)) for d, x in zip(given, op.operands)]
    attrs = {key: a[key] for key in ("replica_groups", "group_size", "purpose")}
    attrs |= {"scatter_dimension": a["all_gather_dim"], "kind": "add"}
    return _together(p.b, "reduce_scatter", arriving, attrs)


@rule("reduce_scatter")
def _reduce_scatter(p: BackwardPass, op: Op, *arriving: Value | None) -> Gradients:
    a = op.attrs
    attrs = {key: a[key] for key in ("replica_groups", "group_size", "purpose")}
    attrs |= {"all_gather_dim": a["scatter_dimension"]}
    return _together(p.b, "all_gather", arriving, attrs)


def _together(b: GraphBuilder, name: str, arriving: Sequence[Value | None], attrs: dict[str, Any]) -> Gradients:
    """One collective of all gradients that arrive."""
    there = [d for d in arriving if d is not None]
    made = iter(b.append(name, there, attrs).results)
    return [None if d is None else next(made) for d in arriving]
