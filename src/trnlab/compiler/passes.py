# SPDX-License-Identifier: Apache-2.0
"""The compiler's passes over a graph, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.compiler.analysis.strided import compute_roots
from trnlab.compiler.fusing.recompute import recompute
from trnlab.compiler.loops import prepare_loops
from trnlab.compiler.rewriting.biases import shift_biases
from trnlab.compiler.rewriting.canonical import canonicalize, compute_outputs, own_operands
from trnlab.compiler.rewriting.channels import channels_first
from trnlab.compiler.rewriting.collectives import bucket_reductions, canonical_collectives
from trnlab.compiler.rewriting.composites import attention_of_stack, expand_composites
from trnlab.compiler.rewriting.grouped import tabulate_groups
from trnlab.compiler.rewriting.legalize import legalize
from trnlab.compiler.rewriting.moments import join_moments
from trnlab.compiler.rewriting.precision import cast_loads, cast_matmuls
from trnlab.compiler.rewriting.products import sum_beside_products, sum_products
from trnlab.compiler.rewriting.recognize import recognize
from trnlab.compiler.rewriting.rounding import round_last
from trnlab.compiler.rewriting.softmax import join_softmax_statistics
from trnlab.compiler.rewriting.squares import join_sums_of_squares
from trnlab.compiler.rewriting.tables import update_rows
from trnlab.graph.ir import Graph
from trnlab.graph.passes import simplify
from trnlab.graph.purposes import name_purposes
from trnlab.kernels.blocks import casts_freely

Pass = tuple[str, Callable[[Graph, Mapping[str, Any]], object]]

# Each changes the graph in place and keeps its meaning. The first bring it into the forms that the others know; a
# loop's round goes through these, too, before what all rounds share is moved out of it.
FORMS: tuple[Pass, ...] = (
    ("purposes", lambda graph, options: name_purposes(graph)),
    ("channels-first", lambda graph, options: channels_first(graph)),
    ("expand", lambda graph, options: expand_composites(graph)),
    ("collectives", lambda graph, options: canonical_collectives(graph)),
    ("simplify", lambda graph, options: simplify(graph)),
    ("recognize", lambda graph, options: recognize(graph)),
    ("attention", lambda graph, options: attention_of_stack(graph, options)),
    ("biases", lambda graph, options: shift_biases(graph)),
    ("mixed-precision", lambda graph, options: cast_matmuls(graph, to_bf16=options.get("precision") == "bf16")),
    ("tables", lambda graph, options: update_rows(graph)),
    ("canonicalize", lambda graph, options: canonicalize(graph)),
    ("grouped", lambda graph, options: tabulate_groups(graph, options.get("chip"))),
    ("simplify-again", lambda graph, options: simplify(graph)),
)
FINISH: tuple[Pass, ...] = (
    ("legalize", lambda graph, options: legalize(graph)),
    ("round-last", lambda graph, options: round_last(graph)),
    ("moments", lambda graph, options: join_moments(graph)),
    ("softmax-statistics", lambda graph, options: join_softmax_statistics(graph)),
    ("sums-of-squares", lambda graph, options: join_sums_of_squares(graph)),
    ("recompute", lambda graph, options: recompute(graph)),
    ("sum-products", lambda graph, options: sum_products(graph)),
    ("sum-beside-products", lambda graph, options: sum_beside_products(graph)),
    ("cast-loads", lambda graph, options: cast_loads(graph, bool(options.get("casting_loads")))),
    ("buckets", lambda graph, options: bucket_reductions(graph, options)),
    ("own-operands", lambda graph, options: own_operands(graph)),
    ("compute-outputs", lambda graph, options: compute_outputs(graph)),
    ("compute-roots", lambda graph, options: compute_roots(graph)),
)
PASSES: tuple[Pass, ...] = (("loops", lambda graph, options: bring_in_loops(graph, options)), *FORMS, *FINISH)


def bring_in_loops(graph: Graph, options: Mapping[str, Any]) -> None:
    """The rounds of loops in the forms of `FORMS`, and of the loops within them."""

    def forms(body: Graph) -> None:
        run_passes(body, options, (PASSES[0], *FORMS))

    prepare_loops(graph, forms)


def run_passes(graph: Graph, options: Mapping[str, Any], passes: Iterable[Pass]) -> None:
    """Run some of the passes in order."""
    for _, run in passes:
        run(graph, options)


def with_chip(options: Mapping[str, Any], chip: Chip) -> dict[str, Any]:
    """The options of a compilation, the chip, and what passes ask about it: whether loads that cast run ahead of
    others. Where GpSimdE has to trigger them, they would wait behind stores."""
    return {**options, "casting_loads": casts_freely(chip), "chip": chip}
