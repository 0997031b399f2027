# SPDX-License-Identifier: Apache-2.0
"""Who runs a captured graph: the simulated chip, or, in tests, the graph's own interpreter.

with use(InterpreterEngine()):
    loss = step(x, y)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trnlab import host_ops
from trnlab.errors import NumericsError, TrnlabError
from trnlab.graph.ir import Check, Graph
from trnlab.hbm import HBM

if TYPE_CHECKING:
    from trnlab.compiler.prepared import PreparedGraph

Array = np.ndarray[Any, Any]
Program = Callable[[Sequence[Array]], list[Array]]


class GraphEngine(Protocol):
    """Turns a graph into something that runs."""

    def compile(self, graph: Graph, frozen: Sequence[int] = ()) -> Program:
        """A function of arrays in the order of the graph's inputs. Outputs with an alias are written in place.

        frozen: inputs, by number, that are the same in each run: what hangs on them alone may be computed in the
        first."""
        ...

    def step_done(self, loss: float, tokens: int) -> None:
        """A training step is over: its loss, and how many tokens (or samples) it learned from."""
        ...


def checked(graph: Graph, program: Program) -> Program:
    """`program` with the checks of its graph: inputs before it runs, the flags of its last output after.

    Raises NumericsError: TRN210 for a 64-bit integer beyond 32 bits, TRN213 for an index out of range,
    TRN228 for an assertion of the program.
    """
    if not graph.checks and not graph.limits:
        return program

    def run(inputs: Sequence[Array]) -> list[Array]:
        for place, checks in graph.limits.items():
            for check in checks:
                _check_index(check, inputs[place])
        results = program(inputs)
        if graph.checks:
            for place in np.flatnonzero(results.pop())[:1]:
                raise _violated(graph.checks[place])
        return results

    return run


def started(graph: Graph, load: Callable[[Graph], Program]) -> Program:
    """What runs a graph: `load` makes it, of the graph that its state begins with, too, when that is first needed."""
    if graph.start is None:
        return load(graph)
    place, first = graph.start.state, graph.start.graph
    made: dict[bool, Program] = {}

    def run(inputs: Sequence[Array]) -> list[Array]:
        begun = bool(np.any(inputs[place]))
        if begun not in made:
            made[begun] = load(graph if begun else first)
        return made[begun](inputs)

    return run


def _check_index(check: Check, ids: Array) -> None:
    if ids.size == 0 or (ids.min() >= check.low and ids.max() < check.high):
        return
    wrong = (ids < check.low) | (ids >= check.high)
    if check.exempt is not None:
        wrong &= ids != check.exempt
    for place in np.argwhere(wrong)[:1]:
        raise _violated(check, f"{ids[tuple(place)]} at {[int(i) for i in place]}")


def _violated(check: Check, got: str | None = None) -> NumericsError:
    if check.rule == "index":
        return NumericsError(
            f"an index of {check.origin} is out of range",
            code="TRN213",
            where=check.where,
            got=got,
            limit=f"{check.low} to {check.high - 1}",
            remedy="make the table larger, or mask and clamp the indices",
        )
    if check.rule == "holds":
        return NumericsError(
            f"the program asserts: {check.origin}",
            code="TRN228",
            where=check.where,
            remedy="look at the values of the batch",
        )
    return NumericsError(
        f"a 64-bit integer of {check.origin} does not fit in the 32 bits that the chip has",
        code="TRN210",
        where=check.where,
        limit=f"{check.low} to {check.high - 1}",
        remedy="keep the numbers smaller, compute them in float32, or before the step on the host",
    )


def prepared_of(graph: Graph, frozen: Sequence[int]) -> PreparedGraph | None:
    """The graph in two, as the session's compiler prepares it: see `compiler.prepared`."""
    if not frozen:
        return None
    from trnlab.compiler.prepared import prepare
    from trnlab.runtime import device, session

    return prepare(graph, frozen, device.options_of(graph, session.current()))


class PreparedProgram:
    """Runs a graph in two: the first run computes what hangs on frozen inputs alone, and keeps it on the device."""

    def __init__(self, graphs: PreparedGraph, once: Program, each: Program) -> None:
        self._graphs, self._once, self._each = graphs, once, each
        self._kept: list[Array] | None = None

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """One run."""
        if self._kept is None:
            self._kept = self._once([inputs[i] for i in self._graphs.frozen])
            HBM.hold(self, sum(array.nbytes for array in self._kept))
        return self._each([*(inputs[i] for i in self._graphs.given), *self._kept])


class InterpreterEngine:
    """Runs graphs with `graph.interpret`: the meaning of the ops, no chip and no time."""

    def compile(self, graph: Graph, frozen: Sequence[int] = ()) -> Program:
        """See `GraphEngine`."""
        return checked(graph, started(graph, self._load))

    @staticmethod
    def _load(graph: Graph) -> Program:
        from trnlab.graph.interpret import interpret
        from trnlab.runtime import session

        def run(inputs: Sequence[Array]) -> list[Array]:
            host_ops.current().program_started()
            now = session.active()
            ranks = now.communicator if now is not None else None
            outputs = [np.array(o) for o in interpret(graph, inputs, ranks=ranks)]
            for i, j in graph.aliases.items():
                inputs[j][...] = outputs[i]
                outputs[i] = inputs[j]
            return outputs

        return run

    def step_done(self, loss: float, tokens: int) -> None:
        """See `GraphEngine`."""


