# SPDX-License-Identifier: Apache-2.0
"""Graphs as text: a golden example, print -> parse -> print is the identity, and errors with their line."""

import numpy as np
import pytest
from graph_samples import every_op, random_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from trnlab.errors import GraphError
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.canonical import canonical_bytes
from trnlab.graph.parse import parse
from trnlab.graph.text import to_text
from trnlab.numerics.dtypes import bfloat16, float32, int32

GOLDEN = """\
graph @layer(%x: tensor<2x3xfloat32>, %w: tensor<3x4xbfloat16>) {
  %0 = constant [[1.0, 0.5, -inf]] : tensor<1x3xfloat32>
  %1 = broadcast_in_dim %0 {broadcast_dimensions = [0, 1]} : tensor<2x3xfloat32>
  %2 = add %x, %1 : tensor<2x3xfloat32>
  %3 = convert %2 : tensor<2x3xbfloat16>
  %4 = dot_general %3, %w {lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]} : tensor<2x4xfloat32>
  %5 = constant -0.0 : tensor<2x4xfloat32>
  %mask = compare %4, %5 {comparison_direction = GT} : tensor<2x4xbool>
  return %mask as "a \\"mask\\"", %2 as "x" into %x
}
"""


def test_golden():
    b = GraphBuilder("layer")
    x, w = b.input("x", (2, 3), float32), b.input("w", (3, 4), bfloat16)
    moved = b.add(x, b.constant(np.array([[1, 0.5, -np.inf]])))
    mask = b.compare(b.matmul(b.convert(moved, bfloat16), w), "GT", -0.0)
    mask.name = "mask"
    b.output(mask, 'a "mask"')
    b.output(moved, "x", alias_of=x)
    assert to_text(b.build()) == GOLDEN
    assert to_text(parse(GOLDEN)) == GOLDEN


@pytest.mark.parametrize("locations", [False, True])
def test_every_op_comes_back(locations):
    graph = every_op()
    text = to_text(graph, locations=locations)
    back = parse(text)
    assert to_text(back, locations=locations) == text
    assert canonical_bytes(back) == canonical_bytes(graph)
    if locations:
        assert [(op.loc, op.origin) for op in back.ops] == [(op.loc, op.origin) for op in graph.ops]


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_random_graphs_come_back(seed):
    graph = random_graph(seed)
    text = to_text(graph)
    assert to_text(parse(text)) == text
    assert canonical_bytes(parse(text)) == canonical_bytes(graph)


@given(st.floats(width=32), st.sampled_from([float32, bfloat16]))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_numbers_come_back_bit_for_bit(number, dt):
    b = GraphBuilder("g")
    b.output(b.constant(number, dt, (3,)))
    (op,) = parse(to_text(b.graph)).ops
    old, new = np.float64(b.graph.ops[0].attrs["value"]), np.float64(op.attrs["value"])
    assert (np.isnan(old) and np.isnan(new)) or old.tobytes() == new.tobytes()


def test_large_constants_are_bytes_or_left_out():
    b = GraphBuilder("g")
    b.output(b.constant(np.arange(1000, dtype=np.int32).reshape(10, 100)))
    (op,) = parse(to_text(b.graph)).ops
    assert np.array_equal(op.attrs["value"], np.arange(1000).reshape(10, 100))
    assert "<1000 elements>" in to_text(b.graph, whole=False)


def test_a_taken_or_impossible_name_is_numbered():
    b = GraphBuilder("two words")
    x, y = b.input("x", (), int32), b.input("x", (), int32)
    b.input("7 up", (), int32)
    b.output(b.add(x, y))
    text = to_text(b.graph)
    assert text.startswith('graph @"two words"(%x: tensor<int32>, %0: tensor<int32>, %1: tensor<int32>)')
    assert to_text(parse(text)) == text


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("%2 = add %x, %1", "%2 = add %x, %w", 4),
        ("%2 = add %x, %1", "%2 = add %x, %9", 4),
        ("%2 = add", "%2 = plus", 4),
        ("%3 = convert", "%2 = convert", 5),
        ("rhs_contracting_dimensions = [0]", "rhs_contracting_dimensions = [1]", 6),
        (": tensor<2x4xbool>", ": tensor<2x4xint32>", 8),
        ("tensor<2x4xbool>", "tensor<2x4xint99>", 8),
        ("%mask = compare", "%mask ; compare", 8),
        ("\n}", "", 10),
    ],
)
def test_errors_say_the_line(old, new, line):
    with pytest.raises(GraphError) as caught:
        parse(GOLDEN.replace(old, new, 1), "layer.txt")
    assert f"layer.txt:{line}" in str(caught.value)
