# SPDX-License-Identifier: Apache-2.0
"""custom_call: code that a graph does not look into. What it is counts, what it is called does not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from trnlab.errors import GraphError
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.canonical import canonical_hash
from trnlab.graph.interpret import interpret
from trnlab.graph.ir import TensorType
from trnlab.graph.parse import parse
from trnlab.graph.passes import simplify
from trnlab.graph.stablehlo import to_stablehlo
from trnlab.graph.text import to_text
from trnlab.numerics.dtypes import bfloat16, float32, int32

PAIR = (TensorType((4, 2), float32), TensorType((4, 2), int32))


@dataclass(frozen=True)
class Both:
    """(x, n) -> (x + n, n + 1)."""

    name: str = "both"
    digest: str = "0123456789abcdef" * 4
    operands: tuple = PAIR
    results: tuple = PAIR
    flops: int = 7

    def execute(self, arrays):
        x, n = arrays
        assert (x.dtype, n.dtype) == (np.float32, np.int32)
        return [x + n, n + 1]


def graph(callee, times=1):
    b = GraphBuilder("g")
    x, n = b.input("x", (4, 2), float32), b.input("n", (4, 2), int32)
    for _ in range(times):
        first, second = b.custom_call(callee, x, n)
        b.output(first)
        b.output(second)
    return b.build()


def test_it_runs_through_the_callee():
    x, n = np.ones((4, 2), np.float32), np.arange(8, dtype=np.int32).reshape(4, 2)
    first, second = interpret(graph(Both()), [x, n])
    assert_array_equal(first, x + n)
    assert_array_equal(second, n + 1)


def test_narrow_results_stay_exact():
    types = (TensorType((4,), bfloat16),)

    @dataclass(frozen=True)
    class Same(Both):
        operands: tuple = types
        results: tuple = types

        def execute(self, arrays):
            return list(arrays)

    b = GraphBuilder("g")
    b.output(b.custom_call(Same(), b.input("x", (4,), bfloat16))[0])
    x = np.array([1, 1.0078125, -3e38, 0], bfloat16.numpy)
    assert_array_equal(interpret(b.build(), [x])[0], x)


def test_operands_must_be_those_it_was_made_for():
    b = GraphBuilder("g")
    x = b.input("x", (4, 2), float32)
    with pytest.raises(GraphError, match="both") as refused:
        b.custom_call(Both(), x, x)
    assert refused.value.code == "TRN302"


def test_the_hash_follows_the_code():
    assert canonical_hash(graph(Both())) == canonical_hash(graph(Both()))
    assert canonical_hash(graph(Both())) != canonical_hash(graph(Both(digest="f" * 64)))


def test_two_calls_stay_two_because_code_may_draw_random_numbers():
    twice = graph(Both(), times=2)
    simplify(twice)
    assert [op.name for op in twice.ops] == ["custom_call"] * 2


def test_text_names_the_code_and_says_why_it_cannot_be_read_back():
    text = to_text(graph(Both()))
    assert "%0, %1 = custom_call %x, %n {callee = @both 0123456789ab}" in text
    with pytest.raises(GraphError, match="TRN307") as refused:
        parse(text)
    assert "not in it" in str(refused.value)


def test_stablehlo_calls_it_by_name():
    text = to_stablehlo(graph(Both()))
    assert '%0:2 = "stablehlo.custom_call"(%arg0, %arg1) {call_target_name = "both"' in text
    assert '"func.return"(%0#0, %0#1)' in text