class DeviceEngine:
    """Runs graphs on the simulated chip of the current session."""

    def compile(self, graph: Graph, frozen: Sequence[int] = ()) -> Program:
        """See `GraphEngine`."""
        prepared = prepared_of(graph, frozen)
        if prepared is None:
            return checked(graph, started(graph, self._load))
        return checked(graph, PreparedProgram(prepared, self._load(prepared.once), self._load(prepared.each)))

    @staticmethod
    def _load(graph: Graph) -> Program:
        from trnlab.runtime import device, session

        now = session.current()
        loaded = device.Loaded(device.compile_graph(graph, now), now)

        def run(inputs: Sequence[Array]) -> list[Array]:
            now.counters.host.program_started()
            return loaded.run(inputs)

        return run

    def step_done(self, loss: float, tokens: int) -> None:
        """See `GraphEngine`; tells the session's run, if it keeps one."""
        from trnlab.runtime import session

        run = session.current().run
        if run is not None:
            run.step(loss, tokens)


_active: list[GraphEngine] = [DeviceEngine()]


def current() -> GraphEngine:
    """The engine in use: the simulated chip unless `use` says otherwise."""
    return _active[-1]


@contextmanager
def use(engine: GraphEngine) -> Iterator[GraphEngine]:
    """Compile with `engine` within the block."""
    _active.append(engine)
    try:
        yield engine
    finally:
        _active.pop()


Counted = tuple[int, str]


def unit_of(shape: Sequence[int]) -> str:
    """What whole numbers in this shape are: tokens, or one for each sample, as labels [N] and [N, 1] are."""
    return "tokens" if prod(shape[1:]) > 1 else "samples"


def counted(arrays: Sequence[tuple[Sequence[int], str]], samples: int = -1) -> Counted:
    """How many tokens a batch has, or else samples, and which of them.

    arrays: shapes and names of formats. Tokens are the elements of the last array of integers; those of a byte are
    pixels of pictures. Classes of pixels, [N, H, W] beside [N, C, H, W] or [N, H, W, C], are one sample each. Where
    there are no integers, samples are the rows of array number `samples`.
    """
    known = [(tuple(shape), name) for shape, name in arrays if len(shape)]
    ids = [shape for shape, name in known if "int" in name and not name.endswith("int8")]
    if not ids:
        return (known[samples][0][0], "samples") if known else (0, "")
    last = ids[-1]
    while last[1:] and last[-1] == 1:  # as Keras has them
        last = last[:-1]
    images = [shape for shape, _ in known if len(shape) == len(last) + 1 > 3 and shape[0] == last[0]]
    if any(last[1:] in (shape[2:], shape[1:-1]) for shape in images):
        return last[0], "samples"
    pictures = [shape[0] for shape, _ in known if len(shape) >= 4]
    if unit_of(last) == "samples" and pictures and last[0] not in pictures:  # classes of objects in them
        return pictures[0], "samples"
    return prod(last), unit_of(last)


class TracingEngine(Protocol):
    """An engine that runs nothing: a script is followed, and its frameworks compute on the host what it reads."""

    def follow(
        self, how: str, graphs: Sequence[Graph], kinds: Mapping[str, str], learns: bool, counted: Counted = (0, "")
    ) -> None:
        """These graphs would run now, compiled by `how`. kinds: of inputs by name: "parameter", "state", "batch".
        counted: what a pass that learns nothing has, see `counted`."""
        ...

    def left(self, name: str, error: TrnlabError) -> None:
        """The function of this name would run on the host, for this reason."""
        ...


def follower() -> TracingEngine | None:
    """The engine in use where it follows; what it is told of has to be computed otherwise."""
    found: Any = _active[-1]
    return found if hasattr(found, "follow") else None


def report_step(loss: Any, tokens: int = 0) -> None:
    """Say that a training step is over: its loss (a number or a tensor), and how many tokens it learned from.

    For loops of your own around `torch.compile`; `compile_step` does it by itself. Without it the summary of
    `trnlab run` takes a step to end where the optimizer steps, and knows no loss, throughput or cost.
    """
    current().step_done(float(getattr(loss, "detach", lambda: loss)()), tokens)


def optimizer_stepped() -> None:
    """An optimizer made a step outside of compiled programs; a run that nobody reports steps to counts them so."""
    from trnlab.runtime import session

    told: Any = getattr(current(), "optimizer_stepped", None)
    if told is not None:  # an engine that follows
        told()
    now = session.active()
    if now is not None and now.run is not None:
        now.run.updated()


def shapes_seen(name: str, shapes: Sequence[Sequence[int]]) -> None:
    """The program of that name was called on these shapes; a run proposes buckets from them at its end."""
    from trnlab.runtime import session

    now = session.active()
    if now is not None:
        now.counters.shapes.note(name, tuple(map(tuple, shapes)))
