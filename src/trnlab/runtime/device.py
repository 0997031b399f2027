# SPDX-License-Identifier: Apache-2.0
"""A graph on the simulated chip: compile it (or find it in the cache), load it, run it, time it.

In the order of use:

    executable = compile_graph(graph, session)     # one per distinct graph
    loaded = Loaded(executable, session)
    outputs = loaded.run(inputs)                   # one per batch
    executable.timeline                            # once per executable, not once per batch
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import prod
from typing import Any

import numpy as np

from trnlab import compiler
from trnlab.chips.spec import Chip
from trnlab.errors import RunError
from trnlab.graph.canonical import diff
from trnlab.graph.ir import Graph
from trnlab.graph.text import to_text
from trnlab.program.routine import Tensor
from trnlab.runtime.cache import Cache
from trnlab.runtime.executable import Executable
from trnlab.runtime.fingerprint import Fingerprint, fingerprint, shorten
from trnlab.runtime.memory import forecast_graph
from trnlab.runtime.notices import say
from trnlab.runtime.performance import model_flops
from trnlab.runtime.session import Compiled, Session
from trnlab.sim.functional import Machine, RunOptions, run_program

Array = np.ndarray[Any, Any]


class Loaded:
    """An executable in the simulated HBM of a session. Raises CapacityError when it does not fit."""

    def __init__(self, executable: Executable, session: Session) -> None:
        executable.forecast.require(executable.name, executable.chip)
        self.executable, self.session = executable, session
        self._aliases = {int(out): int(source) for out, source in executable.metadata["aliases"]}

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Execute once.

        Inputs are C-contiguous arrays in the graph's order; donated ones are overwritten, and are what is returned
        for the outputs that replace them. Raises RunError for inputs that do not fit the program.
        """
        program = self.executable.program
        self._check(inputs)
        bindings = {id: _as_shaped(array, program.tensors[id].shape) for id, array in zip(program.inputs, inputs)}
        for id in program.outputs:
            if id not in bindings:
                bindings[id] = np.empty(program.tensors[id].shape, program.tensors[id].dtype.numpy)
        run_program(program, bindings, self.executable.chip, machine=_core(self.session))
        self._count()
        return [self._output(i, bindings, inputs) for i in range(len(program.outputs))]

    def _output(self, index: int, bindings: Mapping[int, Array], inputs: Sequence[Array]) -> Array:
        """The output, in the memory of the input that it replaces where the graph says so."""
        program, source = self.executable.program, self._aliases.get(index)
        value = _as_shaped(bindings[program.outputs[index]], self.executable.metadata["outputs"][index])
        if source is None:
            return value
        if program.outputs[index] != program.inputs[source]:
            inputs[source][...] = value
        return inputs[source]

    def _count(self) -> None:
        self.session.counters.instructions += self.executable.program.num_instructions
        if self.session.run is not None:
            self.session.run.executed(self.executable)

    def _check(self, inputs: Sequence[Array]) -> None:
        program = self.executable.program
        if len(inputs) != len(program.inputs):
            raise RunError(
                f"{program.name!r} was given the wrong number of inputs", code="TRN820", limit=len(program.inputs),
                got=len(inputs), remedy="pass one array per input of the graph",
            )  # fmt: skip
        for id, array, shape in zip(program.inputs, inputs, self.executable.metadata["inputs"]):
            _check_input(program.tensors[id], tuple(shape), array)


def compile_graph(graph: Graph, session: Session) -> Executable:
    """The executable of `graph` for the session's chip and options, compiled unless memory or the cache has it.

    Says in one line what changed when a graph that this session already compiled has to be compiled again.
    Raises UsageError when no target was chosen, CapacityError, before compiling, for a graph that cannot fit.
    """
    session.require_target()
    forecast_graph(graph, session.chip).require(graph.name, session.chip)
    found = obtain(graph, session)
    found.forecast.require(graph.name, session.chip)
    return found


def obtain(graph: Graph, session: Session) -> Executable:
    """As `compile_graph`, also for a graph that does not fit in HBM: it can be timed, and not be loaded."""
    wanted = fingerprint(graph, session.chip, session.compile_options())
    found = session.executables.get(wanted.key)
    if found is None:
        found = session.executables[wanted.key] = _obtain(graph, wanted, session)
    session.compiled[graph.name] = Compiled(wanted, graph)
    if session.emit is not None:
        session.emit(graph, wanted.key)
    return found


def _obtain(graph: Graph, wanted: Fingerprint, session: Session) -> Executable:
    started = time.perf_counter()
    cache = session.cache
    with cache.building(wanted.key) if cache is not None and not cache.has(wanted.key) else contextlib.nullcontext():
        found = _from_cache(wanted, session.chip, cache, started)
        return found or _build(graph, wanted, session, started)


def _from_cache(wanted: Fingerprint, chip: Chip, cache: Cache | None, started: float) -> Executable | None:
    stored = cache.get(wanted.key) if cache is not None else None
    if stored is None:
        return None
    seconds = time.perf_counter() - started
    return Executable(stored.program, stored.graph, stored.metadata, chip, "hit", seconds)


def _build(graph: Graph, wanted: Fingerprint, session: Session, started: float) -> Executable:
    earlier = session.compiled.get(graph.name)
    if earlier is not None:
        changes = [*wanted.settings_changed(earlier.fingerprint), *map(str, diff(earlier.graph, graph))]
        say(f"compiling {graph.name!r} again, because of {'; '.join(shorten(changes))}")
    text = to_text(graph, locations=True, whole=False)
    program = compiler.compile(graph, session.chip, session.compile_options())
    seconds = time.perf_counter() - started
    metadata = _metadata(graph, wanted, session, seconds)
    if session.cache is not None:
        session.cache.put(wanted.key, program, metadata, text)
    cache = "off" if session.cache is None else "miss"
    return Executable(program, text, metadata, session.chip, cache, seconds)


def _metadata(graph: Graph, wanted: Fingerprint, session: Session, seconds: float) -> dict[str, Any]:
    return {
        "key": wanted.key,
        "name": graph.name,
        "target": session.chip.name,
        "options": session.compile_options(),
        "parts": dict(wanted.parts),
        "inputs": [list(v.shape) for v in graph.inputs],
        "outputs": [list(v.shape) for v in graph.outputs],
        "aliases": [list(pair) for pair in sorted(graph.aliases.items())],
        "model_flops": model_flops(graph),
        "compile_seconds": seconds,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "script": str(session.run.script) if session.run is not None else "",
    }


def _as_shaped(array: Array, shape: Sequence[int]) -> Array:
    """The same memory in another shape; tensors without elements have one on the chip, which means nothing."""
    if array.size != prod(shape):
        return np.zeros(tuple(shape), array.dtype)
    return array.reshape(tuple(shape))


def _check_input(tensor: Tensor, shape: tuple[int, ...], array: Array) -> None:
    fits = array.shape == shape and array.dtype == tensor.dtype.numpy and array.flags.c_contiguous
    if not fits:
        layout = "" if array.flags.c_contiguous else ", not contiguous"
        raise RunError(
            f"input {tensor.name!r} does not fit the program", code="TRN821",
            limit=f"{tensor.dtype.name}{list(shape)}", got=f"{array.dtype.name}{list(array.shape)}{layout}",
            remedy="pass an array of the shape and format that was compiled for",
        )  # fmt: skip


def _core(session: Session) -> Machine:
    """The session's one simulated core; its random streams go on from run to run."""
    if session.core is None:
        options = RunOptions(session.rounds_stochastically, session.seed, session.check_nan)
        session.core = Machine(session.chip, options)
    return session.core
