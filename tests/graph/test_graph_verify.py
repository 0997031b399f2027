# SPDX-License-Identifier: Apache-2.0
"""The verifier: each rule has a graph that breaks it, and the error shows where."""

import pytest
from graph_samples import every_op

from trnlab.errors import GraphError, Location
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.verify import RULES, verify
from trnlab.numerics.dtypes import bfloat16, float32, int32


def chain():
    """x -> tanh -> + 1 -> y, with y in place of x."""
    b = GraphBuilder("chain")
    b.loc = Location("net.py", 4)
    x = b.input("x", (2, 3), float32)
    b.output(b.add(b.tanh(x), 1.0), "y", alias_of=x)
    return b.graph


def swapped(graph):
    graph.ops.reverse()


def foreign_operand(graph):
    graph.ops[-1].operands = (chain().inputs[0], graph.ops[-1].operands[1])


def listed_twice(graph):
    graph.ops.append(graph.ops[-1])


def stolen_result(graph):
    graph.ops[0].result.op = graph.ops[1]


def wrong_type(graph):
    graph.ops[0].result.type = GraphBuilder("g").input("x", (2, 3), bfloat16).type


def wrong_attribute(graph):
    graph.ops[1].attrs["shape"] = (3,)


def unknown_output(graph):
    graph.outputs[0] = chain().outputs[0]


def unnamed_output(graph):
    graph.output_names.append("z")


def bad_alias(graph):
    graph.aliases[0] = 5


def two_aliases(graph):
    graph.outputs.append(graph.outputs[0])
    graph.output_names.append("z")
    graph.aliases[1] = 0


def alias_of_other_type(graph):
    graph.inputs.append(GraphBuilder("g").input("w", (3,), float32))
    graph.inputs[1].index = 1
    graph.aliases[0] = 1


def input_twice(graph):
    graph.inputs.append(graph.inputs[0])


def shared_numbers(graph):
    b = GraphBuilder("chain")
    seed = b.input("seed", (2,), int32)
    b.add(b.rng_uniform((10, 10), seed), b.rng_uniform((10, 10), seed, first=99))
    graph.inputs, graph.ops, graph.outputs, graph.aliases = b.graph.inputs, b.graph.ops, [b.graph.ops[-1].result], {}


BREAKS = [
    swapped,
    foreign_operand,
    listed_twice,
    stolen_result,
    wrong_type,
    wrong_attribute,
    unknown_output,
    unnamed_output,
    bad_alias,
    two_aliases,
    alias_of_other_type,
    input_twice,
    shared_numbers,
]


@pytest.mark.parametrize("damage", BREAKS)
def test_damage_is_found(damage):
    graph = chain()
    verify(graph)
    damage(graph)
    with pytest.raises(GraphError, match="chain"):
        verify(graph)


def test_every_rule_is_broken_by_some_damage():
    found = set()
    for damage in BREAKS:
        graph = chain()
        damage(graph)
        found |= {rule for rule in RULES if any(True for _ in rule(graph))}
    assert found == set(RULES)


def test_the_error_shows_the_op_between_its_neighbours():
    graph = chain()
    wrong_type(graph)
    with pytest.raises(GraphError) as caught:
        verify(graph)
    assert str(caught.value) == "\n".join(
        [
            "TRN305: graph 'chain': tanh: wrong result types",
            "    -> %0 = tanh %x : tensor<2x3xbfloat16>",
            "       %1 = constant 1.0 : tensor<2x3xfloat32>",
            "       %2 = add %0, %1 : tensor<2x3xfloat32>",
            "  at     net.py:4",
            "  limit  tensor<2x3xfloat32>",
            "  got    tensor<2x3xbfloat16>",
        ]
    )


def test_a_whole_graph_passes():
    verify(every_op())
