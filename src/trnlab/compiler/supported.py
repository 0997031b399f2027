# SPDX-License-Identifier: Apache-2.0
"""The rule of selection for every op of a graph; what has none is refused at once, before any work is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from trnlab.chips.spec import Chip
from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.analysis.selection import SelectionRule
from trnlab.compiler.rules import select
from trnlab.errors import UnsupportedOpError
from trnlab.graph.ir import Graph, Op
from trnlab.graph.ops import OPS


def select_rules(graph: Graph, chip: Chip) -> dict[Op, SelectionRule]:
    """The rule for each op of a legalized graph.

    Raises UnsupportedOpError that names every op which the compiler cannot lower: TRN200, or TRN220 when all that it
    lacks is instructions that are exact in the format.
    """
    known, rules, found = Ranges(graph), {}, []
    for op in graph.ops:
        rule, reason = select(op, known), _reason(op)
        if rule is None or reason is not None:
            found.append((op, reason or _inexact(op)))
        else:
            rules[op] = rule
    if found:
        _refuse(found, chip)
    return rules


@dataclass(frozen=True)
class Reason:
    """Why an op cannot be lowered, and what to do instead."""

    why: str
    remedy: str
    code: str = "TRN200"


_ON_HOST = "compute it on the host, before the step"


def _inexact(op: Op) -> Reason:
    formats = ", ".join(dict.fromkeys(v.dtype.name for v in op.operands)) or op.result.dtype.name
    why = f"no instructions compute {op.name} of {formats} exactly"
    return Reason(why, f"cast the operands to int32 or float32, or {_ON_HOST}", "TRN220")


def _refuse(found: list[tuple[Op, Reason]], chip: Chip) -> NoReturn:
    lines = []
    for op, reason in found:
        types = ", ".join(str(v.type) for v in op.operands)
        line = f"{op.origin or op.name} ({types}): {reason.why}"
        lines.append(f"{line}, at {op.loc}" if op.loc else line)
    codes = {reason.code for _, reason in found}
    raise UnsupportedOpError(
        "the compiler has no lowering for " + "; ".join(dict.fromkeys(lines)),
        where=found[0][0].loc,
        chip=chip.name,
        code=codes.pop() if len(codes) == 1 else "TRN200",
        remedy="; ".join(dict.fromkeys(reason.remedy for _, reason in found)),
    )


def _reason(op: Op) -> Reason | None:
    check = _CHECKS.get(op.name)
    return check(op) if check is not None else None


def _gather(op: Op) -> Reason | None:
    attrs = op.attrs
    if attrs["operand_batching_dims"]:
        last = len(op.operands[0].shape) - 1
        wanted = attrs["collapsed_slice_dims"] == (last,)
        why = "it does not take one element of each row"
    else:
        wanted = attrs["start_index_map"] == (0,) and attrs["slice_sizes"] == (1, *op.operands[0].shape[1:])
        why = "it does not take whole rows"
    return None if wanted else Reason(why, f"take whole rows (an embedding), or {_ON_HOST}")


def _scatter(op: Op) -> Reason | None:
    rows = op.attrs["scatter_dims_to_operand_dims"] == (0,) and op.attrs["kind"] == "add"
    return None if rows else Reason("it is not a sum of rows by index", f"use index_add, or {_ON_HOST}")


def _product(op: Op) -> Reason | None:
    wanted = op.attrs["kind"] != "multiply"
    return None if wanted else Reason("the chip's collectives do not multiply", "gather, and multiply then", "TRN261")


def _rank(op: Op) -> Reason:
    why = "the number of the rank is known only where the program runs"
    return Reason(why, "give it as an argument", "TRN262")


_CHECKS: dict[str, Callable[[Op], Reason | None]] = {
    "gather": _gather,
    "scatter": _scatter,
    "all_reduce": _product,
    "reduce_scatter": _product,
    "partition_id": _rank,
}
assert _CHECKS.keys() <= OPS.keys()
