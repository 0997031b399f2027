# SPDX-License-Identifier: Apache-2.0
"""Laws of compiled programs: the timeline's order gives the same bits, the same graph gives the same bytes, repeated
layers share code, memory is never used twice at once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from compiled import bind, build, random, row_softmax, run_by_the_clock
from random_graphs import Generator

from trnlab import chips
from trnlab.compiler import compile
from trnlab.compiler.placement import Lifetime, place
from trnlab.runtime.cache import serialize
from trnlab.sim.functional import run_program

TRN1 = chips.get("trn1")


def layers(count, width=48):
    """`count` blocks of a product, a norm-like loop and a residual, with a matrix of their own each."""

    def function(b, x, *weights):
        for w in weights:
            x = b.add(x, b.gelu(b.matmul(row_softmax(b, x), w)))
        return x

    return build(function, random(300, width), *(random(width, width, seed=i) for i in range(count)))


@pytest.mark.parametrize("seed", range(24))
def test_the_order_of_the_timeline_gives_the_same_bits(seed):
    made = Generator(seed, ops=20)
    graph, inputs = made.graph(), made.inputs()
    program = compile(graph, TRN1, {"precision": "bf16" if seed % 2 else "fp32"})
    in_order, by_the_clock = bind(program, graph, inputs), bind(program, graph, inputs)
    run_program(program, in_order, TRN1)
    run_by_the_clock(program, by_the_clock)
    for place_ in program.outputs:
        assert in_order[place_].tobytes() == by_the_clock[place_].tobytes()


def test_calls_overlap_and_still_give_the_same_bits():
    def two_chains(b, x, y, w):
        return [b.matmul(row_softmax(b, v), w) for v in (x, y)]

    graph = build(two_chains, random(300, 700), random(300, 700), random(700, 130))
    inputs = [random(*v.shape, seed=i) for i, v in enumerate(graph.inputs)]
    program = compile(graph, TRN1, {})
    in_order, by_the_clock = bind(program, graph, inputs), bind(program, graph, inputs)
    run_program(program, in_order, TRN1)
    assert run_by_the_clock(program, by_the_clock) > len(program.calls)
    assert in_order[program.outputs[0]].tobytes() == by_the_clock[program.outputs[0]].tobytes()


def test_repeated_layers_share_routines():
    six, twelve = (compile(layers(n), TRN1, {}) for n in (6, 12))
    assert len(twelve.calls) - len(six.calls) >= 6
    assert len(twelve.routines) == len(six.routines)  # what stays in SBUF is in one of two places in turn


def digest(seeds=range(12)):
    """Of the bytes of several programs."""
    found = hashlib.sha256()
    for seed in seeds:
        graph = Generator(seed, ops=20).graph()
        for precision in ("fp32", "bf16"):
            program = compile(graph, TRN1, {"precision": precision})
            for part in serialize.dump(program, {}):
                found.update(part)
    return found.hexdigest()


def test_the_same_graph_gives_the_same_bytes():
    """In this process twice, and in one that has compiled nothing, whose sets of strings are in another order."""
    code = "import test_compiled_laws as t; print(t.digest(range(3)), t.digest())"
    seed = str((int(os.environ.get("PYTHONHASHSEED", "0").replace("random", "0")) + 4321) % 2**32)
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    here = [digest(), digest(range(3))]
    assert other.communicate()[0].split() == here[::-1]
    assert other.returncode == 0


def test_tensors_alive_together_never_overlap():
    rng = np.random.default_rng(0)
    items = []
    for i in range(60):
        first = int(rng.integers(0, 40))
        items.append(Lifetime(i, int(rng.integers(1, 5000)), first, first + int(rng.integers(0, 8))))
    offsets, top = place(items)
    for a, b in combinations(items, 2):
        if a.first <= b.last and b.first <= a.last:
            assert offsets[a.id] + a.nbytes <= offsets[b.id] or offsets[b.id] + b.nbytes <= offsets[a.id]
    assert max(offsets[t.id] + t.nbytes for t in items) <= top < sum(t.nbytes for t in items)
