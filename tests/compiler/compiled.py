# SPDX-License-Identifier: Apache-2.0
"""Compile small graphs, execute them on the simulated chip, and compare: the tools of these tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import ml_dtypes
import numpy as np
import torch

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.ir import Graph, Value
from trnlab.numerics.dtypes import DType, from_numpy
from trnlab.program import Program
from trnlab.program.verify import verify_program
from trnlab.sim.functional import Machine, run_program
from trnlab.sim.timing import time_program

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
            bound[place] = np.zeros(value.type.size, value.dtype.numpy)
    run_program(program, bound, chips.get(chip))
    return [bound[place].reshape(value.shape) for place, value in zip(program.outputs, graph.outputs)]


def bind(program, graph, inputs):
    """Arrays for everything outside of the arena."""
    bound = {place: x.reshape(-1).copy() for place, x in zip(program.inputs, inputs)}
    for tensor in program.tensors:
        if tensor.kind == "output":
            bound[tensor.id] = np.zeros(tensor.nbytes, np.uint8)
    return bound


def run_by_the_clock(program, bound, chip="trn1"):
    """Execute all instructions of all calls in the order in which they start."""
    timeline = time_program(program, chips.get(chip))
    arena = np.full(program.hbm_bytes, 0xFF, np.uint8)
    tensors = {**program.constants, **bound}
    for t in program.tensors:
        tensors.setdefault(t.id, arena[t.address : t.address + t.nbytes])
    machine, first = Machine(chips.get(chip)), [call.first for call in timeline.calls]
    scratch = np.full(max(r.scratch_bytes for r in program.routines), 0xFF, np.uint8)
    order = np.argsort(timeline.start, kind="stable")
    switches = 0
    for index, run in groupby(order, key=lambda i: int(timeline.call[i])):
        call = program.calls[index]
        machine.call(
            program.routines[call.routine],
            [tensors[t] for t in call.args],
            sbuf_base=call.sbuf_base,
            scratch=scratch,
            order=np.array([i - first[index] for i in run]),
        )
        switches += 1
    return switches


def execute_in_both_orders(graph, inputs, *, chip="trn1", precision="fp32"):
    """The outputs of the compiled graph, whose program is verified, and gives the same bits in the order of the
    timeline."""
    program = compile(graph, chips.get(chip), {"precision": precision})
    verify_program(program, chips.get(chip))
    in_order, by_the_clock = bind(program, graph, inputs), bind(program, graph, inputs)
    run_program(program, in_order, chips.get(chip))
    run_by_the_clock(program, by_the_clock, chip)
    for place in program.outputs:
        assert in_order[place].tobytes() == by_the_clock[place].tobytes()
    found = [in_order[place].view(v.dtype.numpy) for place, v in zip(program.outputs, graph.outputs)]
    return [array.reshape(v.shape) for array, v in zip(found, graph.outputs)]


def error(got: Array, expected: Array) -> float:
    """Largest difference, relative to the largest magnitude expected; what is not finite must be so in both."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    finite = np.isfinite(expected)
    assert np.array_equal(got[~finite], expected[~finite], equal_nan=True)
    if not finite.any():
        return 0.0
    assert np.isfinite(got[finite]).all()
    return float(np.abs(got[finite] - expected[finite]).max() / max(np.abs(expected[finite]).max(), 1e-30))


def check(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    *inputs: Array,
    tolerance: float = FP32,
    steps: float | None = None,
    **options: Any,
) -> None:
    """function(b, *values), compiled and executed, agrees with reference(*tensors) of PyTorch on the CPU.

    tolerance: of the largest magnitude of a result. steps: instead, most units in the last place of each element.
    """
    tensors = [torch.from_numpy(np.array(x)) for x in inputs]
    expected = reference(*tensors)
    graph = build(function, *inputs)
    results = execute(graph, [np.array(x) for x in inputs], **options)
    wanted = expected if isinstance(expected, (tuple, list)) else (expected,)
    assert len(results) == len(wanted)
    for got, want, value in zip(results, wanted, graph.outputs):
        if steps is None or not value.dtype.is_float:
            assert error(got, want.float().numpy()) <= tolerance
        else:
            assert ulps(got, want.float().numpy(), value.dtype).max(initial=0.0) <= steps


def check_graph(graph: Graph, inputs: Sequence[Array], *, tolerance: float = FP32, **options: Any) -> None:
    """The compiled graph agrees with the graph's interpreter."""
    expected = interpret(graph, [np.array(x) for x in inputs])
    results = execute(graph, [np.array(x) for x in inputs], **options)
    for got, want in zip(results, expected):
        assert error(got, want) <= tolerance


def same(got: Array, want: Array) -> bool:
    """Whether two results are the same numbers: NaN is NaN, and a zero has its sign."""
    got, want = np.asarray(got), np.asarray(want)
    if want.dtype.kind in "iub":
        return got.shape == want.shape and np.array_equal(got.astype(np.int64), want.astype(np.int64))
    got, want = got.astype(np.float64), want.astype(np.float64)
    return np.array_equal(got, want, equal_nan=True) and np.array_equal(
        np.signbit(got) & (got == 0), np.signbit(want) & (want == 0)
    )


def assert_same(graph: Graph, inputs: Sequence[Array], **options: Any) -> None:
    """The compiled graph gives the very numbers of the graph's interpreter, element by element."""
    expected = interpret(graph, [np.array(x) for x in inputs])
    results = execute(graph, [np.array(x) for x in inputs], **options)
    for name, got, want in zip(graph.output_names, results, expected):
        if not same(got, want):
            a, e = np.ravel(got), np.ravel(want)
            wrong = [i for i in range(len(e)) if not same(a[i], e[i])]
            shown = ", ".join(f"[{i}] {a[i]!r} for {e[i]!r}" for i in wrong[:4])
            raise AssertionError(f"{name} of {graph.name}: {len(wrong)} of {len(e)} differ: {shown}")


def ulps(got: Array, want: Array, dtype: DType) -> Array:
    """Element by element, the distance in units in the last place of `want` in its format; infinite where one of
    the two is no number, or infinite, and the other is not the same."""
    got, want = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    info = ml_dtypes.finfo(dtype.numpy)
    _, exponent = np.frexp(np.where(np.isfinite(want), want, 1.0))
    step = np.ldexp(1.0, np.maximum(exponent - 1, info.minexp) - info.nmant)
    alike = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(np.isfinite(got) & np.isfinite(want), np.abs(got - want) / step, np.inf)
    return np.where(alike, 0.0, apart)


def row_softmax(b: GraphBuilder, x: Value) -> Value:
    """Softmax along the last dimension, in the ops that frameworks decompose it to."""
    last = (len(x.shape) - 1,)
    grown = b.exponential(b.subtract(x, b.reduce(x, last, "maximum", keepdims=True)))
    return b.divide(grown, b.reduce(grown, last, keepdims=True))
