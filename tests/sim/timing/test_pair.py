# SPDX-License-Identifier: Apache-2.0
"""Two cores that share a program: their halves are enough for all results, and take at least half of the time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import dtype, float32
from trnlab.policy import chosen
from trnlab.program.parse import parse_program
from trnlab.program.part import part_of
from trnlab.program.text import program_text
from trnlab.sim.functional import Machine
from trnlab.sim.timing import (
    estimate,
    on_both,
    on_two_cores,
    outline_of,
    outline_program,
    time_pair,
    time_program,
)
from trnlab.sim.timing.core_split import split_cores
from trnlab.sim.timing.schedule import planned

CHIP = chips.get("trn2")


def program_of(make, *shapes, form="bfloat16"):
    b = GraphBuilder("shared")
    results = make(b, *(b.input(f"x{i}", shape, dtype(form)) for i, shape in enumerate(shapes)))
    for value in results if isinstance(results, tuple) else (results,):
        b.output(value)
    return compile(b.build(), CHIP, {"precision": "bf16"})


MAKES = {
    "product": (lambda b, x, y: b.dot_general(x, y, ((1,), (0,))), (512, 640), (640, 1024)),
    "by rows of both": (lambda b, x, y: b.dot_general(x, y, ((0,), (0,))), (512, 2048), (512, 2048)),
    "turned": (lambda b, x, y: b.gelu(b.dot_general(x, y, ((1,), (1,)))), (384, 256), (1024, 256)),
    "elementwise": (lambda b, x, y: b.add(b.tanh(x), y), (1024, 512), (1024, 512)),
    "softmax": (lambda b, x: softmax(b, x), (1024, 512)),
    "norm with its product": (lambda b, x, y: norm(b, b.dot_general(x, y, ((1,), (0,)))), (4096, 256), (256, 768)),
    "attention": (lambda b, q, k, v: b.attention(q, k, v)[0], *[(2, 2, 1024, 128)] * 3),
    "causal attention": (lambda b, q, k, v: b.attention(q, k, v, causal=True)[0], *[(2, 2, 1024, 128)] * 3),
}


def norm(b, x):
    x = b.convert(x, float32)
    apart = b.subtract(x, b.multiply(b.reduce(x, (1,), keepdims=True), 1 / x.shape[1]))
    size = b.multiply(b.reduce(b.multiply(apart, apart), (1,), keepdims=True), 1 / x.shape[1])
    return b.multiply(apart, b.rsqrt(b.add(size, 1e-5)))


def softmax(b, x):
    x = b.convert(x, float32)
    grown = b.exponential(b.subtract(x, b.reduce(x, (1,), "maximum", True)))
    return b.divide(grown, b.reduce(grown, (1,), keepdims=True))


@pytest.mark.parametrize("name", MAKES)
def test_halves_on_cores_that_share_hbm_alone_make_the_same_bits(name):
    """Each on a machine of its own, whose SBUF and PSUM hold nothing of the other's: no instruction is missing."""
    make, *shapes = MAKES[name]
    program = program_of(make, *shapes)
    shared = 0
    for routine in program.routines:
        found = split_cores(routine, planned(routine, CHIP, chosen("trn2")))
        if found is None:
            continue
        shared += 1
        rng = np.random.default_rng(0)
        params = [routine.buffers[i] for i in routine.params]
        arrays = [rng.standard_normal(b.shape).astype(b.dtype.numpy) for b in params]
        whole = [a.copy() for a in arrays]
        Machine(CHIP).call(routine, whole)
        for half in found:
            assert (np.diff(half) > 0).all()
            Machine(CHIP).call(routine, arrays, order=half)
        for one, two in zip(whole, arrays):
            np.testing.assert_array_equal(one.view(np.uint8), two.view(np.uint8))
    assert shared, "something of it splits"


@pytest.mark.parametrize("name", ["product", "elementwise", "attention"])
def test_two_cores_are_faster_than_one_and_not_more_than_twice(name):
    make, *shapes = MAKES[name]
    program = program_of(make, *shapes)
    one, two = time_program(program, CHIP), time_pair(program, CHIP)
    assert (one.total - one.startup) / 2 <= two.total - one.startup
    assert two.total < one.total
    again = time_pair(program, CHIP)
    assert again.total == two.total
    np.testing.assert_array_equal(again.start, two.start)


