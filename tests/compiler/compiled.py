# SPDX-License-Identifier: Apache-2.0
"""Compile small graphs, execute them on the simulated chip, and compare: the tools of these tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.ir import Graph, Value
from trnlab.numerics.dtypes import from_numpy
from trnlab.program import Program
from trnlab.sim.functional import run_program

Array = np.ndarray[Any, Any]
FP32 = 1e-5  # of the largest magnitude of a result: fp32 sums in another order
BF16 = 2.0**-8  # half a step of bfloat16's eight significant bits: the error of one rounding, relative


def random(*shape: int, seed: int = 0, low: float | None = None, high: float = 1.0) -> Array:
    """Normal numbers, or uniform ones between `low` and `high`, in float32."""
    rng = np.random.default_rng([seed, *shape])
    numbers = rng.standard_normal(shape) if low is None else rng.uniform(low, high, shape)
    return numbers.astype(np.float32)


def integers(*shape: int, high: int, low: int = 0, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(np.int32)


def build(function: Callable[..., Any], *inputs: Array) -> Graph:
    """The graph of function(b, *values), one input per array; it returns one value or several."""
    b = GraphBuilder("test")
    values = [b.input(f"x{i}", x.shape, from_numpy(x.dtype)) for i, x in enumerate(inputs)]
    results = function(b, *values)
    for value in results if isinstance(results, (tuple, list)) else (results,):
        b.output(value)
    return b.build()


def execute(graph: Graph, inputs: Sequence[Array], *, chip: str = "trn1", precision: str = "fp32") -> list[Array]:
    """The outputs of the compiled graph. Inputs with an alias are written in place, as on the device."""
    program = compile(graph, chips.get(chip), {"precision": precision})
    return run(program, graph, inputs, chip)


def run(program: Program, graph: Graph, inputs: Sequence[Array], chip: str = "trn1") -> list[Array]:
    """The outputs of a program compiled from `graph`; in-place outputs are written into the input arrays."""
    bound = {}
    for place, x in zip(program.inputs, inputs):
        assert x.flags.c_contiguous
        bound[place] = x.reshape(-1)
    for place, value in zip(program.outputs, graph.outputs):
        if place not in bound:
            bound[place] = np.zeros(max(value.type.size, 1), value.dtype.numpy)
    run_program(program, bound, chips.get(chip))
    return [bound[place].reshape(value.shape) for place, value in zip(program.outputs, graph.outputs)]


def error(got: Array, expected: Array) -> float:
    """Largest difference, relative to the largest magnitude expected; what is not finite must be so in both."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    finite = np.isfinite(expected)
    assert np.array_equal(got[~finite], expected[~finite], equal_nan=True)
    if not finite.any():
        return 0.0
    assert np.isfinite(got[finite]).all()
    return float(np.abs(got - expected)[finite].max() / max(np.abs(expected[finite]).max(), 1e-30))


def check(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    *inputs: Array,
    tolerance: float = FP32,
    **options: Any,
) -> None:
    """function(b, *values), compiled and executed, agrees with reference(*tensors) of PyTorch on the CPU."""
    tensors = [torch.from_numpy(np.array(x)) for x in inputs]
    expected = reference(*tensors)
    graph = build(function, *inputs)
    results = execute(graph, [np.array(x) for x in inputs], **options)
    wanted = expected if isinstance(expected, (tuple, list)) else (expected,)
    assert len(results) == len(wanted)
    for got, want in zip(results, wanted):
        assert error(got, want.float().numpy()) <= tolerance


def check_graph(graph: Graph, inputs: Sequence[Array], *, tolerance: float = FP32, **options: Any) -> None:
    """The compiled graph agrees with the graph's interpreter."""
    expected = interpret(graph, [np.array(x) for x in inputs])
    results = execute(graph, [np.array(x) for x in inputs], **options)
    for got, want in zip(results, expected):
        assert error(got, want) <= tolerance


def row_softmax(b: GraphBuilder, x: Value) -> Value:
    """Softmax along the last dimension, in the ops that frameworks decompose it to."""
    last = (len(x.shape) - 1,)
    grown = b.exponential(b.subtract(x, b.reduce(x, last, "maximum", keepdims=True)))
    return b.divide(grown, b.reduce(grown, last, keepdims=True))
