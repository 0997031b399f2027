# SPDX-License-Identifier: Apache-2.0
"""Give each product the number format that was chosen for it: FP8 with scales, MX, or a precision that it keeps.

A product of two matrices in FP8 is

    dot(q(x * sx), q(y * sy)) * (1 / (sx * sy)),    q: cut off at the format's largest value, rounded to nearest even

with E4M3 for values of the forward pass and E5M2 for gradients. What a scale s = largest of the format / amax is
made from: `tensor`: the largest magnitude of the operand now; `row`: that of each row and column that the product
keeps, so that nothing but the summed dimension shares a scale; `delayed`: the largest of the steps before, which are
a state of the program, so that no operand is read twice (1 before the first step). NaN stays NaN; infinities become
the largest value, as in torchao and Transformer Engine.

MX products say so themselves: their operands are quantized on the way into the PE array (`ops`, "lhs_mx").

Sources: torchao/float8/float8_utils.py (amax_to_scale, tensor_to_amax; 1e-12 as the smallest amax), Transformer
Engine, recipe DelayedScaling (history of amax, E4M3 forward and E5M2 backward).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, TensorType, Value
from trnlab.graph.passes.rewrite import rewrite
from trnlab.numerics.dtypes import DType, bfloat16, float8_e5m2, float32
from trnlab.precision import Choice

VIEWS = ("reshape", "transpose")
SMALLEST_AMAX = 1e-12
PRECISION = {"fp32": "HIGHEST", "bf16": "BFLOAT16"}
MX_FORWARD, MX_GRADIENT = "float8_e4m3fn", "float8_e5m2"
NARROWED = ("dot_general", "convolution", "trn.attention", "trn.attention_backward")


@dataclass
class Quantized:
    """What the pass did. states: inputs of the graph that hold histories of amax, and are overwritten by its outputs.
    replaced: products, and what stands for them."""

    states: list[Value] = field(default_factory=list)
    replaced: dict[Value, Value] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


def quantize(
    graph: Graph, choose: Callable[[Op], Choice | None], gradients: Container[Value], e4m3: DType, history: int = 16
) -> Quantized:
    """Rewrite the products of a graph as chosen; None leaves one alone.

    gradients: values of the backward pass. e4m3: the chip's own format of that kind. A graph whose last output are
    flags (`Graph.checks`) must not have them yet.
    """
    work = _Quantizer(graph, choose, gradients, e4m3, history)
    rewrite(graph, dict.fromkeys(NARROWED, work.product))
    work.write_states()
    return work.done


@dataclass(frozen=True)
class _Scaled:
    """A quantized value, and what undoes its scale: a number, or one for each row."""

    value: Value
    inverse: Value


def is_matrix_product(op: Op) -> bool:
    """Whether an op is the product of two matrices of floats, which FP8 is for; not one of a batch (attention)."""
    return (
        op.name == "dot_general"
        and not op.attrs["lhs_batching_dimensions"]
        and op.attrs["precision"] == "DEFAULT"
        and all(v.dtype.is_float and v.dtype.itemsize > 1 and len(v.shape) == 2 and v.type.size for v in op.operands)
        and len(op.attrs["lhs_contracting_dimensions"]) == 1
    )


class _Quantizer:
    def __init__(
        self,
        graph: Graph,
        choose: Callable[[Op], Choice | None],
        gradients: Container[Value],
        e4m3: DType,
        history: int,
    ) -> None:
        self.graph, self.choose, self.gradients, self.e4m3, self.history = graph, choose, gradients, e4m3, history
        self.done = Quantized()
        self._made: dict[tuple[Value, str, tuple[int, ...]], _Scaled] = {}
        self._updates: list[tuple[Value, Value]] = []

    def product(self, op: Op, b: GraphBuilder) -> Value | tuple[Value, ...] | None:
        """A rule for `rewrite`."""
        choice = self.choose(op)
        if choice is None or op.attrs["precision"] != "DEFAULT":
            return None
        if choice.is_scaled and not is_matrix_product(op):
            return None
        self.done.counts[choice.format] = self.done.counts.get(choice.format, 0) + 1
        if not choice.is_scaled:
            results = b.append(op.name, op.operands, {**op.attrs, "precision": PRECISION[choice.format]}).results
        elif choice.format == "mxfp8":
            results = (self._microscaled(op, b),)
        else:
            results = (self._scaled_product(op, b, choice.scaling),)
        self.done.replaced.update(zip(op.results, results))
        return results

    # -- FP8 ---------------------------------------------------------------------------------------------------------
    def _scaled_product(self, op: Op, b: GraphBuilder, scaling: str) -> Value:
        sides = [self._side(op, i, b, scaling) for i in (0, 1)]
        attrs = {**op.attrs, "dtype": float32, "precision": "HIGHEST"}
        product = b.append("dot_general", [s.value for s in sides], attrs).results[0]
        if scaling == "row":
            for axis, side in enumerate(sides):
                product = b.multiply(product, b.broadcast_in_dim(side.inverse, product.shape, (axis,)))
        else:
            product = b.multiply(
                product, b.broadcast_to(b.multiply(sides[0].inverse, sides[1].inverse), product.shape)
            )
        return b.convert(product, op.result.dtype)

    def _side(self, op: Op, i: int, b: GraphBuilder, scaling: str) -> _Scaled:
        value = op.operands[i]
        (summed,) = op.attrs[("lhs", "rhs")[i] + "_contracting_dimensions"]
        if scaling == "row":
            return self._by_row(value, summed, b)
        root, views = _root(value)
        found = self._whole(root, scaling, b)
        quantized = found.value
        for view in reversed(views):
            quantized = b.append(view.name, (quantized,), view.attrs).results[0]
        return _Scaled(quantized, found.inverse)

    def _format(self, value: Value) -> DType:
        return float8_e5m2 if self._is_gradient(value) else self.e4m3

    def _is_gradient(self, value: Value) -> bool:
        """Of the backward pass, or something there in another format or shape."""
        while value not in self.gradients and value.op is not None and value.op.name in (*VIEWS, "convert"):
            value = value.op.operands[0]
        return value in self.gradients

    def _by_row(self, value: Value, summed: int, b: GraphBuilder) -> _Scaled:
        kind = self._format(value)
        key = (value, f"row {kind.name}", (summed,))
        if key not in self._made:
            wide = b.convert(value, float32)
            amax = b.maximum(b.reduce(b.abs(wide), (summed,), "maximum"), SMALLEST_AMAX)
            scale = b.broadcast_in_dim(b.divide(largest(kind), amax), value.shape, (1 - summed,))
            self._made[key] = _Scaled(_cut(b, wide, scale, kind), b.multiply(amax, 1 / largest(kind)))
        return self._made[key]

    def _whole(self, root: Value, scaling: str, b: GraphBuilder) -> _Scaled:
        kind = self._format(root)
        key = (root, f"{scaling} {kind.name}", ())
        if key not in self._made:
            wide = b.convert(root, float32)
            amax = b.reduce(b.abs(wide), range(len(root.shape)), "maximum")
            if scaling == "tensor":
                amax = b.maximum(amax, SMALLEST_AMAX)
                scale, inverse = b.divide(largest(kind), amax), b.multiply(amax, 1 / largest(kind))
            else:
                scale, inverse = self._delayed(amax, kind, b)
            self._made[key] = _Scaled(_cut(b, wide, b.broadcast_to(scale, root.shape), kind), inverse)
        return self._made[key]

    def _delayed(self, amax: Value, kind: DType, b: GraphBuilder) -> tuple[Value, Value]:
        """Scale and inverse from the history, to which the largest magnitude of now is added, if it is finite."""
        layer = b.loc.layer if b.loc is not None and b.loc.layer else "model"
        shape = TensorType((self.history,), float32)
        state = Value(shape, None, len(self.graph.inputs), f"amax{len(self.done.states)}.{layer}")
        self.graph.inputs.append(state)
        self.done.states.append(state)
        most = b.reduce(state, (0,), "maximum")
        seen = b.compare(most, "GT", 0.0)
        safe = b.maximum(most, SMALLEST_AMAX)
        scale = b.select(seen, b.divide(largest(kind), safe), 1.0)
        inverse = b.select(seen, b.multiply(safe, 1 / largest(kind)), 1.0)
        latest = b.slice(state, (0,), (1,))
        now = b.select(b.is_finite(amax), amax, b.reshape(latest, ()))
        kept = b.slice(state, (0,), (self.history - 1,)) if self.history > 1 else None
        line = b.reshape(now, (1,))
        self._updates.append((state, line if kept is None else b.concatenate([line, kept], 0)))
        return scale, inverse

    def write_states(self) -> None:
        """Make the new histories overwrite the old."""
        for state, value in self._updates:
            self.graph.aliases[len(self.graph.outputs)] = self.graph.inputs.index(state)
            self.graph.outputs.append(value)
            self.graph.output_names.append(state.name)

    # -- MX ----------------------------------------------------------------------------------------------------------
    def _microscaled(self, op: Op, b: GraphBuilder) -> Value:
        formats = [MX_GRADIENT if self._is_gradient(v) else MX_FORWARD for v in op.operands]
        operands = [b.convert(v, bfloat16) for v in op.operands]
        attrs = {**op.attrs, "precision": "HIGHEST", "lhs_mx": formats[0], "rhs_mx": formats[1]}
        return b.append("dot_general", operands, attrs).results[0]


def largest(kind: DType) -> float:
    """The largest finite value of a format."""
    return float(ml_dtypes.finfo(kind.numpy).max)  # type: ignore[no-untyped-call]


def _root(value: Value) -> tuple[Value, list[Op]]:
    """What a view looks at, and the views, the outermost first."""
    views: list[Op] = []
    while value.op is not None and value.op.name in VIEWS:
        views.append(value.op)
        value = value.op.operands[0]
    return value, views


def _cut(b: GraphBuilder, wide: Value, scale: Value, kind: DType) -> Value:
    most = np.float32(largest(kind))
    return b.convert(b.clamp(-float(most), b.multiply(wide, scale), float(most)), kind)
