# SPDX-License-Identifier: Apache-2.0
"""What a module becomes: graphs that run one after another, and loops whose length depends on what they compute.

Nearly every module is one graph. A loop that only the data can end cuts it: what comes before, the loop's condition
and body, and what comes after are graphs of their own, and the host asks the condition before each round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trnlab.errors import Location
from trnlab.frontends.stablehlo.rounds import RoundCounter
from trnlab.graph.ir import Graph, TensorType
from trnlab.numerics.dtypes import DType

Array = np.ndarray[Any, Any]
Runner = Callable[[Graph], Callable[[Sequence[Array]], list[Array]]]


@dataclass
class GraphRun:
    """One graph. `inputs` and `outputs` are slots, in the order of the graph's own."""

    graph: Graph
    inputs: list[int]
    outputs: list[int]


@dataclass
class WhileLoop:
    """Rounds of `body` as long as `condition` says so."""

    condition: SegmentedProgram
    body: SegmentedProgram
    start: list[int]
    # slots that hold what goes round, first before the loop, in the end after it, from the slots `start`. shared:
    # slots of what both programs read beside it; each lists them after the state
    state: list[int]
    condition_shared: list[int]
    body_shared: list[int]
    where: Location | None = None  # the user's line


@dataclass
class SegmentedProgram:
    """Steps over numbered slots."""

    name: str
    inputs: list[int | None]  # the slot of each argument, None where nobody reads it
    # the slot of each result. types: of the arguments and of the results, in the formats of the module (64-bit
    # ones among them)
    outputs: list[int]
    argument_types: list[TensorType]
    result_types: list[TensorType]
    steps: list[GraphRun | WhileLoop] = field(default_factory=list)
    constants: dict[int, Array] = field(default_factory=dict)  # slots that hold numbers from the start
    # the result that takes the place of an argument, by the argument's number
    donated: Mapping[int, int] = field(default_factory=dict)
    # slots of float32, by shape, that are zero at first and keep from call to call what was written to them
    states: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def graph(self) -> Graph | None:
        """The graph, of a program that is one."""
        graphs = list(self.graphs())
        return graphs[0] if len(graphs) == 1 and isinstance(self.steps[0], GraphRun) else None

    def graphs(self) -> Iterator[Graph]:
        """All graphs, those of loops too."""
        for step in self.steps:
            if isinstance(step, GraphRun):
                yield step.graph
            else:
                yield from step.condition.graphs()
                yield from step.body.graphs()

    def load(self, compile: Runner) -> Callable[[Sequence[Array]], list[Array]]:
        """A function of arrays, one per argument in the formats that the chip holds them in; its results likewise.

        Arguments are never written to.
        """
        return _Loaded(self, compile)


class _Loaded:
    """A program whose graphs are compiled."""

    def __init__(self, program: SegmentedProgram, compile: Runner) -> None:
        self.program = program
        self._states = {slot: np.zeros(shape, np.float32) for slot, shape in program.states.items()}
        self.steps: list[Callable[[dict[int, Array]], None]] = [
            _loaded_run(step, compile) if isinstance(step, GraphRun) else _loaded_loop(step, compile)
            for step in program.steps
        ]

    def __call__(self, arguments: Sequence[Array]) -> list[Array]:
        slots = {**self.program.constants, **self._states}
        slots.update({slot: array for slot, array in zip(self.program.inputs, arguments) if slot is not None})
        for step in self.steps:
            step(slots)
        self._states = {slot: slots[slot] for slot in self._states}
        return [slots[slot] for slot in self.program.outputs]


def _loaded_run(step: GraphRun, compile: Runner) -> Callable[[dict[int, Array]], None]:
    program, overwritten = compile(step.graph), set(step.graph.aliases.values())
    kinds = [_stored(value.dtype) for value in step.graph.inputs]

    def run(slots: dict[int, Array]) -> None:
        given = [np.array(slots[s]) if i in overwritten else slots[s] for i, s in enumerate(step.inputs)]
        held = [np.asarray(a, kind, order="C") for a, kind in zip(given, kinds)]
        slots.update(zip(step.outputs, program(held)))

    return run


def _stored(kind: DType) -> Any:
    """The NumPy dtype of floats, which may be narrower than a framework has them; None for all else."""
    return kind.numpy if kind.is_float else None


def _loaded_loop(step: WhileLoop, compile: Runner) -> Callable[[dict[int, Array]], None]:
    condition, body, rounds = step.condition.load(compile), step.body.load(compile), RoundCounter(step.where)

    def run(slots: dict[int, Array]) -> None:
        state = [slots[s] for s in step.start]
        seen, used = [slots[s] for s in step.condition_shared], [slots[s] for s in step.body_shared]
        rounds.begin()
        while bool(condition([*state, *seen])[0]):
            rounds.next()
            state = body([*state, *used])
        slots.update(zip(step.state, state))

    return run
