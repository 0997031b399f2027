# SPDX-License-Identifier: Apache-2.0
"""Collectives through StableHLO: what is written reads back as the same ops, and one rank alone has none."""

import numpy as np
import pytest

pytest.importorskip("jaxlib")

from trnlab.errors import TrnlabError
from trnlab.fabric.world import World, together
from trnlab.frontends.stablehlo import import_module
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.ops import COLLECTIVE, OPS
from trnlab.graph.stablehlo import to_stablehlo
from trnlab.numerics.dtypes import float32

ALL, PAIRS = ((0, 1, 2, 3),), ((0, 1), (2, 3))
WORLD = World("trn1.32xlarge", 4)


def every_collective():
    """A graph with each of them."""
    b = GraphBuilder("every")
    x = b.input("x", (4, 8), float32)
    outputs = [*b.all_reduce([x, b.add(x, x)], PAIRS), *b.all_reduce([x], ALL, "maximum")]
    outputs += [
        *b.all_gather([x], ALL, 1),
        *b.reduce_scatter([x, b.add(x, 1.0)], ALL, 1),
        b.all_to_all(x, PAIRS, 0, 1),
    ]
    outputs += [b.collective_permute(x, [(0, 3), (3, 0)]), b.collective_broadcast(x, PAIRS)]
    outputs += [b.multiply(b.convert(b.partition_id(), float32), 2.0)]
    for value in outputs:
        b.output(value)
    return b.build()


def test_they_read_back_with_the_same_meaning():
    graph = every_collective()
    again = import_module(to_stablehlo(graph), ranks=WORLD.size).graph
    kinds = {name for name, d in OPS.items() if d.kind == COLLECTIVE}
    assert {op.name for op in again.ops} >= kinds
    rng = np.random.default_rng(0)
    given = [rng.integers(-8, 9, (4, 8)).astype(np.float32) for _ in range(WORLD.size)]
    first, second = (together(WORLD, lambda r, g=g: interpret(g, [given[r.rank]], ranks=r)) for g in (graph, again))
    for ours, theirs in zip(first, second):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_module_of_one_rank_has_none():
    with pytest.raises(TrnlabError, match="TRN235"):
        import_module(to_stablehlo(every_collective()))


def test_groups_of_one_are_no_collectives():
    b = GraphBuilder("alone")
    b.output(b.all_reduce([b.input("x", (4,), float32)], ((0,),))[0])
    assert import_module(to_stablehlo(b.build())).steps == []
