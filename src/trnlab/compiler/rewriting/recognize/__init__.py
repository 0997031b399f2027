# SPDX-License-Identifier: Apache-2.0
"""Wholes that a front end wrote out in parts, found again in the graph: see ADR 45."""

from __future__ import annotations

from trnlab.compiler.rewriting.composites import expand_attention
from trnlab.compiler.rewriting.recognize.activations import recognize_activations
from trnlab.compiler.rewriting.recognize.along import recognize_picks
from trnlab.compiler.rewriting.recognize.attention import recognize_attention
from trnlab.compiler.rewriting.recognize.distances import recognize_distances
from trnlab.compiler.rewriting.recognize.normalization import recognize_normalizations
from trnlab.compiler.rewriting.recognize.rotations import recognize_rotations
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes import simplify
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import rewrite
from trnlab.graph.powers import beside_one

__all__ = [
    "recognize",
    "recognize_activations",
    "recognize_attention",
    "recognize_distances",
    "recognize_normalizations",
    "recognize_picks",
    "recognize_rotations",
]


def recognize(graph: Graph) -> None:
    """Replace what is written out by the ops that have kernels, or tables of an engine. Taps hinder nothing."""
    attention = recognize_attention(graph)
    activations = recognize_activations(graph)
    picks = recognize_picks(graph)
    distances = recognize_distances(graph)
    norms = recognize_normalizations(graph)
    rotations = recognize_rotations(graph)
    recognize_powers(graph)
    if attention or activations or picks or distances or norms or rotations:
        simplify(graph)
    if attention:
        expand_attention(graph)


def recognize_powers(graph: Graph) -> None:
    """Bias corrections 1 - beta^t in the form that keeps their digits."""

    def rule(op: Op, b: GraphBuilder) -> Value | None:
        x, y = op.operands
        return beside_one(b, op.name, x, y)

    if rewrite(graph, {"add": rule, "subtract": rule}):
        remove_dead_ops(graph)
