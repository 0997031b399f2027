# SPDX-License-Identifier: Apache-2.0
"""Loops of known length: what the op `loop` does in one round, and with which parts of its operands.

A round is a graph. Each of its inputs is an operand as it is, a run of an operand's elements that moves on with the
rounds, or what an output was one round before. Each of its outputs goes round, or fills such a run of a result.
So a scan over a sequence reads its step of the sequence, carries its state, and writes its step of the results, and
nothing in the round depends on its number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trnlab.graph.canonical import canonical_hash
from trnlab.graph.ir import Graph, Op, TensorType

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class LoopWindow:
    """Elements `start + step * round` and on of a tensor, in row-major order, as many as the round's value has."""

    start: int
    step: int

    def first(self, number: int) -> int:
        """The first element in a round."""
        return self.start + self.step * number

    def disjoint(self, count: int) -> bool:
        """Whether no element is in the windows of two rounds, for windows of `count` elements."""
        return abs(self.step) >= count

    def fills(self, count: int, rounds: int, size: int) -> bool:
        """Whether each of a tensor's elements is in the window of some round."""
        ends = self.first(0), self.first(rounds - 1)
        return (rounds == 1 or abs(self.step) <= count) and min(ends) == 0 and max(ends) + count == size


@dataclass(frozen=True, slots=True)
class LoopInput:
    """Where an input of a round comes from: an operand or a window of it; with `carry`, from the second round on from
    this output of the round before."""

    operand: int
    window: LoopWindow | None = None
    carry: int | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """Where an output of a round goes: into a window of the result, which begins as `operand`; without a window it is
    the result after the last round."""

    window: LoopWindow | None = None
    operand: int | None = None


@dataclass(frozen=True)
class Body:
    """What a loop does in each of its `rounds`."""

    graph: Graph
    rounds: int
    reads: tuple[LoopInput, ...]  # one per input of the graph
    writes: tuple[Write, ...]  # one per output, which is a result of the loop
    _memo: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """For people."""
        return self.graph.name

    @property
    def digest(self) -> str:
        """What it does, in 64 hexadecimal digits."""
        if "digest" not in self._memo:
            said = f"{canonical_hash(self.graph)} {self.rounds} {self.reads} {self.writes}"
            self._memo["digest"] = hashlib.sha256(said.encode()).hexdigest()
        return self._memo["digest"]

    def filled(self, index: int, size: int) -> bool:
        """Whether the rounds overwrite all of result `index`, which has `size` elements."""
        window = self.writes[index].window
        return window is None or window.fills(self.graph.outputs[index].type.size, self.rounds, size)

    def results(self, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Types of the results, for operands of these types."""
        found = []
        for write, value in zip(self.writes, self.graph.outputs):
            found.append(value.type if write.operand is None else types[write.operand])
        return tuple(found)

    def faults(self, types: Sequence[TensorType]) -> str:
        """What does not fit operands of these types; empty where all does."""
        if self.rounds < 1 or len(self.reads) != len(self.graph.inputs):
            return "a loop has one round at least, and a source for each input of a round"
        if len(self.writes) != len(self.graph.outputs):
            return "a loop has a result for each output of a round"
        for read, value in zip(self.reads, self.graph.inputs):
            if not 0 <= read.operand < len(types) or not self._fits(read.window, value.type, types[read.operand]):
                return f"input {value.index} of a round does not fit operand {read.operand}"
            if read.carry is not None and self.graph.outputs[read.carry].type != value.type:
                return f"output {read.carry} of a round does not fit input {value.index}"
        for i, (write, value) in enumerate(zip(self.writes, self.graph.outputs)):
            if write.window is not None and (
                write.operand is None or not self._fits(write.window, value.type, types[write.operand])
            ):
                return f"output {i} of a round does not fit its result"
        return ""

    def _fits(self, window: LoopWindow | None, value: TensorType, whole: TensorType) -> bool:
        if window is None:
            return value == whole
        ends = window.first(0), window.first(self.rounds - 1)
        return value.dtype is whole.dtype and min(ends) >= 0 and max(ends) + value.size <= whole.size


Round = Callable[[Graph, Sequence[Array]], Sequence[Array]]


def run(op: Op, arrays: Sequence[Array], round_: Round) -> list[Array]:
    """The results of a loop: `round_` computes a graph."""
    body: Body = op.attrs["body"]
    outputs: Sequence[Array] = ()
    results = [arrays[w.operand].copy() if w.operand is not None else None for w in body.writes]
    for number in range(body.rounds):
        given = [_read(r, v.shape, number, arrays, outputs) for r, v in zip(body.reads, body.graph.inputs)]
        outputs = round_(body.graph, given)
        for result, write, value in zip(results, body.writes, outputs):
            if result is not None and write.window is not None:
                first = write.window.first(number)
                result.reshape(-1)[first : first + value.size] = value.reshape(-1)
    return [value if result is None else result for result, value in zip(results, outputs)]


def _read(
    read: LoopInput, shape: tuple[int, ...], number: int, arrays: Sequence[Array], outputs: Sequence[Array]
) -> Array:
    if read.carry is not None and number:
        return outputs[read.carry]
    array = arrays[read.operand]
    if read.window is None:
        return array
    first = read.window.first(number)
    return array.reshape(-1)[first : first + int(np.prod(shape))].reshape(shape)
