# SPDX-License-Identifier: Apache-2.0
"""Attention whose instructions are interleaved with those of products: attention's numbers are those of one after the
other, bit by bit, and products are within the rounding of their additions, which come in another order."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from compiled import bind, build, execute_in_both_orders, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.compiler.reused_routines import routines_of
from trnlab.numerics.dtypes import float32
from trnlab.sim.functional import run_program
from trnlab.sim.timing import time_program
from trnlab.stacks import APART

TOKENS, HEADS, DEPTH = 1024, 12, 64
WIDTH = HEADS * DEPTH


def backward(b, x, dy, dout, q, k, v, more):
    """Gradients of weights of the layer behind, which nobody here waits for, and those of attention."""
    out, lse = b.attention(q, k, v, causal=True)
    weight = b.dot_general(x, dy, ((0,), (0,)), dt=float32)
    wide = b.dot_general(dy, x, ((0,), (0,)), dt=float32)
    grads = b.attention_backward(dout, q, k, v, out, lse, causal=True)
    return (weight, b.add(wide, more), *grads)


def given(rows=8192, width=768, seed=0):
    shapes = [(rows, width), (rows, width), *[(1, HEADS, TOKENS, DEPTH)] * 4]
    values = [random(*shape, seed=seed + i).astype(ml_dtypes.bfloat16) for i, shape in enumerate(shapes)]
    return [*values, random(width, width, seed=9)]


def program_of(graph, chip, **options):
    return compile(graph, chips.get(chip), {"precision": "bf16", **options})


def several(program):
    return [call.label for call in program.calls if call.label.startswith("attention") and "(x" in call.label]


@pytest.mark.parametrize("chip", ["trn1", "inf2"])
def test_the_numbers_are_those_of_one_after_the_other(chip):
    values = given()
    graph = build(backward, *values)
    together, apart = program_of(graph, chip), program_of(graph, chip, interleaving=APART)
    assert several(together)
    assert not several(apart)
    bound = bind(apart, graph, values)
    run_program(apart, bound, chips.get(chip))
    want = [bound[place].view(value.dtype.numpy) for place, value in zip(apart.outputs, graph.outputs)]
    found = execute_in_both_orders(graph, values, chip=chip, precision="bf16")
    for got, expected in zip(found[2:], want[2:], strict=True):
        assert np.isfinite(got.astype(np.float32)).all()
        assert got.tobytes() == expected.tobytes()
    x, dy, more = (values[i].astype(np.float64) for i in (0, 1, -1))
    for got, left, right, added in ((found[0], x, dy, 0.0), (found[1], dy, x, more)):
        sizes = np.abs(left).T @ np.abs(right) + np.abs(added)
        assert (np.abs(got - (left.T @ right + added)) <= 2.0**-23 * (len(x) + 3) * sizes).all()
    sooner, later = (time_program(program, chips.get(chip)).total for program in (together, apart))
    assert sooner < later


def test_a_product_that_attention_waits_for_comes_before():
    """Queries are made of the product's result."""

    def function(b, x, dy, dout, q, k, v, more):
        weight = b.dot_general(x, dy, ((0,), (0,)), dt=float32)
        scale = b.broadcast_in_dim(b.reduce(weight, (0, 1)), q.shape, ())
        q = b.multiply(q, b.convert(scale, q.dtype))
        out, _ = b.attention(q, k, v, causal=True)
        return out, weight

    values = given()
    assert not several(program_of(build(function, *values), "trn1"))


def test_a_weight_that_another_product_still_reads_is_not_written_beside_it():
    """W is overwritten by W + x^T dy; what reads the old W comes first, wherever attention is."""
    values = given()
    values.append(random(768, 768, seed=11).astype(np.float32))

    def function(b, x, dy, dout, q, k, v, more, w):
        out, lse = b.attention(q, k, v, causal=True)
        b.output(b.add(w, b.dot_general(x, dy, ((0,), (0,)), dt=float32)), alias_of=w)
        grads = b.attention_backward(dout, q, k, v, out, lse, causal=True)
        again = b.dot_general(b.convert(dy, float32), w, ((1,), (1,)), dt=float32)
        return (*grads, b.multiply(again, 2.0))

    graph = build(function, *values)
    together, apart = program_of(graph, "trn1"), program_of(graph, "trn1", interleaving=APART)
    found = []
    for program in (together, apart):
        bound = bind(program, graph, values)
        run_program(program, bound, chips.get("trn1"))
        found.append([bound[place].view(v.dtype.numpy) for place, v in zip(program.outputs, graph.outputs)])
    for got, expected in zip(*found):
        assert np.abs(got.astype(np.float64) - expected).max() <= 1e-5 * np.abs(expected.astype(np.float64)).max()


def test_small_attention_and_small_products_are_calls_of_their_own():
    values = given(rows=512, width=128)
    assert not several(program_of(build(backward, *values), "trn1"))


def test_a_program_says_which_of_its_routines_are_interleaved():
    """They are found again by what they do, and a second compilation records nothing."""
    graph, chip, options = build(backward, *given()), chips.get("trn1"), {"precision": "bf16"}
    program = compile(graph, chip, options)
    known = routines_of(graph, chip, options, program)
    assert {id(r) for r in program.routines} == {id(getattr(r, "routine", r)) for r in known.values()}
    again = compile(graph, chip, options, known)
    assert again.calls == program.calls
    assert all(a.operands is b.operands for a, b in zip(again.routines, program.routines, strict=True))


@pytest.mark.parametrize("chip", ["trn2", "trn3"])
def test_calls_that_two_cores_share_are_one_each(chip):
    """Two cores divide a product between them, or an attention."""
    assert not several(program_of(build(backward, *given()), chip))
