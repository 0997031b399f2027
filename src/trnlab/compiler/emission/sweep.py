# SPDX-License-Identifier: Apache-2.0
"""One sweep: the ops of a plan, in order, on one tile."""

from __future__ import annotations

from collections.abc import Iterator

from trnlab.compiler.emission.domain import SweepSlice
from trnlab.compiler.emission.emitter import Emitter
from trnlab.compiler.fusing.tiles import TilePlan
from trnlab.graph.ir import Value
from trnlab.program import AP


def sweep(e: Emitter, plan: TilePlan, frame: SweepSlice, base: dict[Value, AP] | None = None) -> None:
    """Compute and store what the plan says for the rows and columns of `frame`; `base` is given already."""
    for _ in steps(e, plan, frame, base):
        pass


def steps(e: Emitter, plan: TilePlan, frame: SweepSlice, base: dict[Value, AP] | None = None) -> Iterator[None]:
    """The same op by op, for sweeps that take turns."""
    e.begin(plan, frame, base or {})
    for op in plan.ops:
        if op not in e.done:
            e.b.location = op.loc or e.b.location
            emit = e.part.rules[op].emit
            assert emit is not None, f"a kernel computes {op.name}"
            emit(e, op)
            e.after(op)
        yield
    e.end()


def take_turns(sweeps: list[Iterator[None]]) -> None:
    """One op of each sweep after the other until all are done."""
    while sweeps:
        sweeps = [s for s in sweeps if next(s, _DONE) is not _DONE]


_DONE = object()
