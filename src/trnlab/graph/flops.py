# SPDX-License-Identifier: Apache-2.0
"""How much work a graph asks for.

`asked` counts what no program of the graph can do without: what a program does not read is not counted, nor what it
hands on as it came, and of tensors that are only picked from or written into, no more than what is picked or written.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.subexpressions import merge_equal_ops, remove_barriers

GROUPED = ("trn.grouped_dot", "trn.grouped_outer")
PRODUCTS = ("dot_general", "convolution", "trn.attention", "trn.attention_backward", *GROUPED)
PICKED = ("gather", "slice")  # what they read of their first operand is as large as their result
WRITTEN = {"scatter": 2}  # into their first operand, as much as this operand has


# What they need of their operand is as many elements as are needed of their result.
VIEWS = ("reshape", "transpose", "convert", "optimization_barrier")


def model_flops(graph: Graph) -> int:
    """Floating point operations that the model asks for: two per multiply and add of its matrix products. What is
    computed by products but is none to the model, such as running sums, has none; a row of a mixture of experts is
    multiplied by the weights of those that it was given to.

    Attention counts its products as if nothing were masked, and its backward pass without computing scores again.
    """
    if any(op.name == "optimization_barrier" for op in graph.ops):  # what is computed twice is asked for once
        graph = graph.copy()
        remove_barriers(graph)
        merge_equal_ops(graph)
        remove_dead_ops(graph)
    return sum(op_flops(op) for op in graph.ops)


def op_flops(op: Op) -> int:
    """Those of one op, see `model_flops`."""
    if op.name == "custom_call":
        return int(op.attrs["callee"].flops)
    if op.name == "loop":
        return int(op.attrs["body"].rounds) * model_flops(op.attrs["body"].graph)
    if op.name == "dot_general":
        shape, asked = op.operands[0].shape, int(op.attrs["asked"])
        contracting: tuple[int, ...] = op.attrs["lhs_contracting_dimensions"]
        return 2 * op.result.type.size * prod(shape[d] for d in contracting) // asked if asked else 0
    if op.name == "convolution":
        spread: tuple[int, ...] = op.attrs["lhs_dilation"]  # the zeros between cost nothing
        met = prod(op.operands[1].shape[1:]) // prod(spread)
        return 2 * op.result.type.size * met
    if op.name in GROUPED:  # each row meets the matrix of its own group alone
        (rows, size), cols = op.operands[0].shape, op.operands[1].shape[-1]
        return 2 * rows * size * cols if op.attrs["asked"] else 0
    if op.name in ("trn.attention", "trn.attention_backward"):
        each, first = (1, 0) if op.name == "trn.attention" else (2, 1)  # of products over keys and over values
        q, k, v = (x.shape for x in op.operands[first : first + 3])
        return 2 * each * prod(q[:3]) * k[2] * (q[3] + v[3])
    return 0


class AskedWork(NamedTuple):
    """What a graph asks of any chip."""

    flops: int  # see `model_flops`
    bytes: int  # between memory and chip
    chain: int  # products each of which needs the one before
    formats: tuple[str, ...]  # names of those that operands of products have


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
    needed = {value: value.type.size for value in graph.outputs if value.op is not None}  # elements, the others 0
    for op in reversed(live):
        for place, value in enumerate(op.operands):
            needed[value] = min(needed.get(value, 0) + _needed(op, place, needed), value.type.size)
    came = sum(needed.get(value, 0) * value.dtype.itemsize for value in graph.inputs)
    return came + sum(map(_written, dict.fromkeys(graph.outputs)))


def _needed(op: Op, place: int, needed: dict[Value, int]) -> int:
    """Elements of an operand that an op needs at least."""
    of_results = sum(needed.get(result, 0) for result in op.results)
    if op.name in VIEWS or (place == 0 and op.name in PICKED):
        return min(of_results, op.operands[place].type.size)
    if op.name == "custom_call" or (place == 0 and op.name in WRITTEN):  # a kernel may leave an operand alone
        return 0
    if op.name == "trn.grouped_dot" and place == 1:  # the matrices of as many groups as can have a row
        groups, rows, size = op.operands[1].shape[0], op.operands[0].shape[0], op.operands[1].type.size
        return min(groups, rows) * (size // groups)
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
