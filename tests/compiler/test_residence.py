# SPDX-License-Identifier: Apache-2.0
"""Tensors that stay in SBUF between calls: the same bits as through HBM, in the program's order and by the clock."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from compiled import bind, build, random, row_softmax, run_by_the_clock
from random_graphs import Generator

from trnlab import chips
from trnlab.compiler import compile
from trnlab.compiler.pipeline import Assembly, assembled
from trnlab.errors import ConstraintError
from trnlab.kernels.residence import Home, HomeMatrix
from trnlab.program.parse import parse_program
from trnlab.program.strided import Strided
from trnlab.program.text import program_text
from trnlab.program.verify import verify_program
from trnlab.sim.functional import run_program
from trnlab.sim.timing import time_program

TRN1 = chips.get("trn1")
WIDTH, HEADS, HIDDEN = 128, 4, 256


def normalized(b, x):
    """Rows less their mean, over their deviation."""
    x = b.convert(x, "float32")
    mean = b.multiply(b.reduce(x, [1], keepdims=True), 1 / WIDTH)
    apart = b.subtract(x, mean)
    variance = b.multiply(b.reduce(b.multiply(apart, apart), [1], keepdims=True), 1 / WIDTH)
    return b.convert(b.multiply(apart, b.rsqrt(b.add(variance, 1e-5))), "bfloat16")


def encoder(batch, tokens, layers=2):
    """An encoder: projections, attention, two products with GELU between them, residuals and norms."""
    shapes = [(WIDTH, WIDTH)] * 4 + [(WIDTH, HIDDEN), (HIDDEN, WIDTH)]

    def heads(b, x):
        return b.transpose(b.reshape(x, (batch, tokens, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    def function(b, x, *weights):
        for i in range(0, len(weights), len(shapes)):
            q, k, v, out, up, down = weights[i : i + len(shapes)]
            mixed, *_ = b.attention(*(heads(b, b.matmul(x, w, "bfloat16")) for w in (q, k, v)), scale=0.2)
            mixed = b.reshape(b.transpose(mixed, (0, 2, 1, 3)), (batch * tokens, WIDTH))
            x = normalized(b, b.add(x, b.matmul(mixed, out, "bfloat16")))
            x = normalized(b, b.add(x, b.matmul(b.gelu(b.matmul(x, up, "bfloat16")), down, "bfloat16")))
        return b.add(x, 1.0)

    inputs = [random(batch * tokens, WIDTH), *(0.1 * random(*s, seed=i) for i, s in enumerate(shapes * layers))]
    inputs = [x.astype(ml_dtypes.bfloat16) for x in inputs]
    return build(function, *inputs), inputs


class Apart(Assembly):
    """Everything goes through HBM."""

    def calls(self, resident=False):
        return super().calls()


def both(graph, precision="bf16"):
    """The program as it is compiled, and the one whose tensors go through HBM."""
    options = {"precision": precision}
    return compile(graph, TRN1, options), assembled(graph, TRN1, options, {}, Apart).program()


def outputs(program, graph, inputs, run=None):
    """The bytes of the outputs."""
    bound = bind(program, graph, inputs)
    if run is None:
        run_program(program, bound, TRN1)
    else:
        run(program, bound)
    return [bound[place].tobytes() for place in program.outputs]


def homes(program):
    """Tiles that stay, in all routines."""
    return [b for r in program.routines for b in r.buffers if b.kind == "resident"]


@pytest.mark.parametrize(("batch", "tokens"), [(1, 128), (1, 72), (2, 128), (1, 200), (2, 72)])
def test_an_encoder_computes_the_bits_that_it_computes_through_memory(batch, tokens):
    graph, inputs = encoder(batch, tokens)
    program, apart = both(graph)
    verify_program(program, TRN1)
    assert homes(program)
    assert not homes(apart)
    expected = outputs(apart, graph, inputs)
    assert outputs(program, graph, inputs) == expected
    assert outputs(program, graph, inputs, run_by_the_clock) == expected
    assert time_program(program, TRN1).total < time_program(apart, TRN1).total


def test_nothing_between_the_products_of_a_layer_goes_through_memory():
    graph, _ = encoder(1, 128, layers=4)
    program, _ = both(graph)
    temporary = [t for t in program.tensors if t.kind == "temp"]
    assert not temporary


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs_compute_the_same_bits(seed):
    made = Generator(seed, ops=20)
    graph, inputs = made.graph(), made.inputs()
    program, apart = both(graph, "bf16" if seed % 2 else "fp32")
    verify_program(program, TRN1)
    assert outputs(program, graph, inputs) == outputs(apart, graph, inputs)


def test_the_text_of_a_program_has_what_stays():
    graph, inputs = encoder(1, 128, layers=1)
    program, _ = both(graph)
    again = parse_program(program_text(program), chip=TRN1)
    assert [b.kind for b in homes(again)] == [b.kind for b in homes(program)]
    assert outputs(again, graph, inputs) == outputs(program, graph, inputs)


def test_a_call_that_finds_other_bytes_is_refused():
    graph, _ = encoder(1, 128, layers=1)
    program, _ = both(graph)
    verify_program(program, TRN1)
    finding = next(i for i, (_, r) in enumerate(program) if i and any(b.kind == "resident" for b in r.buffers))
    moved = [replace(c, sbuf_base=c.sbuf_base + 64 * (i == finding)) for i, c in enumerate(program.calls)]
    for calls in (moved, program.calls[finding:]):
        with pytest.raises(ConstraintError) as raised:
            verify_program(replace(program, calls=tuple(calls)), TRN1)
        assert raised.value.code in ("TRN422", "TRN424")


def test_a_layer_of_many_rows_goes_through_memory():
    def function(b, x, w, u):
        return b.matmul(row_softmax(b, b.matmul(x, w)), u)

    graph = build(function, random(8192, 64), random(64, 1024), random(1024, 64))
    assert not homes(compile(graph, TRN1, {"precision": "bf16"}))


def test_where_views_of_a_home_lie():
    home = Home((256, 64), (0,), "bfloat16")
    assert home.matrix(Strided(None, 0, (256, 64), (64, 1)), 1) == HomeMatrix(0, 256, 0, 64)
    assert home.matrix(Strided(None, 0, (2, 128, 4, 16), (8192, 64, 16, 1)), 2) == HomeMatrix(0, 256, 0, 64)
    assert home.matrix(Strided(None, 8192 + 32, (128, 16), (64, 1)), 1) == HomeMatrix(128, 128, 32, 16)
    assert home.matrix(Strided(None, 0, (64, 256), (1, 64)), 1) is None  # columns as rows
    assert home.matrix(Strided(None, 0, (128, 64), (128, 1)), 1) is None  # every second row
    assert home.matrix(Strided(None, 0, (128, 128), (128, 1)), 1) is None  # two rows as one
    assert home.matrix(Strided(None, 0, (256, 64), (0, 1)), 1) is None
    heads = Home((2, 4, 128, 16), (0, 2), "bfloat16")
    assert heads.matrix(Strided(None, 0, (2, 128, 4, 16), (8192, 16, 2048, 1)), 2) == HomeMatrix(0, 256, 0, 64)
    assert heads.matrix(Strided(None, 8192, (128, 4, 16), (16, 2048, 1)), 1) == HomeMatrix(128, 128, 0, 64)
    assert np.prod(heads.shape) == heads.rows * heads.cols
