# SPDX-License-Identifier: Apache-2.0
"""Legalization: what no engine computes exactly, in terms of ops that one does.

The engines compute in float32, which holds whole numbers up to 2^24; GpSimd adds, multiplies and compares 32-bit
integers tile by tile; Vector moves their bits. All else about integers is written here as graph ops of these three
kinds, so that the rest of the compiler fuses and schedules it like anything else. An op that a rule of selection
covers stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.rewriting.legalize import arithmetic, casts, moves, products, reductions, shifts
from trnlab.compiler.rules import select
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import Rule, rewrite
from trnlab.graph.passes.subexpressions import merge_equal_ops

Legalization = Callable[[Op, GraphBuilder, Ranges], "Value | None"]
"""The op in terms of simpler ones, or None where it is not known how."""

LEGALIZATIONS: dict[str, Legalization] = {
    **dict.fromkeys(("add", "subtract", "multiply"), arithmetic.widened),
    "negate": arithmetic.negate,
    "abs": arithmetic.absolute,
    "sign": arithmetic.sign,
    "clamp": arithmetic.clamp,
    "divide": arithmetic.divide,
    "remainder": arithmetic.remainder,
    "power": arithmetic.power,
    **dict.fromkeys(("shift_left", "shift_right_logical"), shifts.logical),
    "shift_right_arithmetic": shifts.arithmetic,
    "convert": casts.convert,
    "reduce": reductions.reduce,
    "dot_general": products.dot_general,
    "scatter": products.scatter,
    "gather": moves.gather,
}
MAX_ROUNDS = 8  # each writes an op in terms of simpler ones; the longest way down has five


def legalize(graph: Graph) -> None:
    """Rewrite what no rule of selection covers, until all is covered or nothing more is known. Same meaning."""
    if rewrite(graph, {"pad": moves.pad}):
        remove_dead_ops(graph)
    for _ in range(MAX_ROUNDS):
        known = Ranges(graph)
        if not rewrite(graph, {name: _uncovered(make, known) for name, make in LEGALIZATIONS.items()}):
            break
        merge_equal_ops(graph)
        remove_dead_ops(graph)


def _uncovered(make: Legalization, known: Ranges) -> Rule:
    def rule(op: Op, b: GraphBuilder) -> Value | None:
        return make(op, b, known) if select(op, known) is None else None

    return rule
