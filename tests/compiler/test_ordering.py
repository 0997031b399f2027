# SPDX-License-Identifier: Apache-2.0
"""Routines in the order of a list scheduler: the same bits as in the order in which they were recorded, sooner."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from compiled import bind, build, execute_in_both_orders, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.sim.functional import run_program
from trnlab.sim.timing import schedule, time_pair, time_program
from trnlab.sim.timing.plan import plan
from trnlab.stacks import RECORDED


def updates(b, weight, first, second, gradient):
    """AdamW of one matrix: a long chain of two engines."""
    first = b.add(b.multiply(first, 0.9), b.multiply(gradient, 0.1))
    second = b.add(b.multiply(second, 0.999), b.multiply(b.multiply(gradient, gradient), 0.001))
    step = b.divide(first, b.add(b.sqrt(b.abs(second)), 1e-8))
    return b.subtract(weight, b.multiply(step, 1e-3)), first, second


def normalised(b, x, scale, *_):
    """Rows of mean zero and variance one, and the sums over rows that a backward pass wants."""
    mean = b.divide(b.reduce(x, (1,)), float(x.shape[1]))
    apart = b.subtract(x, b.broadcast_in_dim(mean, x.shape, (0,)))
    variance = b.divide(b.reduce(b.multiply(apart, apart), (1,)), float(x.shape[1]))
    shrunk = b.multiply(apart, b.broadcast_in_dim(b.rsqrt(b.add(variance, 1e-5)), x.shape, (0,)))
    return shrunk, b.reduce(b.multiply(shrunk, scale), (0,)), b.reduce(scale, (0,))


def product(b, x, w, *rest):
    """With an epilogue that waits."""
    made = b.dot_general(x, w, ((0,), (0,)))
    for other in rest:
        made = b.multiply(b.add(b.tanh(made), other), 0.5)
    return (made,)


@pytest.mark.parametrize("chip", ["trn1", "inf2"])
@pytest.mark.parametrize("function", [updates, normalised, product])
def test_the_bits_are_those_of_the_recorded_order(function, chip):
    values = [random(1024, 1024, seed=i) for i in range(4)]
    graph = build(function, *values)
    recorded = compile(graph, chips.get(chip), {"precision": "fp32", "order": RECORDED})
    ordered = compile(graph, chips.get(chip), {"precision": "fp32"})
    bound = bind(recorded, graph, values)
    run_program(recorded, bound, chips.get(chip))
    found = execute_in_both_orders(graph, values, chip=chip)
    for place, value, got in zip(recorded.outputs, graph.outputs, found, strict=True):
        assert np.isfinite(got).all()
        assert bound[place].view(value.dtype.numpy).tobytes() == got.tobytes()
    before, now = (time_program(program, chips.get(chip)).total for program in (recorded, ordered))
    assert now <= before


def test_updates_take_less_time():
    def function(b, *values):
        """Of a state in bfloat16, which ScalarE widens."""
        return tuple(b.convert(v, bfloat16) for v in updates(b, *(b.convert(v, float32) for v in values)))

    values = [random(1024, 4096, seed=i).astype(ml_dtypes.bfloat16) for i in range(4)]
    graph, chip = build(function, *values), chips.get("trn1")
    before, now = (
        time_program(compile(graph, chip, {"precision": "fp32", **more}), chip).total
        for more in ({"order": RECORDED}, {})
    )
    assert now < 0.99 * before


@pytest.mark.parametrize("chip", ["trn2", "trn3"])
@pytest.mark.parametrize("timed", [time_program, time_pair])
def test_updates_take_less_time_on_two_cores_too(chip, timed):
    graph = build(updates, *(random(2048, 2048, seed=i) for i in range(4)))
    before, now = (
        timed(compile(graph, chips.get(chip), {"precision": "fp32", **more}), chips.get(chip)).total
        for more in ({"order": RECORDED}, {})
    )
    assert now < 0.95 * before


def test_tensors_that_nothing_writes_take_part_as_one_slot(monkeypatch):
    """The parameters of a large model, read in another order than they have in memory, have millions of slots."""

    def function(b, *values):
        weight, *states = values
        return updates(b, b.transpose(weight, (2, 0, 1)), *states)

    values = [random(256, 320, 9, seed=1), *(random(9, 256, 320, seed=i) for i in range(3))]
    chip = chips.get("trn1")
    program = compile(build(function, *values), chip, {"precision": "fp32", "order": RECORDED})
    routine = max(program.routines, key=len)
    uses, _ = schedule._without_constants(routine, plan(routine, chip))
    order = schedule.sooner_order(routine, chip, 64)
    monkeypatch.setattr(schedule, "_without_constants", lambda routine, p: (p.uses, routine.num_slots))
    assert np.array_equal(order, schedule.sooner_order(routine, chip, 64))
    assert not np.array_equal(uses, plan(routine, chip).uses)
