# SPDX-License-Identifier: Apache-2.0
"""Loops over rows that are computed with the product whose rows they read: norms, and their gradients.

What the product makes is never stored for them and loaded again, and the PE array works on the next rows while
VectorE and ScalarE go through these (`lowerings.row_epilogue`). The rows have to come whole, for which blocks of the
product, and what waits, need room: an estimate says whether it pays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from trnlab.chips.spec import Chip
from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind, ValueClass
from trnlab.compiler.fusing.signature import Signature, ports_of, signature
from trnlab.compiler.lowerings.context import Lowering
from trnlab.compiler.lowerings.dot import product_of
from trnlab.compiler.lowerings.row_epilogue import EpiloguePlan, best_plan
from trnlab.compiler.memory_table import memory_shape
from trnlab.compiler.residence import LARGEST
from trnlab.errors import CapacityError
from trnlab.graph.ir import Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS
from trnlab.kernels.blocking.choose import choose
from trnlab.kernels.blocking.costs import block_times
from trnlab.kernels.blocking.estimate import bandwidth
from trnlab.kernels.blocking.problem import MatmulProblem
from trnlab.kernels.blocks import P, Sink
from trnlab.program import Builder

LEAST_ROWS, LEAST_SIZE = 1024, 3 << 18  # with fewer, and fewer elements, too little overlaps
LEAST_COLS, MOST_COLS = 512, 2048  # with fewer, what is saved is less than what instructions cost that wait
LONGER = 1.25  # that a loop takes than its transfers, or its busiest engine


class _Candidate(NamedTuple):
    """A product and a loop over its rows, as one group, and what that stores."""

    part: Partition
    dot: FusionGroup
    loop: FusionGroup
    both: FusionGroup
    stores: set[Value]


def join_row_loops(part: Partition, chip: Chip, stays: bool) -> None:
    """Move every loop over rows that a product can take along into that product's group, where that pays. stays:
    whether tensors that fit stay in SBUF between calls."""
    room = LARGEST * P * chip.sbuf.usable_bytes_per_partition if stays else 0
    known: dict[Signature, bool] = {}
    for loop in [g for g in part.groups if g.ops and _is_of_rows(g)]:
        roots = dict.fromkeys(part.root(v) for op in loop.ops for v in op.operands)
        makers = dict.fromkeys(g for v in roots if (g := part.owner.get(v)) is not None and g is not loop)
        dots = [g for g in makers if g.kind is GroupKind.DOT and (g.size, g.cols) == (loop.size, loop.cols)]
        for dot in sorted(dots, key=lambda g: -g.id):
            if dot.anchor.results[0].type.nbytes <= room or not _can_join(part, loop, dot):
                continue
            candidate = _candidate(part, dot, loop)
            key = signature(candidate.both, part, candidate.stores)
            if key not in known:
                known[key] = _pays(candidate, chip)
            if known[key]:
                part.merge(loop, dot)
                break


def _is_of_rows(group: FusionGroup) -> bool:
    """Whether a loop finds out something about whole rows that it computes with."""
    if group.kind is not GroupKind.ROWS or group.update or group.cols is None:
        return False
    if not LEAST_COLS <= group.cols <= MOST_COLS or group.size < max(LEAST_ROWS * group.cols, LEAST_SIZE):
        return False
    return ValueClass.ROW in group.classes.values() and all(_is_plain(group, op) for op in group.ops)


def _is_plain(group: FusionGroup, op: Op) -> bool:
    if op.name == "reduce":
        return group.classes[op.result] is ValueClass.ROW or op.attrs["kind"] == "add"
    return OPS[op.name].kind == ELEMENTWISE


def _can_join(part: Partition, loop: FusionGroup, dot: FusionGroup) -> bool:
    """Whether a loop waits for tiles of the product alone, and for nothing in between."""
    if not {ValueClass.FULL, ValueClass.COL, ValueClass.SCALAR}.issuperset(dot.classes.values()):
        return False
    for value in {part.root(v) for op in loop.ops for v in op.operands}:
        if part.owner.get(value) is dot and not part.read_in_step(loop, value):
            return False
    return not part.dependencies.between(dot.id, loop.id)


def _candidate(part: Partition, dot: FusionGroup, loop: FusionGroup) -> _Candidate:
    both = FusionGroup(dot.id, GroupKind.DOT, dot.size, dot.cols)
    both.ops = [*dot.ops, *loop.ops]
    both.classes = {**dot.classes, **loop.classes}
    both.outer = {v: c for v, c in {**loop.outer, **dot.outer}.items() if not part.inside(v, both)}
    return _Candidate(part, dot, loop, both, _stored(part, both))


def _stored(part: Partition, group: FusionGroup) -> set[Value]:
    """What others read of a group, or the user."""
    outputs = {part.root(v) for v in part.graph.outputs}
    results = [v for op in group.ops for v in op.results]
    return {v for v in results if v in outputs or not {*part.computing_readers(v)} <= {*group.ops}}


def _pays(candidate: _Candidate, chip: Chip) -> bool:
    """Whether the product with the loop is estimated to take no longer than one after the other.

    Of 240 norms and their gradients of different rows, columns and contractions, in two formats, 155 are joined: the
    median takes 0.82 of the time, and three take up to 1.3 % longer (ADR 163).
    """
    part, dot, loop, both, stores = candidate
    problem = product_of(dot, part)
    if problem is None:
        return False
    b = Builder("trial", chip)
    ports = {v: b.param(v.name or "p", memory_shape(v), v.dtype) for v in ports_of(both, part, stores)}

    def with_sink(sink: Sink) -> MatmulProblem:
        assert problem is not None
        banks, rows = b.banks - sink.banks, sink.open_rows
        return replace(problem, sink_cost=sink.cost, sink_moved=sink.moved, open_rows=rows, banks=banks)

    try:
        plan = best_plan(Lowering(b, both, part, ports, stores), problem.m, with_sink)
        half = choose(problem, chip.sbuf.usable_bytes_per_partition // 2, chip, followed=False)
    except CapacityError:
        return False
    return plan.product_seconds <= block_times(problem, half, chip)[0] + _loop_seconds(loop, plan, chip)


def _loop_seconds(loop: FusionGroup, plan: EpiloguePlan, chip: Chip) -> float:
    """What a loop takes by itself, which loads what the product has stored, too."""
    size = plan.moved + plan.made_bytes
    busiest = max(loop.size * size / bandwidth(chip), plan.busy * loop.size / (loop.cols or 1) / P)
    return LONGER * busiest
