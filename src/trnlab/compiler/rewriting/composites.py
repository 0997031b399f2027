# SPDX-License-Identifier: Apache-2.0
"""Attention in the forms that its kernels take; what they do not take is spelled out in other ops, and so are
convolutions.

scale      not negative: the sign goes to q causal     no more keys than queries: the others are seen by nobody bias
"hides" says that it holds nothing but 0 and minus infinity, which the fused kernels need to know; others are
           shifted later (`biases`)
heads      up to 256 wide, those of values too
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from trnlab.compiler.analysis.strided import VIEW_OPS
from trnlab.compiler.convolutions import as_products
from trnlab.compiler.rewriting.volumes import as_images
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.composites import define
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.rewrite import is_zero, rewrite
from trnlab.kernels.attention_blocks import WIDEST
from trnlab.numerics.dtypes import float32, int32
from trnlab.stacks import KERNEL, WRITTEN

_KEPT = frozenset({*VIEW_OPS, "convert", "add", "minimum"})  # of 0 and -inf they make nothing else


def expand_composites(graph: Graph) -> None:
    """Bring attention into the forms that have a kernel, and convolutions into matrix products."""
    expand_attention(graph)
    rewrite(graph, {"convolution": as_images})
    rewrite(graph, {"convolution": as_products})


def attention_of_stack(graph: Graph, options: Mapping[str, object]) -> None:
    """Attention as a compiler without a kernel for it has it, where `options` say so (`stacks.Stack.attention`): of
    all pairs under a mask in memory, and where it is written out, spelled out."""
    kind = options.get("attention", KERNEL)
    if kind != KERNEL:
        change = _masked()
        rewrite(graph, {"trn.attention": change, "trn.attention_backward": change})
    if kind == WRITTEN:
        rewrite(graph, {"trn.attention": spelled_out, "trn.attention_backward": _written_again})


def _written_again(op: Op, b: GraphBuilder) -> tuple[Value, ...]:
    """The gradient spelled out, whose scores are made again and not kept since the forward pass: selective
    recomputation, which the scripts of such releases ask for."""
    dout, q, *rest = op.operands
    return spelled_out(op, b, (dout, b.optimization_barrier(q), *rest))


def _masked() -> Callable[[Op, GraphBuilder], tuple[Value, ...] | None]:
    """Causal attention with a bias instead of causality, one in memory for all of the same size; whatever has a bias
    already is left as it is."""
    masks: dict[tuple[int, int], Value] = {}

    def change(op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
        inputs = {"trn.attention": ("q", "k", "v"), "trn.attention_backward": ("dout", "q", "k", "v", "out", "lse")}
        names = inputs[op.name]
        if not op.attrs["causal"] or len(op.operands) > len(names):
            return None
        q, k = (op.operands[names.index(name)] for name in ("q", "k"))
        pairs = q.shape[2], k.shape[2]
        if pairs not in masks:
            sees = b.compare(b.iota(pairs, int32, 0), "GE", b.iota(pairs, int32, 1))
            wide = (b.broadcast_to(b.constant(x, float32), pairs) for x in (0.0, -math.inf))
            masks[pairs] = b.optimization_barrier(b.reshape(b.select(sees, *wide), (1, 1, *pairs)))
        return b.append(op.name, (*op.operands, masks[pairs]), {**op.attrs, "causal": False, "hides": True}).results

    return change


def expand_attention(graph: Graph) -> None:
    """Bring attention into the forms that have a kernel."""
    rewrite(graph, {"trn.attention": _forward, "trn.attention_backward": _backward})


def _forward(op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
    if op.attrs["shifted"]:
        return None
    q, k, v, *bias = op.operands
    if bias and is_zero(bias[0]):
        bias = []
    if max(q.shape[-1], v.shape[-1]) > WIDEST:
        return spelled_out(op, b)
    attrs = _attrs(op, bias)
    keys = _keys_seen(op, q, k)
    if op.attrs["scale"] < 0:
        q = b.negate(q)
    if keys < k.shape[2]:
        k, v, bias = *(b.slice_dim(x, 2, 0, keys) for x in (k, v)), [b.slice_dim(x, 3, 0, keys) for x in bias]
    if (q, k, v, *bias) == op.operands and attrs == op.attrs:
        return None
    return b.append(op.name, (q, k, v, *bias), attrs).results


def _backward(op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
    if op.attrs["shifted"]:
        return None
    dout, q, k, v, out, lse, *bias = op.operands
    if bias and is_zero(bias[0]) and not op.attrs["dbias"]:
        bias = []
    if max(q.shape[-1], v.shape[-1]) > WIDEST:
        return spelled_out(op, b)
    attrs = _attrs(op, bias)
    keys, all_keys = _keys_seen(op, q, k), k.shape[2]
    negative = op.attrs["scale"] < 0
    if negative:
        q = b.negate(q)
    if keys < all_keys:
        k, v, bias = *(b.slice_dim(x, 2, 0, keys) for x in (k, v)), [b.slice_dim(x, 3, 0, keys) for x in bias]
    operands = (dout, q, k, v, out, lse, *bias)
    if operands == op.operands and attrs == op.attrs:
        return None
    dq, dk, dv, *dbias = b.append(op.name, operands, attrs).results
    more = all_keys - keys
    if more:
        dk, dv = (b.pad(x, (0, 0, 0, 0), (0, 0, more, 0)) for x in (dk, dv))
        dbias = [b.pad(x, (0, 0, 0, 0), (0, 0, 0, more)) for x in dbias]
    return b.negate(dq) if negative else dq, dk, dv, *dbias


def spelled_out(op: Op, b: GraphBuilder, operands: tuple[Value, ...] = ()) -> tuple[Value, ...]:
    """The op's definition, whose products have the precision that the op has. operands: in the place of its own."""
    begin = len(b.graph.ops)
    results = define(op.name, operands or op.operands, op.attrs, b)
    for part in b.graph.ops[begin:]:
        if part.name == "dot_general":
            part.attrs["precision"] = op.attrs["precision"]
    return tuple(results)


def _attrs(op: Op, bias: list[Value]) -> dict[str, object]:
    hides = bool(bias) and only_hides(bias[0]) and not op.attrs.get("dbias")
    return {**op.attrs, "scale": abs(op.attrs["scale"]), "hides": hides}


def _keys_seen(op: Op, q: Value, k: Value) -> int:
    return min(q.shape[2], k.shape[2]) if op.attrs["causal"] else k.shape[2]


def only_hides(value: Value) -> bool:
    """Whether a value is known to hold nothing but 0 and minus infinity: a mask of truth values as a bias."""
    op = value.op
    if op is None:
        return False
    if op.name == "constant":
        numbers = np.asarray(op.attrs["value"], np.float32)
        return bool(((numbers == 0) | (numbers == -math.inf)).all())
    if op.name == "select":
        return all(only_hides(v) for v in op.operands[1:])
    return op.name in _KEPT and all(only_hides(v) for v in op.operands)
