# SPDX-License-Identifier: Apache-2.0
"""Programs that share routines with others of the same graph are those that were compiled alone."""

import random
from dataclasses import replace

import pytest

from trnlab import chips, compiler
from trnlab.compiler.placement import ALIGN, Lifetime, place
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.runtime.cache import serialize
from trnlab.stacks import APART, ESTIMATED

RANKS = 64


def layers(count=3, rows=512, side=256):
    """Three products of the same rows, a softmax and a product in each layer; at the end a sum over all ranks."""
    b = GraphBuilder("layers")
    x = b.input("x", (rows, side), bfloat16)
    for i in range(count):
        three = [b.matmul(x, b.input(f"w{i}{name}", (side, side), bfloat16)) for name in "qkv"]
        scores = b.tanh(b.add(b.multiply(three[0], three[1]), three[2]))
        wide = b.exponential(b.convert(scores, float32))
        total = b.broadcast_in_dim(b.reduce(wide, (1,), "add"), (rows, side), (0,))
        x = b.add(x, b.convert(b.divide(wide, total), bfloat16))
    b.output(b.all_reduce([x], (tuple(range(RANKS)),))[0])
    return b.build()


def content(program):
    return b"".join(serialize.dump(program, {}))


@pytest.mark.parametrize(("chip", "cluster"), [("trn1", "2xtrn1.32xlarge"), ("trn2", "1xtrn2.48xlarge")])
def test_stacks_share_what_does_not_hang_on_them(chip, cluster):
    graph, chip = layers(), chips.get(chip)
    options = {"precision": "bf16", "cluster": cluster, "ranks": RANKS, "overlap": "prefetch", "bucket_mib": 25}
    vendor = options | {"siblings": APART, "blockings": ESTIMATED}
    known = {}
    programs = [compiler.compile(graph, chip, each, known) for each in (vendor, options, vendor)]
    alone = [compiler.compile(graph, chip, each) for each in (vendor, options, vendor)]
    assert [content(p) for p in programs] == [content(p) for p in alone]
    first, second, again = ({id(r.operands) for r in p.routines} for p in programs)
    assert first & second
    assert again == first


def slow_place(lifetimes):
    """As `place` says, one tensor after the other among all that are there when it is."""
    placed, top = [], 0
    for item in sorted(lifetimes, key=lambda t: (-t.nbytes, t.first, t.id)):
        size = -(-item.nbytes // ALIGN) * ALIGN
        taken = sorted((s, e) for s, e, other in placed if other.first <= item.last and item.first <= other.last)
        gaps, end = [], 0
        for start, stop in taken:
            if start - end >= size:
                gaps.append((start - end, end))
            end = max(end, stop)
        start = min(gaps, key=lambda gap: gap[0])[1] if gaps else end
        placed.append((start, start + size, item))
        top = max(top, start + size)
    return {item.id: start for start, _, item in placed}, top


def test_places_are_the_smallest_gaps():
    chosen = random.Random(1)
    for count in (0, 1, 2, 30, 200):
        lifetimes = []
        for id in range(count):
            first = chosen.randrange(40)
            lifetimes.append(Lifetime(id, chosen.choice([0, 1, 512, 700, 5000]), first, first + chosen.randrange(9)))
        assert place(lifetimes) == slow_place(lifetimes)
    alike = [replace(lifetimes[0], id=id) for id in range(5)]
    assert place(alike) == slow_place(alike)
