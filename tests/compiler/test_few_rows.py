# SPDX-License-Identifier: Apache-2.0
"""Rows that are few are cut into parts beside each other, and products read weights that have a byte an element."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.numerics.dtypes import bfloat16, dtype, float32
from trnlab.runtime.session import Session
from trnlab.sim.functional import run_program
from trnlab.sim.timing import time_program


def _executed(graph, inputs, chip="trn1"):
    program = compile(graph, chips.get(chip), {"precision": "fp32"})
    outputs = [np.zeros(v.shape, v.dtype.numpy) for v in graph.outputs]
    bound = dict(zip(program.outputs, outputs)) | dict(zip(program.inputs, inputs))
    run_program(program, bound, chips.get(chip))
    return outputs, program


def _normed(rows, width):
    b = GraphBuilder("norm")
    x, scale = b.input("x", (rows, width), float32), b.input("scale", (width,), float32)
    mean = b.multiply(b.reduce(b.multiply(x, x), (-1,), keepdims=True), 1 / width)
    unit = b.multiply(x, b.rsqrt(b.add(mean, 1e-5)))
    b.output(b.multiply(unit, b.broadcast_in_dim(scale, x.shape, (1,))))
    return b.build()


@pytest.mark.parametrize("rows", [1, 3, 8, 32])
def test_softmax_of_few_rows(rows):
    """The largest of each row, and its sum, over all of its parts; scores that are hidden weigh nothing."""
    random = np.random.default_rng(rows)
    x = random.standard_normal((rows, 2304)).astype(np.float32)
    x[:, 2000:] = -30000.0
    b = GraphBuilder("softmax")
    given = b.input("x", x.shape, float32)
    grown = b.exponential(b.subtract(given, b.reduce(given, (-1,), "maximum", keepdims=True)))
    b.output(b.divide(grown, b.reduce(grown, (-1,), keepdims=True)))
    graph = b.build()
    (found,), _ = _executed(graph, [x])
    np.testing.assert_allclose(found, interpret(graph, [x])[0], rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16, 33, 64])
def test_norms_of_few_rows(rows):
    """Sums over parts, and columns that each part has its own of."""
    random = np.random.default_rng(rows)
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in ((rows, 4096), (4096,))]
    graph = _normed(rows, 4096)
    (found,), _ = _executed(graph, inputs)
    np.testing.assert_allclose(found, interpret(graph, inputs)[0], rtol=2e-5, atol=1e-6)


def test_no_row_meets_the_infinities_of_another():
    random = np.random.default_rng(0)
    x = random.standard_normal((4, 4096)).astype(np.float32)
    x[1, 17] = np.inf
    (found,), _ = _executed(_normed(4, 4096), [x, np.ones(4096, np.float32)])
    assert np.isfinite(found[[0, 2, 3]]).all()


def test_a_row_more_takes_little_longer():
    """A norm of eight rows once took 56 us on trn1 where one of a row took 15."""
    chip = chips.get("trn1")
    times = [time_program(compile(_normed(rows, 8192), chip, {"precision": "fp32"}), chip).total for rows in (2, 8)]
    assert times[1] < 1.25 * times[0]


def _product(form, rows, inner, columns):
    b = GraphBuilder("product")
    x, w = b.input("x", (rows, inner), bfloat16), b.input("w", (inner, columns), dtype(form))
    y = b.dot_general(x, w if form == "bfloat16" else b.convert(w, bfloat16), ((1,), (0,)), dt=float32)
    b.output(b.multiply(y, b.broadcast_in_dim(b.input("scale", (columns,), float32), y.shape, (1,))))
    return b.build()


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("form", ["int8", "float8_e4m3"])
@pytest.mark.parametrize("sizes", [(4, 512, 700), (130, 200, 64), (3, 4096, 600)])
def test_products_of_weights_in_a_byte(form, sizes, chip):
    """As the interpreter has them, without a copy of the weights in memory."""
    rows, inner, columns = sizes
    random, graph = np.random.default_rng(1), _product(form, *sizes)
    inputs = [
        random.standard_normal((rows, inner)).astype(bfloat16.numpy),
        np.round(random.standard_normal((inner, columns)) * 20).astype(dtype(form).numpy),
        random.standard_normal(columns).astype(np.float32),
    ]
    (found,), program = _executed(graph, inputs, chip)
    wanted = interpret(graph, inputs)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    assert len(program.calls) == 1


def test_weights_in_a_byte_are_read_quicker():
    """Of a product of few rows on inf2, which reads for most of its time."""
    chip = Session(chips.target("inf2.xlarge")).chip
    plain, stored = (
        time_program(compile(_product(form, 4, 8192, 1792), chip, {"precision": "fp32"}), chip).total
        for form in ("bfloat16", "int8")
    )
    assert stored < 0.8 * plain
