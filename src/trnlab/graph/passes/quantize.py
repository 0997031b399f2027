# SPDX-License-Identifier: Apache-2.0
"""Give each product the number format that was chosen for it: FP8 with scales, MX, or a precision that it keeps.

A product in FP8, of two matrices, of batches of them, or a convolution, is

    dot(q(x * sx), q(y * sy)) * (1 / (sx * sy)),    q: cut off at the format's largest value, rounded to nearest even

with E4M3 for values of the forward pass and E5M2 for gradients. What a scale s = largest of the format / amax is
made from: `tensor`: the largest magnitude of the operand now; `row`: that of all elements that the product sums up
for the same results, so that nothing but the summed dimensions shares a scale (of a convolution: that of `tensor`);
`delayed`: the largest of the steps before, which are a state of the program, so that no operand is read twice
(`scales`). Within a loop `delayed` is `tensor`, for the rounds of a step have no steps before. NaN stays NaN;
infinities become the largest value, as in torchao and Transformer Engine.

MX products say so themselves: their operands are quantized on the way into the PE array (`ops`, "lhs_mx").

Sources: torchao/float8/float8_utils.py (amax_to_scale, tensor_to_amax; 1e-12 as the smallest amax), Transformer
Engine, recipe DelayedScaling (history of amax, E4M3 forward and E5M2 backward).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from trnlab.errors import Location
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.loops import Body
from trnlab.graph.passes.rewrite import rewrite
from trnlab.graph.passes.scales import SMALLEST_AMAX, Histories, amax_of, largest
from trnlab.numerics.dtypes import DType, bfloat16, float8_e5m2, float32
from trnlab.precision import ModulePrecision

VIEWS = ("reshape", "transpose")
MOVES = (*VIEWS, "convert", "slice", "pad", "reverse", "broadcast_in_dim")
PRECISION = {"fp32": "HIGHEST", "bf16": "BFLOAT16"}
MX_FORWARD, MX_GRADIENT = "float8_e4m3fn", "float8_e5m2"
ATTENTION = ("trn.attention", "trn.attention_backward")
PRODUCTS = ("dot_general", "convolution", *ATTENTION)

Choose = Callable[[Op], "ModulePrecision | None"]
IsGradient = Callable[[Value], bool]


@dataclass
class Quantized:
    """What the pass did."""

    # the input of the graph that holds the histories of amax, and is overwritten by an output; None where no
    # scale is delayed
    state: Value | None = None
    histories: Histories | None = None  # of the delayed scales
    replaced: dict[Value, Value] = field(default_factory=dict)  # products, and what stands for them
    counts: Counter[str] = field(default_factory=Counter)  # of products, by format
    # products that were meant to be in a scaled format and are not: where they are, and why
    left: Counter[tuple[str, str]] = field(default_factory=Counter)


def quantize(graph: Graph, choose: Choose, is_gradient: IsGradient, e4m3: DType, history: int = 16) -> Quantized:
    """Rewrite the products of a graph as chosen, those of loops too; None leaves one alone.

    is_gradient: whether a value is of the backward pass. e4m3: the chip's own format of that kind. A graph whose last
    output are flags (`Graph.checks`) must not have them yet.
    """
    histories = Histories(graph, history)
    work = _Quantizer(choose, is_gradient, e4m3, histories)
    rewrite(graph, work.rules())
    work.done.state, work.done.histories = histories.write(), histories
    return work.done


@dataclass(frozen=True)
class _Scaled:
    """A quantized value, and its scale, a number, or what undoes its scales, one for each row."""

    value: Value
    scale: Value


def reason_against(op: Op, choice: ModulePrecision) -> str:
    """Why a product cannot be in a scaled format; empty where it can."""
    if op.name in ATTENTION:
        return "attention is computed as a whole, in bf16"
    if not all(v.dtype.is_float and v.dtype.itemsize > 1 and v.type.size for v in op.operands):
        return "an operand is empty, or in eight bits already"
    if any(len(v.shape) < 2 for v in op.operands):
        return "an operand is a vector"
    if choice.format == "mxfp8" and op.name == "convolution":
        return "MX has no convolutions, whose windows would share blocks"
    if choice.format == "mxfp8" and len(op.attrs["lhs_contracting_dimensions"]) != 1:
        return "MX sums along one dimension"
    return ""


class _Quantizer:
    """histories: of delayed scales; None within loops."""

    def __init__(self, choose: Choose, is_gradient: IsGradient, e4m3: DType, histories: Histories | None) -> None:
        self.choose, self.is_gradient, self.e4m3, self.histories = choose, is_gradient, e4m3, histories
        self.done = Quantized()
        self._made: dict[tuple[Value, str, tuple[int, ...]], _Scaled] = {}
        self._gradients: set[Value] = set()  # that stand for others of the backward pass
        self._undone: dict[Value, Value] = {}  # for scales of now, their inverses

    def rules(self) -> dict[str, Callable[[Op, GraphBuilder], Value | tuple[Value, ...] | None]]:
        """For `rewrite`."""
        return {**dict.fromkeys(PRODUCTS, self.product), "loop": self.loop}

    def loop(self, op: Op, b: GraphBuilder) -> tuple[Value, ...]:
        """The same loop, the products of its round as chosen."""
        body: Body = op.attrs["body"]
        inner = _Quantizer(self.choose, self.is_gradient, self.e4m3, None)
        inner.done = self.done
        rewrite(body.graph, inner.rules())
        return b.append("loop", op.operands, {**op.attrs, "body": replace(body, _memo={})}).results

    def product(self, op: Op, b: GraphBuilder) -> Value | tuple[Value, ...] | None:
        """One product, as chosen."""
        choice = self.choose(op)
        if choice is None or op.attrs["precision"] != "DEFAULT":
            return None
        reason = reason_against(op, choice) if choice.is_scaled else ""
        if reason:
            self.done.left[place_of(op.loc), reason] += 1
            return None
        self.done.counts[choice.format] += 1
        if not choice.is_scaled:
            results = b.append(op.name, op.operands, {**op.attrs, "precision": PRECISION[choice.format]}).results
        elif choice.format == "mxfp8":
            results = (self._microscaled(op, b),)
        else:
            results = (self._scaled_product(op, b, choice.scaling),)
        self.done.replaced.update(zip(op.results, results))
        self._gradients.update(new for old, new in zip(op.results, results) if self.is_gradient(old))
        return results

    # -- FP8 ---------------------------------------------------------------------------------------------------------
    def _scaled_product(self, op: Op, b: GraphBuilder, scaling: str) -> Value:
        by_row = scaling == "row" and op.name == "dot_general"
        if (scaling == "row" and not by_row) or (scaling == "delayed" and self.histories is None):
            scaling = "tensor"
        sides = [self._side(op, i, b, scaling) for i in (0, 1)]
        attrs = {**op.attrs, "dtype": float32, "precision": "HIGHEST"}
        product = b.append(op.name, [s.value for s in sides], attrs).results[0]
        if by_row:
            for i, side in enumerate(sides):
                product = b.multiply(product, b.broadcast_in_dim(side.scale, product.shape, _places(op, i)))
        else:
            both = self._inverse(sides[0].scale, sides[1].scale, scaling, b)
            product = b.multiply(product, b.broadcast_to(both, product.shape))
        return b.convert(product, op.result.dtype)

    def _inverse(self, lhs: Value, rhs: Value, scaling: str, b: GraphBuilder) -> Value:
        """What undoes two scales."""
        if scaling == "delayed" and self.histories is not None:
            return self.histories.inverse(lhs, rhs)
        return b.multiply(self._undone[lhs], self._undone[rhs])

    def _side(self, op: Op, i: int, b: GraphBuilder, scaling: str) -> _Scaled:
        value = op.operands[i]
        if scaling == "row":
            return self._by_row(value, op.attrs[("lhs", "rhs")[i] + "_contracting_dimensions"], b)
        root, views = _root(value)
        found = self._whole(root, scaling, b)
        quantized = found.value
        for view in reversed(views):
            quantized = b.append(view.name, (quantized,), view.attrs).results[0]
        return _Scaled(quantized, found.scale)

    def _format(self, value: Value) -> DType:
        return float8_e5m2 if self._is_gradient(value) else self.e4m3

    def _is_gradient(self, value: Value) -> bool:
        """Whether an op is of the backward pass; what was merely moved there is what it was before."""
        while value not in self._gradients and value.op is not None and value.op.name in MOVES:
            value = value.op.operands[0]
        return value in self._gradients or self.is_gradient(value)

    def _by_row(self, value: Value, summed: tuple[int, ...], b: GraphBuilder) -> _Scaled:
        kind = self._format(value)
        key = (value, f"row {kind.name}", tuple(summed))
        if key not in self._made:
            wide = b.convert(value, float32)
            kept = [d for d in range(len(value.shape)) if d not in summed]
            amax = b.maximum(b.reduce(b.abs(wide), summed, "maximum"), SMALLEST_AMAX)
            scale = b.broadcast_in_dim(b.divide(largest(kind), amax), value.shape, kept)
            self._made[key] = _Scaled(_cut(b, wide, scale, kind), b.multiply(amax, 1 / largest(kind)))
        return self._made[key]

    def _whole(self, root: Value, scaling: str, b: GraphBuilder) -> _Scaled:
        kind = self._format(root)
        key = (root, f"{scaling} {kind.name}", ())
        if key not in self._made:
            wide = b.convert(root, float32)
            if scaling == "delayed" and self.histories is not None:
                scale = self.histories.scale(wide, kind, b)
            else:
                amax = b.maximum(amax_of(wide, b), SMALLEST_AMAX)
                scale = b.divide(largest(kind), amax)
                self._undone[scale] = b.multiply(amax, 1 / largest(kind))
            self._made[key] = _Scaled(self._quantized(root, scale, scaling, kind, b), scale)
        return self._made[key]

    def _quantized(self, root: Value, scale: Value, scaling: str, kind: DType, b: GraphBuilder) -> Value:
        """A value times a scale, a number, in another format."""
        if root.dtype is bfloat16 and scaling == "delayed" and self.histories is not None:  # which are never zero
            return _cut_first(b, root, scale, self.histories.bounds(scale), kind)
        return _cut(b, b.convert(root, float32), b.broadcast_to(scale, root.shape), kind)

    # -- MX ----------------------------------------------------------------------------------------------------------
    def _microscaled(self, op: Op, b: GraphBuilder) -> Value:
        formats = [MX_GRADIENT if self._is_gradient(v) else MX_FORWARD for v in op.operands]
        operands = [b.convert(v, bfloat16) for v in op.operands]
        attrs = {**op.attrs, "precision": "HIGHEST", "lhs_mx": formats[0], "rhs_mx": formats[1]}
        return b.append("dot_general", operands, attrs).results[0]


def place_of(where: Location | None) -> str:
    """The module of a product, else its line, for people."""
    if where is None:
        return "a product"
    return where.layer or str(where)


def _places(op: Op, i: int) -> tuple[int, ...]:
    """The dimensions of a product's result to which those of operand i that it does not sum up go, in their order."""
    sides = ("lhs", "rhs")
    batches = [op.attrs[f"{s}_batching_dimensions"] for s in sides]
    summed = [op.attrs[f"{s}_contracting_dimensions"] for s in sides]
    free = [
        [d for d in range(len(v.shape)) if d not in batches[j] and d not in summed[j]]
        for j, v in enumerate(op.operands)
    ]
    first = len(batches[0]) + (len(free[0]) if i else 0)
    place = {d: n for n, d in enumerate(batches[i])} | {d: first + n for n, d in enumerate(free[i])}
    return tuple(place[d] for d in sorted(place))


def _root(value: Value) -> tuple[Value, list[Op]]:
    """What a view looks at, and the views, the outermost first."""
    views: list[Op] = []
    while value.op is not None and value.op.name in VIEWS:
        views.append(value.op)
        value = value.op.operands[0]
    return value, views


def _cut_first(b: GraphBuilder, root: Value, scale: Value, bounds: tuple[Value, Value], kind: DType) -> Value:
    """What `_cut` gives for bfloat16, bit for bit, cut in that format before it is scaled: engines read it faster.
    The bound is the largest of `kind` over the scale, but for 2^-8 of it; what lies between both becomes the largest
    of `kind` either way, whose neighbours are further away. The scale is finite and not zero."""
    kept = b.convert(b.clamp(bounds[0], b.convert(root, float32), bounds[1]), bfloat16)
    return b.convert(b.multiply(b.convert(kept, float32), b.broadcast_to(scale, root.shape)), kind)


def _cut(b: GraphBuilder, wide: Value, scale: Value, kind: DType) -> Value:
    most = float(np.float32(largest(kind)))
    return b.convert(b.clamp(-most, b.multiply(wide, scale), most), kind)
