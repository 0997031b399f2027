# SPDX-License-Identifier: Apache-2.0
"""What each collective of a step is for, by what it carries: one of `trnlab.collectives.PURPOSES`.

gradient    a reduction, or a gather behind one, whose result goes into what overwrites an input (a parameter, the
            optimizer's state) element by element: no product, no sum over a dimension lies between
parameter   a gather or broadcast of an input as it is, or of what overwrites one as it is; where the mesh dimension
            is one of activations, of an input that the step overwrites
else        activations. What the group's mesh dimension is called decides, which a front end has put into
            `purpose`; without it: sums are of tensor parallel ranks, gathers and scatters of sequence parallel
            ones, exchanges of all with all of experts unless attention reads them, permutations of pipelines, or of
            sequence parallel ranks where attention reads one of them.
            Single numbers (the loss, a norm) are "other".

"As it is": in another shape, order or format, in parts or together with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import ATTENTION, COLLECTIVE, ELEMENTWISE, OPS, SHAPE

_SUMS, _GATHERS = ("all_reduce", "reduce_scatter"), ("all_gather", "collective_broadcast")
_DEFAULTS = {
    "all_reduce": "tensor",
    "all_gather": "sequence",
    "reduce_scatter": "sequence",
    "all_to_all": "expert",
    "collective_permute": "pipeline",
    "collective_broadcast": "other",
}


def name_purposes(graph: Graph) -> None:
    """Put its purpose into every collective of the graph."""
    ops = [op for op in graph.ops if OPS[op.name].kind == COLLECTIVE and op.name != "partition_id"]
    if not ops:
        return
    kept = {graph.outputs[out] for out in graph.aliases}
    updating = _before(graph, kept, _elementwise)
    moved = _before(graph, kept, _moves)
    overwritten = [graph.inputs[source] for source in graph.aliases.values()]
    trained = _behind(graph, overwritten)
    given = _behind(graph, [*overwritten, *(v for v in graph.inputs if v.dtype.is_float)])
    attended = _before(graph, _attention_reads(graph), _moves)
    ring = any(_is_permutation(op) and not attended.isdisjoint(op.results) for op in ops)
    for op in ops:
        said = str(op.attrs.get("purpose") or "")
        op.attrs["purpose"] = _purpose(op, said, updating, moved, trained if said else given, attended)
        if not said and _is_permutation(op):
            op.attrs["purpose"] = "sequence" if ring else "pipeline"


def _purpose(
    op: Op, said: str, updating: set[Value], moved: set[Value], given: set[Value], attended: set[Value]
) -> str:
    if all(v.type.size <= 1 for v in op.operands):
        return said if said == "pipeline" else "other"
    if op.name in _GATHERS and (not moved.isdisjoint(op.results) or given.issuperset(op.operands)):
        return "parameter"
    if op.name in (*_SUMS, *_GATHERS) and not updating.isdisjoint(op.results):
        return "gradient"
    if op.name in ("all_gather", "reduce_scatter") and said == "tensor":
        return "sequence"
    if op.name == "all_to_all" and not said and not attended.isdisjoint(op.results):
        return "sequence"
    return said or _DEFAULTS[op.name]


def _is_permutation(op: Op) -> bool:
    """Whether this rank sends to one other at most, and receives from one."""
    parts = (op.attrs.get("sent"), op.attrs.get("received"))
    return op.name == "all_to_all" and all(some and sum(n > 0 for n in some) <= 1 for some in parts)


def _elementwise(op: Op) -> bool:
    return _moves(op) or OPS[op.name].kind == ELEMENTWISE


def _moves(op: Op) -> bool:
    return op.name == "convert" or (OPS[op.name].kind == SHAPE and op.name != "broadcast_in_dim")


def _attention_reads(graph: Graph) -> set[Value]:
    return {v for op in graph.ops if OPS[op.name].kind == ATTENTION for v in op.operands}


def _before(graph: Graph, ends: Iterable[Value], passes: Callable[[Op], bool]) -> set[Value]:
    """The values from which only such ops and collectives lead to one of `ends`."""
    found = set(ends)
    for op in reversed(graph.ops):
        if (passes(op) or OPS[op.name].kind == COLLECTIVE) and not found.isdisjoint(op.results):
            found.update(op.operands)
    return found


def _behind(graph: Graph, starts: Iterable[Value]) -> set[Value]:
    """Some values as they are: in another shape, order or format, in parts or together."""
    found = set(starts)
    for op in graph.ops:
        if _moves(op) and found.issuperset(op.operands):
            found.update(op.results)
    return found
