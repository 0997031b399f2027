# SPDX-License-Identifier: Apache-2.0
"""Collectives: an instruction for each tensor, whole and in HBM, on the CC cores."""

from __future__ import annotations

from typing import Any

from trnlab.compiler.lowerings.context import Lowering
from trnlab.graph.collectives import asked
from trnlab.isa.base import Engine
from trnlab.program.communication import REDUCTIONS


def lower_collective(low: Lowering) -> None:
    """Trigger it, tensor by tensor."""
    op = low.group.anchor
    what = asked(op)
    attrs: dict[str, Any] = {"groups": what.groups} if what.groups else {"pairs": what.pairs}
    if op.name in ("all_reduce", "reduce_scatter"):
        attrs["op"] = REDUCTIONS[what.reduction]
    if what.gives:
        attrs |= {"gives": what.gives, "takes": what.takes, "position": what.position}
    for operand, result in zip(op.operands, op.results):
        source = low.ports[low.part.strided(operand).base]
        getattr(low.b, op.name)(dst=low.ports[result], src=source, engine=Engine.CC, **attrs)
