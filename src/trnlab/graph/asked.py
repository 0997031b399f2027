# SPDX-License-Identifier: Apache-2.0
"""What a graph asks of any chip: operations, bytes that have to come and go, products one after the other.

Counted so that no program of the graph can do with less: what a program does not read is not counted, nor what it
hands on as it came, and of tensors that are only picked from or written into, no more than what is picked or written.
"""

from __future__ import annotations

from typing import NamedTuple

from trnlab.graph.flops import model_flops
from trnlab.graph.ir import Graph, Op, Value

PRODUCTS = ("dot_general", "convolution", "trn.attention", "trn.attention_backward")
PICKED = ("gather", "slice")  # what they read of their first operand is as large as their result
WRITTEN = {"scatter": 2}  # into their first operand, as much as this operand has


# What they need of their operand is as many elements as are needed of their result.
VIEWS = ("reshape", "transpose", "convert", "optimization_barrier")


class AskedWork(NamedTuple):
    """flops: see `model_flops`. bytes: between memory and chip. chain: products each of which needs the one before.
    formats: names of those that operands of products have."""

    flops: int
    bytes: int
    chain: int
    formats: tuple[str, ...]


def asked(graph: Graph) -> AskedWork:
    """What a graph asks for."""
    live = _live(graph)
    formats = {value.dtype.name for op in live if op.name in PRODUCTS for value in op.operands[:2]}
    return AskedWork(model_flops(graph), _bytes(graph, live), _chain(graph, live), tuple(sorted(formats)))


def _live(graph: Graph) -> list[Op]:
    """The ops that an output needs, in order."""
    wanted, found = set(graph.outputs), []
    for op in reversed(graph.ops):
        if not wanted.isdisjoint(op.results):
            wanted.update(op.operands)
            found.append(op)
    return found[::-1]


def _bytes(graph: Graph, live: list[Op]) -> int:
    needed = dict.fromkeys(graph.outputs, 0)
    for value in graph.outputs:
        needed[value] = value.type.size
    for op in reversed(live):
        for place, value in enumerate(op.operands):
            more = _needed(op, place, needed)
            needed[value] = min(needed.get(value, 0) + more, value.type.size)
    came = sum(needed.get(value, 0) * value.dtype.itemsize for value in graph.inputs if _is_read(value, live))
    return came + sum(map(_written, dict.fromkeys(graph.outputs)))


def _is_read(value: Value, live: list[Op]) -> bool:
    return any(value in op.operands for op in live)


def _needed(op: Op, place: int, needed: dict[Value, int]) -> int:
    """Elements of an operand that an op needs at least."""
    of_results = sum(needed.get(result, 0) for result in op.results)
    if op.name in VIEWS or (place == 0 and op.name in PICKED):
        return min(of_results, op.operands[place].type.size)
    if op.name == "custom_call" or (place == 0 and op.name in WRITTEN):  # a kernel may leave an operand alone
        return 0
    return op.operands[place].type.size


def _written(value: Value) -> int:
    """Bytes of an output that are new at least."""
    size, new = value.type.size * value.dtype.itemsize, 0
    while value.op is not None:
        if value.op.name not in WRITTEN:
            return size
        part = value.op.operands[WRITTEN[value.op.name]]
        new, value = new + part.type.size * part.dtype.itemsize, value.op.operands[0]
    return min(new, size)


def _chain(graph: Graph, live: list[Op]) -> int:
    """Products on the longest path, without those of rounds of loops."""
    depth: dict[Value, int] = {}
    for op in live:
        before = max((depth.get(value, 0) for value in op.operands), default=0)
        depth.update(dict.fromkeys(op.results, before + (op.name in PRODUCTS)))
    return max((depth.get(value, 0) for value in graph.outputs), default=0)
