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
from dataclasses import asdict, replace
from datetime import UTC, datetime
from math import prod
from typing import Any

import numpy as np

from trnlab import compiler
from trnlab.compiler.progress import watched
from trnlab.errors import RunError
from trnlab.graph.canonical import diff
from trnlab.graph.collectives import has_collectives
from trnlab.graph.flops import asked
from trnlab.graph.ir import Graph
from trnlab.graph.text import to_text
from trnlab.program.callee import needs_two_cores
from trnlab.program.routine import Program, ProgramTensor
from trnlab.runtime.cache.compile_cost import size_of
from trnlab.runtime.cache.fingerprint import Fingerprint, causes, fingerprint
from trnlab.runtime.executable import Executable
from trnlab.runtime.faults import require_links
from trnlab.runtime.memory import forecast_graph
from trnlab.runtime.notices import say
from trnlab.runtime.progress import Compiling
from trnlab.runtime.searched import ROUNDS, searched
from trnlab.runtime.session import LastCompiled, Session
from trnlab.sim.functional import Machine, RunOptions, run_program

Array = np.ndarray[Any, Any]


class Loaded:
    """An executable in the simulated HBM of a session.

    Raises CapacityError when it does not fit, UsageError (TRN187) when it would send over a link that is down.
    """

    def __init__(self, executable: Executable, session: Session) -> None:
        executable.forecast.require(executable.name, executable.chip)
        require_links(executable.program)
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
        machine = core(self.session)
        others = self.executable.other_hbm_bytes()
        if self.session.run is not None:
            self.session.run.begins()
        run_program(program, bindings, self.executable.chip, machine=machine, ranks=self.session.communicator)
        self._count(others)
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

    def _count(self, beside: int) -> None:
        self.session.counters.instructions += self.executable.program.num_instructions
        if self.session.run is not None:
            self.session.run.executed(self.executable, beside)

    def _check(self, inputs: Sequence[Array]) -> None:
        program = self.executable.program
        if len(inputs) != len(program.inputs):
            raise RunError(
                f"{program.name!r} was given the wrong number of inputs",
                code="TRN820",
                limit=len(program.inputs),
                got=len(inputs),
                remedy="pass one array per input of the graph",
            )
        for id, array, shape in zip(program.inputs, inputs, self.executable.metadata["inputs"]):
            _check_input(program.tensors[id], tuple(shape), array)


def compile_graph(graph: Graph, session: Session) -> Executable:
    """The executable of `graph` for the session's chip and options, compiled unless memory or the cache has it.

    Says in one line what changed when a graph that this session already compiled has to be compiled again.
    Raises UsageError when no target was chosen, CapacityError, before compiling, for a graph that cannot fit.
    """
    session.require_target()
    forecast_graph(graph, session.chip, _cores_of(graph, session)).require(graph.name, session.chip)
    found = obtain(graph, session)
    found.forecast.require(graph.name, session.chip)
    return found


def obtain(graph: Graph, session: Session) -> Executable:
    """As `compile_graph`, also for a graph that does not fit in HBM: it can be timed, and not be loaded."""
    wanted = fingerprint(graph, session.chip, options_of(graph, session))
    found = session.executables.get(wanted.key)
    if found is None:
        found = session.executables[wanted.key] = _obtain(graph, wanted, session)
    session.compiled[graph.name] = LastCompiled(wanted, graph)
    if session.emit is not None:
        session.emit(graph, wanted.key)
    return found


def know(graph: Graph, executable: Executable, session: Session) -> None:
    """Make the routines of an executable that came from the cache known, for graphs that are compiled again for other
    policies of communication alone; those of one that was compiled here are."""
    wanted = fingerprint(graph, session.chip, options_of(graph, session))
    known = _known(graph, wanted, session)
    if known is not None and executable.cache == "hit":
        known.update(compiler.routines_of(graph, session.chip, options_of(graph, session), executable.program))


def options_of(graph: Graph, session: Session) -> dict[str, Any]:
    """The options that the program of a graph depends on; those of a graph without collectives know no ranks."""
    options = session.compile_options()
    if has_collectives(graph):
        options |= session.communication_options()
    return options


def _obtain(graph: Graph, wanted: Fingerprint, session: Session) -> Executable:
    started = time.perf_counter()
    cache = session.cache
    with cache.building(wanted.key) if cache is not None and not cache.has(wanted.key) else contextlib.nullcontext():
        found = _from_cache(graph, wanted, session, started)
        return found or _build(graph, wanted, session, started)


def _from_cache(graph: Graph, wanted: Fingerprint, session: Session, started: float) -> Executable | None:
    cache = session.cache
    stored = cache.get(wanted.key, session.chip, _identity(graph, wanted, session)) if cache is not None else None
    if stored is None:
        return None
    seconds = time.perf_counter() - started
    program = _on_network(stored.program, session)
    return Executable(
        program, stored.graph, stored.metadata, session.chip, "hit", seconds, cores=_cores(program, session)
    )


