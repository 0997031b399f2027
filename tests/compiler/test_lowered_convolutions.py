# SPDX-License-Identifier: Apache-2.0
"""Convolutions of every geometry, rewritten as matrix products: on the interpreter, and on the chip."""

import sys
from pathlib import Path

import numpy as np
import pytest
from compiled import execute

from trnlab.compiler.composites import expand_composites
from trnlab.graph.interpret import interpret

sys.path.insert(0, str(Path(__file__).parents[1] / "graph"))
from convolutions import random_convolution
from graph_samples import random_inputs


@pytest.mark.parametrize("seed", range(100, 160))
def test_products_are_the_convolution(seed):
    graph = random_convolution(seed)
    arrays = random_inputs(graph)
    rewritten = graph.copy()
    expand_composites(rewritten)
    assert all(op.name != "convolution" for op in rewritten.ops)
    np.testing.assert_allclose(interpret(rewritten, arrays)[0], interpret(graph, arrays)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("seed", range(6))
def test_on_the_chip(seed, chip):
    graph = random_convolution(seed)
    arrays = random_inputs(graph)
    expected = interpret(graph, arrays)[0]
    np.testing.assert_allclose(execute(graph, arrays, chip=chip)[0], expected, rtol=1e-5, atol=1e-5)
