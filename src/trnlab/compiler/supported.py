# SPDX-License-Identifier: Apache-2.0
"""What has no lowering, said at once for the whole graph, before any work is done."""

from __future__ import annotations

from collections.abc import Callable

from trnlab.chips.spec import Chip
from trnlab.errors import UnsupportedOpError
from trnlab.graph.ir import Graph, Op
from trnlab.graph.ops import OPS


def refuse_unsupported(graph: Graph, chip: Chip) -> None:
    """Raise UnsupportedOpError that names every op of `graph` that the compiler cannot lower."""
    found = [(op, reason) for op in graph.ops if (reason := _reason(op)) is not None]
    if not found:
        return
    lines = [
        f"{op.origin or op.name} ({', '.join(str(v.type) for v in op.operands)}): {reason}" for op, reason in found
    ]
    lines = [f"{line}, at {op.loc}" if op.loc else line for line, (op, _) in zip(lines, found)]
    raise UnsupportedOpError(
        "the compiler has no lowering for " + "; ".join(dict.fromkeys(lines)), where=found[0][0].loc, chip=chip.name,
        remedy="compute it on the host, before the step, or in float32",
    )  # fmt: skip


def _reason(op: Op) -> str | None:
    check = _CHECKS.get(op.name)
    return check(op) if check is not None else None


def _needs_floats(op: Op) -> str | None:
    return None if op.operands[0].dtype.is_float else "no engine computes it on integers"


def _pad(op: Op) -> str | None:
    attrs = op.attrs
    if (
        any(attrs["interior_padding"])
        or min((*attrs["edge_padding_low"], *attrs["edge_padding_high"]), default=0) < 0
    ):
        return "padding between elements, or by less than nothing"
    filler = op.operands[1].op
    return None if filler is not None and filler.name == "constant" else "padding with a value that is computed"


def _gather(op: Op) -> str | None:
    attrs = op.attrs
    if attrs["operand_batching_dims"]:
        last = len(op.operands[0].shape) - 1
        return None if attrs["collapsed_slice_dims"] == (last,) else "it does not take one element of each row"
    rows = attrs["start_index_map"] == (0,) and attrs["slice_sizes"] == (1, *op.operands[0].shape[1:])
    return None if rows else "it does not take whole rows"


def _scatter(op: Op) -> str | None:
    rows = op.attrs["scatter_dims_to_operand_dims"] == (0,) and op.operands[2].dtype.is_float
    return None if rows and op.attrs["kind"] == "add" else "it is not a sum of float rows by index"


_CHECKS: dict[str, Callable[[Op], str | None]] = {
    **dict.fromkeys(("divide", "remainder", "power", "dot_general"), _needs_floats),
    "pad": _pad,
    "gather": _gather,
    "scatter": _scatter,
}
assert _CHECKS.keys() <= OPS.keys()
