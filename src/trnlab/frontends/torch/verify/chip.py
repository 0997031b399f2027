# SPDX-License-Identifier: Apache-2.0
"""The run on the chip: every program runs as it always does, and again with its intermediate results written out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from trnlab.compiler.probes import InstrumentedProgram, compile_probed, read
from trnlab.frontends.common.engine import DeviceEngine
from trnlab.frontends.torch.device.buffers import tensor_from
from trnlab.frontends.torch.findings import provenance
from trnlab.frontends.torch.verify.ops import ChipResults, GraphEvaluation
from trnlab.frontends.torch.verify.steps import StepCounter
from trnlab.graph.ir import Graph, Value
from trnlab.numerics.dtypes import bool_
from trnlab.runtime import session
from trnlab.sim.functional import Machine, RunOptions, run_program
from trnlab.verify.result import Verdict

Array = np.ndarray[Any, Any]


@dataclass
class ChipEngine(DeviceEngine):
    """Runs graphs on the chip and compares their ops, into `verdict`. `times`: of steps that the script had timed."""

    verdict: Verdict
    steps: StepCounter
    random: list[Tensor] = field(default_factory=list)  # drawn by the chip, in order
    times: list[float] = field(default_factory=list)
    trial: bool = False  # within `step_time`: nothing counts
    keep: int = 0  # the step whose results are kept by layer, into `layers`
    layers: dict[str, list[Tensor]] = field(default_factory=dict)

    def compile(self, graph: Graph, frozen: Sequence[int] = ()) -> Callable[[Sequence[Array]], list[Array]]:
        """See `GraphEngine`."""
        plain, now = super().compile(graph), session.current()
        source = provenance.of(graph)
        examined = InstrumentedGraph(graph, source, now) if source is not None else None

        def run(inputs: Sequence[Array]) -> list[Array]:
            if self.trial or examined is None:
                return plain(inputs)
            self.steps.starts(graph.name)
            before = [np.array(x) for x in inputs]
            outputs = plain(inputs)
            self._examine(examined, before, outputs)
            return outputs

        return run

    def _examine(self, examined: InstrumentedGraph, before: list[Array], outputs: Sequence[Array]) -> None:
        arrays, same = examined.run(before, outputs)
        if not same:
            self.verdict.same_program = False
        backward = examined.graph.name.startswith("backward")
        walk = GraphEvaluation(
            examined.source,
            ChipResults(arrays, examined.rewritten),
            self.steps.number,
            session.current().precision,
            backward,
        )
        if self.steps.number == self.keep:
            walk.layers = self.layers
        order = itertools.count(len(self.verdict.results))
        for result in walk.run(examined.tensors(before)):
            self.verdict.add([replace(result, order=next(order))])
        self.random += walk.random

    def step_done(self, loss: float, tokens: int) -> None:
        """See `GraphEngine`."""
        if not self.trial:
            self.steps.done(loss)

    def optimizer_stepped(self) -> None:
        """See `engine.optimizer_stepped`."""
        if not self.trial:
            self.steps.stepped()

    def step_time(self, measured: Callable[[], float]) -> float:
        """A trial of the script's own: it is let alone, and its outcome kept for the other runs."""
        self.trial = True
        try:
            with self.steps.paused():
                self.times.append(measured())
        finally:
            self.trial = False
        return self.times[-1]


class InstrumentedGraph:
    """One graph with the program that writes out its intermediate results."""

    def __init__(self, graph: Graph, source: provenance.Provenance, now: session.Session) -> None:
        self.graph, self.source, self.now = graph, source, now
        self.wanted = _wanted(source)
        self._tapped: InstrumentedProgram | None = None

    @property
    def tapped(self) -> InstrumentedProgram:
        """Compiled on first use."""
        if self._tapped is None:
            self._tapped = compile_probed(self.graph, self.wanted, self.now.chip, self.now.compile_options())
        return self._tapped

    @property
    def rewritten(self) -> set[Value]:
        """The values that the compiler has made in another way than the graph's."""
        return {self.wanted[i] for i, tap in self.tapped.probes.items() if tap.rewritten}

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> tuple[Mapping[Value, Array], bool]:
        """Results by value, and whether the outputs are those of the plain program bit for bit."""
        program = self.tapped.program
        own = [np.array(x) for x in inputs]
        memory = {id: array.reshape(program.tensors[id].shape) for id, array in zip(program.inputs, own)}
        for tensor in program.tensors:
            if tensor.kind == "output" and tensor.id not in memory:
                memory[tensor.id] = np.empty(tensor.shape, tensor.dtype.numpy)
        options = RunOptions(self.now.rounds_stochastically, self.now.seed)
        run_program(program, memory, self.now.chip, machine=Machine(self.now.chip, options))
        same = all(memory[id].tobytes() == out.tobytes() for id, out in zip(program.outputs, outputs))
        first = {id: array.reshape(program.tensors[id].shape) for id, array in zip(program.inputs, inputs)}
        after = {**program.constants, **memory}
        found = {
            self.wanted[i]: read(tap, (first if tap.given else after)[tap.tensor])
            for i, tap in self.tapped.probes.items()
        }
        found.update(zip(self.graph.inputs, inputs))
        found.update(zip(self.graph.outputs, outputs))
        return found, same

    def tensors(self, inputs: Sequence[Array]) -> dict[str, Tensor]:
        """The graph's inputs as tensors of the host, by the names of placeholders."""
        nodes = {n.name: n for n in self.source.module.graph.nodes if n.op == "placeholder"}
        found = {}
        for name, value, array in zip(self.source.inputs, self.graph.inputs, inputs):
            if name is not None:
                kind = nodes[name].meta["val"].dtype
                shaped = np.array(array).reshape(value.shape)
                shaped = shaped.astype(np.bool_) if value.dtype is bool_ else shaped
                found[name] = tensor_from(shaped, kind, "cpu")
        return found


def _wanted(source: provenance.Provenance) -> list[Value]:
    """The distinct values that operators were imported as."""
    found: dict[Value, None] = {}
    for node, held in source.values.items():
        for value in held if isinstance(held, list | tuple) else [held]:
            if isinstance(value, Value) and node.op == "call_function" and value.op is not None:
                found[value] = None
    return list(found)
