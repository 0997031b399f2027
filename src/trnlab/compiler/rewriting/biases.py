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

from trnlab.compiler.rewriting.bias_forms import Once, SplitBias, repeated, shifted, without_causality
from trnlab.compiler.rewriting.composites import spelled_out
from trnlab.compiler.rewriting.recognize.masks import KnownValues
from trnlab.compiler.rewriting.windows import Windows, windows_of
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import rewrite
from trnlab.kernels.attention_bias import sums_on_chip
from trnlab.kernels.attention_tiles import is_fused


@dataclass(frozen=True, eq=False)
class _Forward:
    """One attention whose bias was shifted: its operands as they were; q, k, v, out and lse as they are, but for what
    `heard` does to q."""

    given: tuple[Value, ...]
    causal: bool
    bias: SplitBias
    windows: Windows | None
    operands: tuple[Value, ...]


def shift_biases(graph: Graph) -> None:
    """Shift each bias of attention that the fused kernels would take then, forward and in the backward pass of the
    same graph; write out gradients of other biases."""
    writer = _Writer(graph)
    if rewrite(graph, {"trn.attention": writer.forward, "trn.attention_backward": writer.backward}):
        remove_dead_ops(graph)


def _is_general(op: Op, plain: int, q: Value, v: Value) -> bool:
    attrs = op.attrs
    fused = is_fused(q.shape[3], v.shape[3], q.dtype, attrs["scale"])
    return len(op.operands) > plain and not attrs["hides"] and not attrs["shifted"] and fused


class _Writer:
    """What was shifted so far."""

    def __init__(self, graph: Graph) -> None:
        self._known = KnownValues()
        self._shifts: dict[tuple[Value, bool, int, Windows | None], SplitBias] = {}
        self._once = Once()
        self._forward: dict[Value, _Forward] = {}  # by lse as it was given to others
        self._summed = _summed(graph)

    def forward(self, op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
        """Attention with its bias shifted."""
        q, k, v, *bias = op.operands
        if not _is_general(op, 3, q, v):
            return None
        less, causal = without_causality(bias[0], op.attrs["causal"], self._known)
        less = self._once.of(b, less)
        windows = None if causal else windows_of(op, q, k, less)
        shift = self._shift(b, less, causal, q.shape[2], windows)
        if windows is not None:
            q, k, v = (windows.joined(b, x) for x in (q, k, v))
        turned = b.transpose(shift.rows, (0, 1, 3, 2))
        attrs = {**op.attrs, "shifted": True, "causal": causal}
        out, lse = b.append(op.name, (_heard(b, q, shift), k, v, turned), attrs).results
        top = repeated(b, b.select(b.compare(shift.top, "EQ", -math.inf), 0.0, shift.top), q.shape[0])
        whole = b.add(lse, b.reshape(b.broadcast_to(top, (*lse.shape, 1)), lse.shape))
        if windows is not None:
            whole = b.reshape(windows.apart(b, b.reshape(whole, (*whole.shape, 1))), op.results[1].shape)
        self._forward[whole] = _Forward(op.operands, causal, shift, windows, (q, k, v, out, lse))
        return out if windows is None else windows.apart(b, out), whole

    def backward(self, op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
        """Its gradients; of the scores too, one way or the other."""
        dout, q, k, v, out, lse, *bias = op.operands
        found = self._forward.get(lse)
        if not _is_general(op, 6, q, v) or found is None or found.given != (q, k, v, *bias):
            return spelled_out(op, b) if op.attrs["dbias"] else None
        windows, (q, k, v, _, lse) = found.windows, found.operands
        if windows is not None:
            dout, out = (windows.joined(b, x) for x in (dout, out))
        attrs = {**op.attrs, "shifted": True, "causal": found.causal}
        wanted = "sum" if op in self._summed else op.attrs["dbias"]
        apart = wanted == "sum" and not sums_on_chip(q.shape, k.shape, v.shape)
        attrs["dbias"] = "each" if apart else wanted
        heard = [] if found.bias.heard is None else [found.bias.heard]
        operands = (dout, q, k, v, out, lse, found.bias.rows, *heard)
        *grads, last = b.append(op.name, operands, attrs).results
        dbias = [self._of_bias(b, last, wanted, found)] if wanted else []
        grads = grads if wanted else [*grads, last]
        return *(x if windows is None else windows.apart(b, x) for x in grads), *dbias

    def _of_bias(self, b: GraphBuilder, given: Value, wanted: str, found: _Forward) -> Value:
        """The gradient of the scores, summed up over the batch where that is `wanted`."""
        if found.windows is not None:
            given = found.windows.of_bias(b, given)
        return b.reduce(given, [0], keepdims=True) if wanted == "sum" and given.shape[0] > 1 else given

    def _shift(self, b: GraphBuilder, bias: Value, causal: bool, queries: int, windows: Windows | None) -> SplitBias:
        key = bias, causal, queries, windows
        if key not in self._shifts:
            whole = bias if windows is None else windows.bias(b, bias)
            self._shifts[key] = shifted(b, whole, causal, whole.shape[2] if windows else queries, self._known)
        return self._shifts[key]


def _summed(graph: Graph) -> set[Op]:
    """Backward passes of whose gradient of scores everybody reads the sum over the batch."""
    read = {v: op for op in graph.ops if op.name == "trn.attention_backward" for v in op.results[3:]}
    apart = {v for v in graph.outputs if v in read}
    for op in graph.ops:
        sums = op.name == "reduce" and op.attrs["kind"] == "add" and 0 in op.attrs["dimensions"]
        apart.update(v for v in op.operands if v in read and not sums)
    return {op for v, op in read.items() if v not in apart}


def _heard(b: GraphBuilder, x: Value, shift: SplitBias) -> Value:
    """Queries, zero for those that are not heard."""
    if shift.heard is None:
        return x
    return b.multiply(x, b.broadcast_to(b.convert(repeated(b, shift.heard, x.shape[0]), x.dtype), x.shape))
