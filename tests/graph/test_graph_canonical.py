# SPDX-License-Identifier: Apache-2.0
"""The canonical form: what must not matter does not, what must matter does; and differences in words."""

import numpy as np
import pytest
from graph_samples import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from trnlab.errors import Location
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.canonical import canonical_bytes, canonical_hash, diff
from trnlab.graph.parse import parse
from trnlab.graph.text import to_text
from trnlab.numerics.dtypes import bfloat16, float32


def net(rows=8, dt=float32, rate=0.1, kind="maximum", extra=0, donate=True, table=(1, 2, 3), swap=False, also=False):
    b = GraphBuilder("net")
    b.loc = Location("net.py", 5)
    x, y = b.input("x", (rows, 128), dt), b.input("y", (rows, 128), dt)
    value = b.multiply(b.subtract(y, x) if swap else b.subtract(x, y), rate)
    for _ in range(extra):
        value = b.tanh(value)
    b.output(value, "new x", alias_of=x if donate else None)
    b.output(b.reduce(value, [1], kind), "best")
    b.output(b.constant(np.array(table)), "table")
    if also:
        b.output(value, "private")
    return b.build()


def test_names_locations_and_dead_ops_do_not_matter():
    graph, other = net(), net()
    other.name = "another"
    other.output_names = ["a", "b", "c"]
    for value in other.values():
        value.name = "v"
    b = GraphBuilder("g")
    b.graph = other
    b.exponential(other.inputs[0])
    for op in other.ops:
        op.loc, op.origin = None, "aten.other"
    assert canonical_bytes(graph) == canonical_bytes(other)
    assert diff(graph, other) == []


def test_the_order_of_independent_ops_does_not_matter():
    def build(first):
        b = GraphBuilder("g")
        x = b.input("x", (2,), float32)
        made = {name: getattr(b, name)(x) for name in (first, *{"tanh", "sine"} - {first})}
        b.output(b.add(made["tanh"], made["sine"]))
        return b.build()

    assert to_text(build("tanh")) != to_text(build("sine"))
    assert canonical_hash(build("tanh")) == canonical_hash(build("sine"))


CHANGES = [
    ({"rows": 4}, "input 0 'x' shape: (8, 128) -> (4, 128)"),
    ({"dt": bfloat16}, "input 0 'x' dtype: float32 -> bfloat16"),
    ({"rate": 0.2}, "constant at net.py:5: 0.1 : tensor<8x128xfloat32> -> 0.2 : tensor<8x128xfloat32>"),
    (
        {"kind": "minimum"},
        "op at net.py:5: reduce(tensor<8x128xfloat32>) {dimensions = (1,), kind = maximum} -> "
        "reduce(tensor<8x128xfloat32>) {dimensions = (1,), kind = minimum}",
    ),
    ({"extra": 1}, "op at net.py:5: absent -> tanh(tensor<8x128xfloat32>)"),
    ({"extra": 1000}, "number of tanh: 0 -> 1000"),
    ({"donate": False}, "a result of net.py:5: overwrites input 0 -> a tensor of its own"),
    ({"also": True}, "a result of net.py:5 that is kept now: float32[8, 128]"),
    ({"swap": True}, "the graph: these ops -> the same ops, wired differently"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_a_change_changes_the_hash_and_is_named(change, words):
    assert canonical_hash(net()) != canonical_hash(net(**change))
    assert str(diff(net(), net(**change))[0]) == words


def test_a_changed_array_is_named():
    (found,) = diff(net(), net(table=(1, 2, 4)))
    assert found.part == "constant"
    assert "array" in found.new


def test_the_sign_of_zero_matters():
    assert canonical_hash(net(rate=0.0)) != canonical_hash(net(rate=-0.0))


def test_deep_graphs_do_not_overflow_the_stack():
    assert canonical_hash(net(extra=5000)) == canonical_hash(net(extra=5000))


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_printing_and_parsing_keeps_the_hash(seed):
    graph = random_graph(seed)
    assert canonical_hash(parse(to_text(graph))) == canonical_hash(graph)
