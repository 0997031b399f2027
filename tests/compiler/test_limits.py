# SPDX-License-Identifier: Apache-2.0
"""No program is faster than the documented limits of the chip allow its graph to be; counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import build, integers, random
from random_graphs import Generator

from trnlab import chips
from trnlab.fleet.costs.stages import stage
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.models.configurations import model
from trnlab.graph.flops import AskedWork, asked
from trnlab.precision import MODES
from trnlab.runtime import device
from trnlab.runtime.analysis.limits import limit_of, limit_of_step
from trnlab.runtime.session import Session


def _made(graph, target="trn1.2xlarge", precision="bf16"):
    session = Session(chips.target(target), precision=precision)
    session.cache = None
    return device.compile_graph(graph, session)


def test_products_one_after_the_other():
    x, w = random(64, 32), random(32, 32)
    graph = build(lambda b, x, w: b.dot_general(b.dot_general(x, w, ((1,), (0,))), w, ((1,), (0,))), x, w)
    assert asked(graph) == AskedWork(2 * 2 * 64 * 32 * 32, 4 * (64 * 32 + 32 * 32 + 64 * 32), 2, ("float32",))


def test_what_is_not_read_is_not_asked_for():
    graph = build(lambda b, x, unused: (b.add(x, x), b.slice(x, (0, 0), (2, 8), (1, 1))), random(8, 8), random(9, 9))
    assert asked(graph).bytes == 4 * (8 * 8 + 8 * 8 + 2 * 8)


def test_of_a_table_what_is_picked():
    """Rows of a table that is turned round before they are picked are as many."""

    def pick(b, table, ids):
        return b.take_rows(b.transpose(table, (1, 0)), ids)

    graph = build(pick, random(16, 1000), integers(5, high=1000))
    assert asked(graph).bytes == 4 * (5 * 16 + 5 + 5 * 16)


def test_an_input_that_is_handed_on_costs_nothing():
    graph = build(lambda b, x, y: (x, b.add(y, y)), random(100, 100), random(4, 4))
    assert asked(graph).bytes == 4 * (16 + 16)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_graphs_take_at_least_their_limit(first):
    for seed in range(first, first + 20):
        graph = Generator(seed, ops=8 + seed % 20).graph()
        executable = _made(graph, "trn2.3xlarge" if seed % 4 == 3 else "trn1.2xlarge", ("bf16", "fp32")[seed % 2])
        limit = limit_of(executable, MODES[("bf16", "fp32")[seed % 2]])
        assert 0 <= limit.seconds <= executable.total_ps / 1e12, (seed, limit)


@pytest.mark.parametrize("name", ["bert-base", "gpt2", "vit-base", "llama3-8b"])
@pytest.mark.parametrize("target", ["trn1.2xlarge", "trn2.3xlarge"])
def test_training_a_layer_takes_at_least_its_limit(name, target):
    known = model(name)
    graph = stage(known, (known.stacks[0][1],), ShardSpec(1, min(known.sequence, 256)), 1).graph
    executable = _made(graph, target)
    limit = limit_of(executable, "bfloat16")
    assert 0.05 * executable.total_ps / 1e12 < limit.seconds < executable.total_ps / 1e12


def test_a_step_is_the_sum_of_its_programs():
    x = random(256, 256)
    products = _made(build(lambda b, x: b.dot_general(x, x, ((1,), (0,))), x))
    rows = _made(build(lambda b, x: b.add(x, x), x))
    one, other = limit_of(products, "bfloat16"), limit_of(rows, "bfloat16")
    found = limit_of_step([(products, 3), (rows, 2)], "bfloat16")
    assert found.seconds == pytest.approx(3 * one.seconds + 2 * other.seconds)
    assert np.isclose(found.share(2 * found.seconds), 0.5)
    assert found.by in (one.by, other.by)
