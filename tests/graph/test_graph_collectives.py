# SPDX-License-Identifier: Apache-2.0
"""Ops that ranks execute together: types, text, StableHLO, and meaning on several ranks against NumPy."""

import numpy as np
import pytest

from trnlab.collectives import whole_mesh
from trnlab.errors import GraphError
from trnlab.fabric.world import World, together
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.ops import COLLECTIVE, OPS
from trnlab.graph.parse import parse
from trnlab.graph.passes import simplify
from trnlab.graph.text import to_text
from trnlab.numerics.dtypes import bfloat16, float32, int32

WORLD = World("trn1.32xlarge", 4)
ALL, PAIRS = ((0, 1, 2, 3),), ((0, 1), (2, 3))


def on_all_ranks(make, arrays, dtype=float32, precision="float32"):
    """The first output on each rank of the graph that `make` builds on the input of that rank."""
    b = GraphBuilder("together")
    b.output(make(b, b.input("x", arrays[0].shape, dtype)))
    graph = b.build()
    return together(WORLD, lambda ranks: interpret(graph, [arrays[ranks.rank]], precision, ranks)[0])


def numbers(shape, seed=0):
    """Small whole numbers, whose sums are exact in any order."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 9, shape).astype(np.float32) for _ in range(WORLD.size)]


def test_all_reduce_adds_up_each_group():
    given = numbers((5, 3))
    for rank, found in enumerate(on_all_ranks(lambda b, x: b.all_reduce([x], PAIRS)[0], given)):
        first = rank // 2 * 2
        np.testing.assert_array_equal(found, given[first] + given[first + 1])


@pytest.mark.parametrize(("kind", "meant"), [("maximum", np.max), ("minimum", np.min), ("multiply", np.prod)])
def test_other_reductions(kind, meant):
    given = numbers((7,))
    for found in on_all_ranks(lambda b, x: b.all_reduce([x], ALL, kind)[0], given):
        np.testing.assert_array_equal(found, meant(given, axis=0))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_all_gather_concatenates_along_any_dimension(dim):
    given = numbers((2, 3, 4))
    for found in on_all_ranks(lambda b, x: b.all_gather([x], ALL, dim)[0], given):
        np.testing.assert_array_equal(found, np.concatenate(given, dim))


@pytest.mark.parametrize("dim", [0, 1])
def test_reduce_scatter_gives_each_rank_its_part(dim):
    given = numbers((8, 12))
    for rank, found in enumerate(on_all_ranks(lambda b, x: b.reduce_scatter([x], ALL, dim)[0], given)):
        np.testing.assert_array_equal(found, np.split(sum(given), 4, dim)[rank])


@pytest.mark.parametrize(("split", "concat"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_all_to_all_transposes_parts_and_ranks(split, concat):
    given = numbers((4, 8))
    for rank, found in enumerate(on_all_ranks(lambda b, x: b.all_to_all(x, ALL, split, concat), given)):
        np.testing.assert_array_equal(found, np.concatenate([np.split(x, 4, split)[rank] for x in given], concat))


def test_permute_leaves_zeros_where_nobody_sends():
    given = numbers((3,))
    found = on_all_ranks(lambda b, x: b.collective_permute(x, [(0, 1), (1, 2), (2, 0)]), given)
    for result, expected in zip(found, [given[2], given[0], given[1], np.zeros(3)]):
        np.testing.assert_array_equal(result, expected)


def test_broadcast_sends_what_the_first_of_each_group_has():
    given = numbers((3,))
    found = on_all_ranks(lambda b, x: b.collective_broadcast(x, ((1, 0), (3, 2))), given)
    for rank, result in enumerate(found):
        np.testing.assert_array_equal(result, given[(1, 1, 3, 3)[rank]])


def test_partition_id_is_the_rank():
    found = on_all_ranks(lambda b, x: b.partition_id(), numbers((1,)))
    assert [int(x) for x in found] == [0, 1, 2, 3]


def test_several_tensors_are_one_buffer():
    """Gathered and scattered together, each ends as if it were alone."""
    given = [numbers((4, 3), 1), numbers((8,), 2)]
    b = GraphBuilder("several")
    x, y = b.input("x", (4, 3), float32), b.input("y", (8,), float32)
    for value in (*b.all_gather([x, y], ALL), *b.reduce_scatter([x, y], ALL), *b.all_reduce([x, y], ALL)):
        b.output(value)
    graph = b.build()
    ranks = together(WORLD, lambda r: interpret(graph, [g[r.rank] for g in given], ranks=r))
    for rank, found in enumerate(ranks):
        for place, each in enumerate(given):
            np.testing.assert_array_equal(found[place], np.concatenate(each))
            np.testing.assert_array_equal(found[2 + place], np.split(sum(each), 4)[rank])
            np.testing.assert_array_equal(found[4 + place], sum(each))


def test_sums_are_rounded_to_the_format_where_they_are_made():
    """Partial sums of bfloat16 are bfloat16 in memory: 256 + 1 + 1 is 256 however it is added in pairs of 1s and
    256s, unless both ones meet first."""
    given = [np.full((1 << 14,), v).astype(bfloat16.numpy) for v in (256, 1, 1, 1)]
    found = on_all_ranks(lambda b, x: b.all_reduce([x], ALL)[0], given, bfloat16)
    assert {float(v) for x in found for v in np.unique(x.astype(np.float32))} <= {256.0, 258.0, 260.0}
    assert all(np.array_equal(found[0], x) for x in found)


def test_one_rank_alone_cannot_execute_a_collective():
    b = GraphBuilder("alone")
    b.output(b.all_reduce([b.input("x", (2,), float32)], ALL)[0])
    with pytest.raises(GraphError, match="TRN308"):
        interpret(b.build(), [np.zeros(2, np.float32)])


@pytest.mark.parametrize(
    ("attrs", "shape", "code"),
    [
        ({"replica_groups": (0, 1, 1), "group_size": 3, "kind": "add"}, (2,), "TRN304"),
        ({"replica_groups": (0, 1, 2), "group_size": 2, "kind": "add"}, (2,), "TRN304"),
        ({"replica_groups": (0, 1, 2, 3), "group_size": 4, "scatter_dimension": 0, "kind": "add"}, (6,), "TRN302"),
        ({"source_target_pairs": (0, 1, 0, 2)}, (2,), "TRN304"),
    ],
)
def test_what_is_no_group_is_refused(attrs, shape, code):
    name = (
        "collective_permute"
        if "source_target_pairs" in attrs
        else "reduce_scatter"
        if "scatter_dimension" in attrs
        else "all_reduce"
    )
    b = GraphBuilder("wrong")
    with pytest.raises(GraphError, match=code):
        b.append(name, [b.input("x", shape, float32)], attrs)


def every_collective():
    """A graph with each of them."""
    b = GraphBuilder("every")
    x, y = b.input("x", (4, 8), float32), b.input("n", (4,), int32)
    outputs = [*b.all_reduce([x, b.add(x, x)], PAIRS), *b.all_reduce([y], ALL, "maximum"), b.partition_id()]
    outputs += [*b.all_gather([x], ALL, 1), *b.reduce_scatter([x], ALL, 1), b.all_to_all(x, PAIRS, 0, 1)]
    outputs += [b.collective_permute(x, [(0, 3), (3, 0)]), b.collective_broadcast(x, PAIRS)]
    for value in outputs:
        b.output(value)
    return b.build()


def test_text_reads_back():
    graph = every_collective()
    assert {op.name for op in graph.ops} >= {name for name, d in OPS.items() if d.kind == COLLECTIVE}
    assert to_text(parse(to_text(graph))) == to_text(graph)


def test_collectives_of_constants_are_kept():
    """What a sum over ranks is, hangs on how many there are."""
    b = GraphBuilder("constant")
    b.output(b.all_reduce([b.constant(2.0, float32, (4,))], ALL)[0])
    graph = b.build()
    simplify(graph)
    assert [op.name for op in graph.ops] == ["constant", "all_reduce"]


@pytest.mark.parametrize(
    ("group", "world", "found"),
    [
        ((0, 1), 4, ((0, 1), (2, 3))),
        ((2, 3), 4, ((0, 1), (2, 3))),
        ((1, 3), 4, ((0, 2), (1, 3))),
        ((1, 3), 8, ((0, 2), (1, 3), (4, 6), (5, 7))),
        ((0, 1, 2, 3), 4, ((0, 1, 2, 3),)),
        ((1, 2), 4, ((1, 2),)),
        ((0, 3), 8, ((0, 3),)),
        ((0, 1, 3), 4, ((0, 1, 3),)),
    ],
)
def test_groups_of_a_mesh_follow_from_one(group, world, found):
    assert whole_mesh(group, world) == found
