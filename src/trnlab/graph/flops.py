# SPDX-License-Identifier: Apache-2.0
"""How much work a graph asks for."""

from __future__ import annotations

from math import prod

from trnlab.graph.ir import Graph, Op
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.subexpressions import merge_equal_ops, remove_barriers


def model_flops(graph: Graph) -> int:
    """Floating point operations that the model asks for: two per multiply and add of its matrix products.

    Attention counts its products as if nothing were masked, and its backward pass without computing scores again.
    """
    if any(op.name == "optimization_barrier" for op in graph.ops):  # what is computed twice is asked for once
        graph = graph.copy()
        remove_barriers(graph)
        merge_equal_ops(graph)
        remove_dead_ops(graph)
    return sum(op_flops(op) for op in graph.ops)


def op_flops(op: Op) -> int:
    """Those of one op, see `model_flops`."""
    if op.name == "custom_call":
        return int(op.attrs["callee"].flops)
    if op.name == "loop":
        return int(op.attrs["body"].rounds) * model_flops(op.attrs["body"].graph)
    if op.name == "dot_general":
        shape = op.operands[0].shape
        contracting: tuple[int, ...] = op.attrs["lhs_contracting_dimensions"]
        return 2 * op.result.type.size * prod(shape[d] for d in contracting)
    if op.name == "convolution":
        spread: tuple[int, ...] = op.attrs["lhs_dilation"]  # the zeros between cost nothing
        met = prod(op.operands[1].shape[1:]) // prod(spread)
        return 2 * op.result.type.size * met
    if op.name in ("trn.attention", "trn.attention_backward"):
        products, first = (2, 0) if op.name == "trn.attention" else (4, 1)
        (b, h, t, d), s = op.operands[first].shape, op.operands[first + 1].shape[2]
        return 2 * products * b * h * t * s * d
    return 0