def _build(graph: Graph, wanted: Fingerprint, session: Session, started: float) -> Executable:
    earlier = session.compiled.get(graph.name)
    if earlier is not None:
        because = causes(wanted.settings_changed(earlier.fingerprint), diff(earlier.graph, graph))
        say(f"compiling {graph.name!r} again, because of {because}")
    text = to_text(graph, locations=True, whole=False)
    program, choices = _compiled(graph, wanted, session)
    seconds = time.perf_counter() - started
    metadata = _metadata(graph, wanted, session, seconds) | ({"choices": choices} if choices else {})
    if session.cache is not None:
        session.cache.put(wanted.key, program, metadata, text)
    cache = "off" if session.cache is None else "miss"
    program = _on_network(program, session)
    return Executable(program, text, metadata, session.chip, cache, seconds, cores=_cores(program, session))


def _compiled(graph: Graph, wanted: Fingerprint, session: Session) -> tuple[Program, dict[str, Any]]:
    """Compile, and say how far it is where a script is run; with what was chosen, where lowerings were timed."""
    options, known, choices = options_of(graph, session), _known(graph, wanted, session), dict[str, Any]()
    progress = Compiling(graph.name, session.chip.name, session.cache is not None)
    with watched(progress) if session.run is not None else contextlib.nullcontext():
        if session.optimize in ROUNDS:
            best = searched(graph, session.chip, options, known, session.optimize, _cores_of(graph, session))
            program, choices = best.program, best.record
        else:
            program = compiler.compile(graph, session.chip, options, known)
    if session.run is not None:
        progress.ended()
    return program, choices


def _cores(program: Program, session: Session) -> int:
    """Cores that share a program, in its times: a kernel on two asks for the logical core that its model runs on."""
    return 2 if session.pairs or program.cores > 1 else 1


def _cores_of(graph: Graph, session: Session) -> int:
    """The same of a graph that is not compiled yet."""
    return 2 if session.pairs or needs_two_cores(graph) else 1


def _known(graph: Graph, wanted: Fingerprint, session: Session) -> dict[Any, Any] | None:
    """The routines of a graph that may be compiled again, for other policies of communication alone."""
    if not has_collectives(graph):
        return None
    same = (wanted.parts["wiring"], wanted.parts["figures of the chip"], session.compile_options()["precision"])
    return session.known.setdefault(same, {})


def _on_network(program: Program, session: Session) -> Program:
    """A program of several ranks with what times of its collectives depend on, besides the cluster."""
    if program.ranks == 1:
        return program
    return replace(program, faults=session.faults, streams=session.streams)


def _identity(graph: Graph, wanted: Fingerprint, session: Session) -> dict[str, Any]:
    """What every executable of the graph says of itself, whoever compiled it."""
    work = asked(graph)
    return {
        "key": wanted.key,
        "name": graph.name,
        "target": session.chip.name,
        "options": options_of(graph, session),
        "parts": dict(wanted.parts),
        "inputs": [list(v.shape) for v in graph.inputs],
        "outputs": [list(v.shape) for v in graph.outputs],
        "aliases": [list(pair) for pair in sorted(graph.aliases.items())],
        "model_flops": work.flops,
        "asked": {"bytes": work.bytes, "chain": work.chain, "formats": [*work.formats]},
    }


def _metadata(graph: Graph, wanted: Fingerprint, session: Session, seconds: float) -> dict[str, Any]:
    return {
        **_identity(graph, wanted, session),
        "compile_seconds": seconds,
        **asdict(size_of(graph)),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "script": str(session.run.script) if session.run is not None else "",
    }


def _as_shaped(array: Array, shape: Sequence[int]) -> Array:
    """The same memory in another shape; tensors without elements have one on the chip, which means nothing."""
    if array.size != prod(shape):
        return np.zeros(tuple(shape), array.dtype)
    return array.reshape(tuple(shape))


def _check_input(tensor: ProgramTensor, shape: tuple[int, ...], array: Array) -> None:
    fits = array.shape == shape and array.dtype == tensor.dtype.numpy and array.flags.c_contiguous
    if not fits:
        layout = "" if array.flags.c_contiguous else ", not contiguous"
        raise RunError(
            f"input {tensor.name!r} does not fit the program",
            code="TRN821",
            limit=f"{tensor.dtype.name}{list(shape)}",
            got=f"{array.dtype.name}{list(array.shape)}{layout}",
            remedy="pass an array of the shape and format that was compiled for",
        )


def core(session: Session) -> Machine:
    """The session's one simulated core; its random streams go on from run to run."""
    if session.core is None:
        options = RunOptions(session.rounds_stochastically, session.seed, session.check_nan)
        session.core = Machine(session.chip, options)
    return session.core
