# SPDX-License-Identifier: Apache-2.0
"""What may be an output, and when an output may be written over the input it replaces."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import error, execute, random, run

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret


def updated(make, *inputs):
    """The program of a graph in which make(b, *values) returns (output, input it replaces or None) pairs, and both
    results: of the chip, and of the interpreter."""
    b = GraphBuilder("test")
    values = [b.input(f"x{i}", x.shape, "float32") for i, x in enumerate(inputs)]
    for value, old in make(b, *values):
        b.output(value, alias_of=old)
    graph = b.build()
    program = compile(graph, chips.get("trn1"), {})
    expected = interpret(graph, [x.copy() for x in inputs])
    got = run(program, graph, [x.copy() for x in inputs])
    for a, e in zip(got, expected):
        assert error(a, e) <= 1e-5
    return program


def in_place(program):
    return [place in program.inputs for place in program.outputs]


def test_updates_in_place():
    """Adam: three tensors, each computed from its old value."""

    def adam(b, p, m, v, g):
        new_m = b.add(b.multiply(m, 0.9), b.multiply(g, 0.1))
        new_v = b.add(b.multiply(b.multiply(v, v), 0.99), b.multiply(b.multiply(g, g), 0.01))
        step = b.divide(new_m, b.add(b.sqrt(new_v), 1e-8))
        return (b.subtract(p, b.multiply(step, 1e-3)), p), (new_m, m), (new_v, v)

    for shape in ((1,), (37, 11), (300, 700)):
        assert in_place(updated(adam, *(random(*shape, seed=i) for i in range(4)))) == [True] * 3


def test_weight_gradient_and_update_in_one_program():
    def step(b, w, x, g):
        return ((b.subtract(w, b.multiply(b.dot_general(x, g, ((0,), (0,))), 0.1)), w),)

    assert in_place(updated(step, random(130, 65), random(200, 130), random(200, 65, seed=1))) == [True]


def test_what_an_update_computes_before_its_matmul_joins_it_too():
    """The decay of the weights stands before the gradient, as regularizers of losses have it."""

    def step(b, w, x, g):
        decay = b.multiply(b.multiply(w, 2.0), 0.01)
        gradient = b.add(decay, b.dot_general(x, g, ((0,), (0,))))
        return ((b.subtract(w, b.multiply(gradient, 0.1)), w),)

    assert in_place(updated(step, random(16, 12), random(8, 16), random(8, 12, seed=1))) == [True]


@pytest.mark.parametrize("shape", [(37, 11), (300, 700), (1500, 600)])
def test_update_with_the_matmul_that_computes_its_gradient(shape):
    """Adam on tiles of a gradient that is never in memory: one call for all of it."""

    def step(b, p, m, v, x, g):
        gradient = b.dot_general(x, g, ((0,), (0,)))
        new_m = b.add(m, b.multiply(b.subtract(gradient, m), 0.1))
        new_v = b.add(b.multiply(v, 0.99), b.multiply(b.multiply(gradient, gradient), 0.01))
        change = b.divide(new_m, b.add(b.sqrt(new_v), 1e-3))
        return (b.subtract(p, b.multiply(change, 1e-3)), p), (new_m, m), (new_v, v)

    rows, cols = shape
    state = [random(*shape), random(*shape, seed=1), random(*shape, low=0.5, high=1.0)]
    program = updated(step, *state, random(130, rows), random(130, cols, seed=1))
    assert in_place(program) == [True] * 3
    assert [call.label.partition(":")[0] for call in program.calls] == ["dot"]


def test_clipped_updates_wait_for_all_gradients():
    """What scales a gradient hangs on the gradient itself: it has to be in memory."""

    def step(b, p, x, g):
        gradient = b.dot_general(x, g, ((0,), (0,)))
        norm = b.sqrt(b.reduce(b.multiply(gradient, gradient), (0, 1)))
        return ((b.subtract(p, b.divide(gradient, b.maximum(norm, 1.0))), p),)

    assert in_place(updated(step, random(130, 65), random(200, 130), random(200, 65, seed=1))) == [True]


def test_not_in_place_when_the_old_value_is_read_later():
    """The product reads the old matrix after the loop that makes the new one could have run."""

    def step(b, w, x):
        new = b.add(w, 1.0)
        return (new, w), (b.matmul(b.matmul(x, b.tanh(new)), w), None)

    updated(step, random(65, 65), random(65, 65, seed=1))


def test_not_in_place_when_read_in_another_order():
    """A transposed read meets elements that were overwritten already."""
    program = updated(lambda b, x: ((b.add(x, b.transpose(x, (1, 0))), x),), random(200, 200))
    assert in_place(program) == [False]


def test_not_in_place_when_the_new_value_does_not_wait_for_the_old():
    """The new x is stored before, or while, the old x is loaded for something else."""
    program = updated(
        lambda b, x, y: ((b.tanh(y), x), (b.maximum(b.tanh(y), x), None)), random(5, 7), random(5, 7, seed=1)
    )
    assert in_place(program) == [False, False]


def test_two_looks_at_one_tensor_are_one_load():
    """The second look would otherwise be loaded after the first one's update was stored."""
    updated(lambda b, x: ((b.logistic(x), x), (b.maximum(b.reshape(x, (1, 130)), 0.25), None)), random(130))


