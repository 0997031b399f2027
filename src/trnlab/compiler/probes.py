# SPDX-License-Identifier: Apache-2.0
"""A program that also leaves intermediate results in memory, computed by the same loops as without.

Groups are formed before anything is known of the taps: what is tapped is only written out in addition. So the program
computes what the plain one does; whoever relies on that compares the outputs of both bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.compiler import passes, pipeline
from trnlab.compiler.analysis.strided import LOOK_OPS, ValueView
from trnlab.compiler.supported import select_rules
from trnlab.graph.interpret import apply
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.numerics.dtypes import float32
from trnlab.program import Program

Array = np.ndarray[Any, Any]
_LAST_SHARED = "legalize"  # the passes up to here see taps as outputs; those after it look at outputs


@dataclass(frozen=True)
class Probe:
    """Where a tapped value is after a run: a strided look at a tensor of the program. Strides in elements."""

    tensor: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    # ops that move or widen the elements of what is there, where only such have been removed; they are exact
    moves: tuple[Op, ...] = ()
    given: bool = False  # whether it is an input of the graph, whose memory may hold something else after the run
    rewritten: bool = False  # whether other ops make it than those of the graph, from other values


@dataclass(frozen=True)
class InstrumentedProgram:
    """A program and what can be read of it.

    probes: by the number of the value among those asked for; what the compiler has removed, or keeps within one
    instruction, is missing.
    """

    program: Program
    probes: dict[int, Probe]


def compile_probed(
    graph: Graph, values: Sequence[Value], chip: Chip, options: Mapping[str, Any]
) -> InstrumentedProgram:
    """The program of `graph` that also writes out `values`, which are results or inputs of the graph.

    Raises what `compile` raises.
    """
    copied, options = graph.copy(), passes.with_chip(options, chip)
    twin = dict(zip(graph.values(), copied.values(), strict=True))
    made = [twin[v].op for v in values]
    count = len(copied.outputs)
    copied.outputs.extend(twin[v] for v in values)
    copied.num_probes = len(values)
    ends = [name for name, _ in passes.PASSES].index(_LAST_SHARED) + 1
    for _, run in passes.PASSES[:ends]:
        run(copied, options)
    found = copied.outputs[count:]
    del copied.outputs[count:]
    copied.num_probes = 0
    remove_dead_ops(copied)
    for _, run in passes.PASSES[ends:]:
        run(copied, options)
    rules = select_rules(copied, chip)
    alive = set(copied.values())
    sources = {i: source for i, v in enumerate(found) if (source := _source(v, alive)) is not None}
    assembly = pipeline.Assembly(copied, chip, rules, [root for root, _ in sources.values()])
    program = assembly.program()
    taps = {i: tap for i, (root, moves) in sources.items() if (tap := _tap(assembly, root, moves)) is not None}
    return InstrumentedProgram(
        program, {i: replace(tap, rewritten=found[i].op is not made[i]) for i, tap in taps.items()}
    )


def _source(value: Value, alive: set[Value]) -> tuple[Value, tuple[Op, ...]] | None:
    """The value that the program computes, and the exact ops that lead from there to `value`."""
    moves: list[Op] = []
    while value not in alive:
        op = value.op
        if op is None or not _exact(op):
            return None
        moves.append(op)
        value = op.operands[0]
    return value, tuple(reversed(moves))


def _exact(op: Op) -> bool:
    """Whether an op only moves elements, or converts them to a wider float format."""
    if op.name in LOOK_OPS:
        return True
    widens = op.name == "convert" and op.operands[0].dtype.is_float and op.result.dtype is float32
    return widens


def _tap(assembly: pipeline.Assembly, value: Value, moves: tuple[Op, ...]) -> Probe | None:
    seen: ValueView = assembly.part.strided(value)
    tensor = assembly.tensor_of.get(seen.base)
    if tensor is None or assembly.tensors[tensor].kind == "temp":
        return None
    return Probe(tensor, seen.offset, seen.shape, seen.strides, moves, seen.base.op is None)


def read(tap: Probe, memory: Array) -> Array:
    """The tapped value's elements, copied out of the memory of its tensor."""
    flat = memory.reshape(-1)[tap.offset :]
    size = flat.itemsize
    seen = np.lib.stride_tricks.as_strided(flat, tap.shape, [s * size for s in tap.strides], writeable=False)
    found = np.array(seen)
    for op in tap.moves:
        found = apply(op.name, [found], [op.operands[0].type], op.attrs)[0]
    return found
