# SPDX-License-Identifier: Apache-2.0
"""Compute again what is cheaper to compute than to keep: what a backward pass needs of the forward pass.

A value that a few instructions make of one tensor in memory, and of numbers for each row, need not be written out
when its reader is far away, on the other side of a matrix product: the reader makes it again from the same tensor.
That pays where the tensor is narrower than the value, or is read there anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import ATTENTION, CONVOLUTION, DOT, ELEMENTWISE, OPS, REDUCE, SHAPE
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import splat

CHEAP = frozenset(
    {
        "add",
        "subtract",
        "multiply",
        "maximum",
        "minimum",
        "negate",
        "convert",
        "compare",
        "reshape",
        "trn.gelu_dx",
        "trn.silu_dx",
    }
)
LONGEST = 10  # ops of a chain
SMALL = 1 << 16  # elements below which memory costs nothing


def recompute(graph: Graph) -> None:
    """Give far readers of cheap values ops of their own; same meaning."""
    levels = levels_of(graph)
    far = list(_far_reads(graph, levels))
    here: dict[Value, set[int]] = defaultdict(set)  # levels at which a tensor is read in any case
    for op in graph.ops:
        for value in op.operands:
            here[value].add(levels[op])
    chains = {value: _chain(value) for _, value in far}
    narrower = {v for v, (ops, roots) in chains.items() if len(roots) == 1 and _bytes(roots) < v.dtype.itemsize}
    for op, value in far:
        if value in narrower:
            here[next(iter(chains[value][1]))].add(levels[op])
    again: dict[Op, list[Value]] = defaultdict(list)
    for op, value in far:
        ops, roots = chains[value]
        read_anyway = len(roots) <= 1 and all(levels[op] in here[r] for r in roots)  # or made of nothing as large
        if ops and (value in narrower or read_anyway):
            again[op].append(value)
    _rewrite(graph, again, chains)


def placed_late(graph: Graph) -> dict[Op, int]:
    """Ops that belong to readers far away: cheap ones, of tensors in memory, that nothing near reads.

    With the level of the nearest reader, see `levels_of`. What alone reads a product's result does not: that would be
    in memory for the reader's sake only.
    """
    levels, readers = levels_of(graph), graph.users()
    wanted: dict[Op, int] = {}
    for op in reversed(graph.ops):
        users = readers.get(op.results[0], []) if op.name in CHEAP else []
        if users and all(OPS[u.name].kind in (ELEMENTWISE, REDUCE, SHAPE) for u in users):
            wanted[op] = min(wanted.get(u, levels[u]) for u in users)
    late: dict[Op, int] = {}
    for op in graph.ops:
        size = op.results[0].type.size if op.results else 0
        large = [v for v in op.operands if v.type.size == size and splat(v) is None]
        if any(_alone_reads_product(v, readers) for v in large):
            continue
        if wanted.get(op, 0) > levels[op] and size >= SMALL and all(_in_memory(v, late) for v in large):
            late[op] = wanted[op]
    return late


def _in_memory(value: Value, late: Mapping[Op, int]) -> bool:
    """Whether a value is an input, or made by a product (seen through views), or broadcast, or late itself; or read
    again behind a barrier, or part of what is read in parts, which no loop that makes it computes along."""
    op = _seen(value).op
    stored = ("broadcast_in_dim", "optimization_barrier", "slice")
    return op is None or op in late or _is_product(op) or op.name in stored


def _alone_reads_product(value: Value, readers: Mapping[Value, list[Op]]) -> bool:
    """Whether the one reader of a value, a product's result, is the only one of that result. What no result hangs on
    reads nothing."""
    seen, first = value, _seen(value)
    while seen is not first and len(readers.get(seen, ())) == 1 and seen.op is not None:
        seen = seen.op.operands[0]
    return seen is first and len(readers.get(seen, ())) == 1 and seen.op is not None and _is_product(seen.op)


def _seen(value: Value) -> Value:
    """What a value is a view of."""
    while value.op is not None and value.op.name in ("reshape", "transpose"):
        value = value.op.operands[0]
    return value


def _is_product(op: Op) -> bool:
    return OPS[op.name].kind in (DOT, CONVOLUTION)


def levels_of(graph: Graph) -> dict[Op, int]:
    """How many matrix products lie behind each op, at most, one after the other."""
    found: dict[Op, int] = {}
    for op in graph.ops:
        before = [v.op for v in op.operands if v.op is not None]
        found[op] = max((found[p] + (OPS[p.name].kind in (DOT, CONVOLUTION, ATTENTION)) for p in before), default=0)
    return found


def _far_reads(graph: Graph, levels: Mapping[Op, int]) -> Iterator[tuple[Op, Value]]:
    for op in graph.ops:
        for value in dict.fromkeys(op.operands):
            made = value.op
            computed = made is not None and made.name in CHEAP and made.name != "reshape"
            if made is not None and computed and value.type.size >= SMALL and levels[made] < levels[op]:
                yield op, value


def _bytes(roots: set[Value]) -> int:
    return sum(r.dtype.itemsize for r in roots)


def _chain(value: Value) -> tuple[list[Op], set[Value]]:
    """The ops that make a value, in order, and the tensors as large as it that they start from; no ops when it takes
    too many."""
    ops: dict[Op, None] = {}
    roots: set[Value] = set()

    def visit(v: Value) -> None:
        if v.type.size < value.type.size or splat(v) is not None or (v.op and v.op in ops):
            return
        if v.op is not None and v.op.name == "broadcast_in_dim" and v.op.operands[0].type.size < v.type.size:
            return
        if v.op is None or v.op.name not in CHEAP or len(ops) > LONGEST:
            roots.add(v)
            return
        for operand in v.op.operands:
            visit(operand)
        ops[v.op] = None

    visit(value)
    return (list(ops), roots) if len(ops) <= LONGEST else ([], roots)


def _rewrite(
    graph: Graph, again: Mapping[Op, list[Value]], chains: Mapping[Value, tuple[list[Op], set[Value]]]
) -> None:
    b = GraphBuilder(graph.name)
    for op in graph.ops:
        for value in again.get(op, ()):
            made: dict[Value, Value] = {}
            for source in chains[value][0]:
                b.loc, b.origin = source.loc, source.origin
                copy = b.append(source.name, [made.get(v, v) for v in source.operands], source.attrs)
                made[source.result] = copy.result
            op.operands = tuple(made[v] if v is value else v for v in op.operands)
        b.graph.ops.append(op)
    graph.ops = b.graph.ops
    remove_dead_ops(graph)
