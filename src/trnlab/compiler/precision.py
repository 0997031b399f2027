# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: what the PE array reads is cast to bfloat16; sums, statistics, state and everything else stay
fp32.

The same rule as the vendor compiler's `--auto-cast matmult --auto-cast-type bf16`, for the products that the user
asked for: running sums and sums of rows by index, which the PE array happens to compute, say `precision` HIGHEST, or
are other ops, and stay fp32. An op that says BFLOAT16 is cast in every session. Casts are put where they cost
least: on what a view looks at rather than on the view, so that whatever computes the value can write it in bfloat16
at once.
"""

from __future__ import annotations

from trnlab.compiler.strided import VIEW_OPS
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.rewrite import Rule, rewrite
from trnlab.numerics.dtypes import bfloat16, float32

MOVES = (*VIEW_OPS, "concatenate")


def cast_matmuls(graph: Graph, *, to_bf16: bool) -> None:
    """Insert casts before every op that the PE array computes, if wanted. Results keep their formats.

    to_bf16: whether ops that leave their precision open are meant, too.
    """
    meant = ("DEFAULT", "BFLOAT16") if to_bf16 else ("BFLOAT16",)
    if to_bf16 or any(op.attrs.get("precision") in meant for op in graph.ops):
        rewrite(graph, {**dict.fromkeys(MOVES, _widen_after), **_Casts(meant).rules()})


def _widen_after(op: Op, b: GraphBuilder) -> Value | None:
    """Move first, widen to fp32 afterwards: half the bytes, and the narrow form stays at hand for the next matmul."""
    operands = op.operands
    sources = [v.op.operands[0] for v in operands if v.op is not None and v.op.name == "convert"]
    if (
        len(sources) < len(operands)
        or any(v.dtype is not bfloat16 for v in sources)
        or operands[0].dtype is not float32
    ):
        return None
    return b.convert(b.append(op.name, sources, op.attrs).results[0], float32)


class _Casts:
    """The rules of one graph, for ops of the precisions `meant`, and the casts made so far."""

    def __init__(self, meant: tuple[str, ...]) -> None:
        self._meant = meant
        self._cast: dict[Value, Value] = {}

    def rules(self) -> dict[str, Rule]:
        """What to do at each op that the PE array computes."""
        return {
            "dot_general": self._dot,
            "convolution": self._dot,
            "trn.attention": self._attention,
            "trn.attention_backward": self._attention,
        }

    def _low(self, b: GraphBuilder, value: Value) -> Value:
        """The value in bfloat16: as it was before it was widened, or cast at the root of its views."""
        if value.dtype is not float32:
            return value
        if value not in self._cast:
            op = value.op
            if op is not None and op.name == "convert" and op.operands[0].dtype is bfloat16:
                self._cast[value] = op.operands[0]
            elif op is not None and op.name in MOVES:
                lowered = [self._low(b, v) for v in op.operands]
                self._cast[value] = b.append(op.name, lowered, op.attrs).results[0]
            else:
                self._cast[value] = b.convert(value, bfloat16)
        return self._cast[value]

    def _dot(self, op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
        if op.attrs["precision"] not in self._meant:
            return None
        return b.append(op.name, tuple(self._low(b, v) for v in op.operands), op.attrs).results

    def _attention(self, op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
        if op.attrs["precision"] not in self._meant:
            return None
        forward = ("q", "k", "v", "bias")
        names = forward if op.name == "trn.attention" else ("dout", "q", "k", "v", "out", "lse", "bias")
        given = tuple(v if name in ("lse", "bias") else self._low(b, v) for name, v in zip(names, op.operands))
        results = b.append(op.name, given, op.attrs).results
        return tuple(r if r.dtype is old.dtype else b.convert(r, old.dtype) for r, old in zip(results, op.results))