def test_sums_over_all_rows_stay_on_one_core():
    """They would have to be added up between cores, in another order."""
    program = program_of(lambda b, x: b.reduce(b.convert(x, float32), (0,)), (4096, 128))
    assert not any(on_both(program, CHIP))
    assert time_pair(program, CHIP).total == time_program(program, CHIP).total


def test_a_core_waits_for_what_the_other_has_written():
    """The second product reads all rows of the first: none of its halves ends before both of these have stored."""

    def make(b, x, y):
        first = b.dot_general(x, y, ((1,), (0,)), dt=dtype("bfloat16"))
        return b.dot_general(y, first, ((1,), (0,)))

    program = program_of(make, (512, 512), (512, 512))
    timeline = time_pair(program, CHIP)
    calls = [slice(c.first, c.first + c.count) for c in timeline.calls]
    assert all(on_both(program, CHIP))
    reads_late = timeline.end[calls[-1]].max()
    assert reads_late > timeline.done[calls[0]].max()


@pytest.mark.parametrize("name", MAKES)
def test_an_outline_of_both_cores_says_what_their_timeline_says(name):
    make, *shapes = MAKES[name]
    program = program_of(make, *shapes)
    outline, whole = outline_program(program, CHIP, cores=2), outline_of(time_pair(program, CHIP), program)
    assert (outline.total, outline.ends) == (whole.total, whole.ends)
    np.testing.assert_array_equal(outline.computing, whole.computing)


@pytest.mark.parametrize("name", MAKES)
def test_a_program_laid_out_over_two_cores_takes_as_long_and_shows_both(name):
    """The same pass, with a row for each core's instruction: total, and what each call is done at."""
    make, *shapes = MAKES[name]
    program = program_of(make, *shapes)
    laid = on_two_cores(program, CHIP)
    t = time_program(laid, CHIP)
    assert parse_program(program_text(laid), chip=CHIP).calls == laid.calls
    assert t.total == time_pair(program, CHIP).total
    assert t.cores == laid.cores == 2
    assert t.total >= estimate(laid, CHIP)
    ends = [
        max(int(t.done[t.calls[i].first : t.calls[i].first + t.calls[i].count].max()) for i in of)
        for of in numbers(laid)
    ]
    assert ends == outline_program(program, CHIP, cores=2).ends
    for core in range(2):
        mine = t.core_of() == core
        for engine in range(5):  # of a core, an engine does one thing at a time
            here = np.flatnonzero(mine & (t.engine == engine))
            here = here[np.argsort(t.start[here], kind="stable")]
            assert (t.start[here][1:] >= t.end[here][:-1]).all()


def numbers(program):
    """The numbers of the calls that run beside each other."""
    found, number = [], 0
    for calls in program.together():
        found.append(range(number, number + len(calls)))
        number += len(calls)
    return found


def test_what_does_not_split_is_laid_out_as_it_is():
    program = program_of(lambda b, x: b.reduce(b.convert(x, float32), (0,)), (4096, 128))
    laid = on_two_cores(program, CHIP)
    assert (laid.cores, laid.calls) == (1, program.calls)


def test_part_of_a_routine_keeps_its_orders_and_refuses_what_prints():
    program = program_of(*[MAKES["product"][0], *MAKES["product"][1:]])
    routine = max(program.routines, key=len)
    part = part_of(replace(routine, after=((0, 3), (1, 2), (0, 5))), np.array([0, 3, 5]))
    assert part.after == ((0, 1), (0, 2))
    assert len(part) == 3
    assert (part.opcode == routine.opcode[[0, 3, 5]]).all()
    assert len(part.operands) == part.first_operand[-1]
    with pytest.raises(ValueError, match="leaves its order open"):
        part_of(replace(routine, left_open=np.ones(len(routine), np.int8)), np.array([0]))