def test_not_in_place_when_rows_are_read_in_several_sweeps():
    def step(b, x):
        shifted = b.subtract(x, b.reduce(x, (1,), "maximum", keepdims=True))
        return ((b.subtract(shifted, b.log(b.reduce(b.exponential(shifted), (1,), keepdims=True))), x),)

    updated(step, random(3, 60_000))


def test_two_tensors_change_places():
    updated(lambda b, x, y: ((y, x), (x, y)), random(5, 7), random(5, 7, seed=1))
    updated(lambda b, x, y: ((b.add(y, 1.0), x), (b.add(x, 1.0), y)), random(5, 7), random(5, 7, seed=1))


def test_an_input_that_is_its_own_update():
    assert in_place(updated(lambda b, x: ((x, x), (b.add(x, 1.0), None)), random(5, 7))) == [True, False]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_outputs_of_every_kind(precision):
    """Inputs, views of inputs, numbers, arrays, counters, repeated values, views of computed values."""
    b = GraphBuilder("test")
    x, y = b.input("x", (130, 33), "float32"), b.input("y", (), "float32")
    table = np.arange(35, dtype=np.float32).reshape(5, 7)
    h = b.tanh(x)
    outputs = (
        x,
        x,
        y,
        b.transpose(x, (1, 0)),
        b.slice_dim(x, 0, 3, 9),
        b.broadcast_in_dim(y, (3, 5), ()),
        h,
        h,
        b.reshape(h, (33, 130)),
        b.transpose(h, (1, 0)),
        b.constant(2.5, shape=(3, 5)),
        b.constant(table),
        b.transpose(b.constant(table), (1, 0)),
        b.constant(True, shape=(3,)),
        b.iota((4, 5), "int32", 1),
        b.constant(7),
        b.compare(x, "GT", 0.0),
        b.convert(x, "int32"),
        b.convert(x, "bfloat16"),
    )
    for value in outputs:
        b.output(value)
    graph = b.build()
    inputs = [np.round(9 * random(130, 33)), np.array(0.5, np.float32)]
    for got, expected in zip(execute(graph, inputs, precision=precision), interpret(graph, inputs), strict=True):
        assert got.dtype == expected.dtype or expected.dtype == bool
        assert error(got, expected) <= 1e-5


def test_arrays_in_the_program():
    """A constant array read in full, by row, by column, as an operand of a product, and as a table."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((130, 65)).astype(np.float32)
    b = GraphBuilder("test")
    x, ids = b.input("x", (130, 65), "float32"), b.input("ids", (9,), "int32")
    c, row, col = b.constant(table), b.constant(table[:, :1].copy()), b.constant(table[0].copy())
    for value in (
        b.add(x, c),
        b.multiply(x, row),
        b.add(x, col),
        b.dot_general(x, c, ((1,), (1,))),
        b.take_rows(c, ids),
    ):
        b.output(value)
    graph = b.build()
    inputs = [random(130, 65), np.arange(9, dtype=np.int32)[::-1].copy()]
    for got, expected in zip(execute(graph, inputs), interpret(graph, inputs)):
        assert error(got, expected) <= 1e-5


def test_numbers_where_memory_is_read():
    """One number throughout as an operand of a product, a table's index, a part of a concatenation."""
    b = GraphBuilder("test")
    x = b.input("x", (130, 65), "float32")
    ones, ids = b.constant(1.0, shape=(130, 7)), b.constant(2, "int32", (9,))
    outputs = (
        b.dot_general(x, ones, ((0,), (0,))),
        b.dot_general(ones, x, ((0,), (0,))),
        b.take_rows(x, ids),
        b.scatter_add_rows(ids, b.slice_dim(x, 0, 0, 9), 5),
        b.concatenate([x, b.constant(0.5, shape=(130, 3))], 1),
        b.broadcast_in_dim(b.constant(3.0, shape=(3,)), (5, 3), (1,)),
        b.reduce(b.constant(2.0, shape=(5, 3)), (1,)),
    )
    for value in outputs:
        b.output(value)
    graph, inputs = b.build(), [random(130, 65)]
    for got, expected in zip(execute(graph, inputs), interpret(graph, inputs)):
        assert error(got, expected) <= 1e-5
