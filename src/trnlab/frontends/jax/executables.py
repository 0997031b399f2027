# SPDX-License-Identifier: Apache-2.0
"""What stands in for an executable of XLA: a program of the simulated chip, on each device that JAX wants it on.

JAX keeps everything that is its own: it traces, places arguments, makes arrays of results, and knows what is donated.
Between, it asks an executable to compute lists of device arrays from such lists, and that is what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from trnlab import host_ops
from trnlab.errors import NumericsError, TrnlabError, UnsupportedOpError
from trnlab.fabric.cluster import Cluster
from trnlab.fabric.threads import Hub
from trnlab.fabric.world import Threads, world_of
from trnlab.frontends.common import engine
from trnlab.frontends.jax.arrays import to_array
from trnlab.frontends.jax.function_metadata import FunctionMetadata
from trnlab.frontends.jax.partitioned import partitioned
from trnlab.frontends.stablehlo import SegmentedProgram, import_module
from trnlab.frontends.stablehlo.formats import in_precision
from trnlab.graph.ir import TensorType
from trnlab.runtime import session
from trnlab.units import SECONDS_PER_HOUR

Array = np.ndarray[Any, Any]
_PATIENCE_S = SECONDS_PER_HOUR  # that a core of a simulated chip may take to come to the next collective
Run = Callable[[Sequence[Array]], list[Array]]


class ChipExecutable:
    """The program of one compiled function; what it cannot run goes to XLA on the host, which is said once.

    compile_on_host makes XLA's executable, of the module or with options; it is asked for when somebody needs it.
    """

    def __init__(
        self, asked: FunctionMetadata, module: Any, devices: Sequence[Any], compile_on_host: Callable[..., Any]
    ) -> None:
        self.asked, self.devices = asked, list(devices)
        self._module, self._compile_on_host = module, compile_on_host
        self._host: Any = None
        self._runs: dict[Any, list[Run]] = {}  # for each way of computing, one per device
        (main,) = (op for op in module.body.operations if str(op.attributes["sym_name"]) == '"main"')
        self._donated = _donated(main)
        asked.passes(_through(main))
        if asked.is_update and _only_forward(module):
            asked.only_forward()
        self.program: SegmentedProgram | None = None
        self.refused: TrnlabError | None = None

    # -- what JAX asks of an executable --------------------------------------------------------------------------
    def local_devices(self) -> list[Any]:
        """Those that it runs on."""
        return list(self.devices)

    def __getattr__(self, name: str) -> Any:
        """Everything else is XLA's: layouts, shardings, costs, text."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.on_host(), name)

    def on_host(self) -> Any:
        """XLA's executable."""
        if self._host is None:
            self._host = self._compile_on_host()
        return self._host

    def execute_sharded(self, arguments: Sequence[Any], with_tokens: bool = False) -> Any:
        """Compute; each argument and each result has one array per device."""
        follower = engine.follower()
        if follower is not None:
            return self._followed(follower, arguments, with_tokens)
        runs = self._loaded()
        if runs is None:
            return self._execute_on_host(arguments, with_tokens)
        assert self.program is not None
        try:
            given = self._per_device(arguments, self.program.argument_types)
        except NumericsError as error:  # a number that the chip has no format for: this call is the host's
            self.asked.tell(error)
            return self._execute_on_host(arguments, with_tokens)
        found = _at_once(runs, given)
        for number in self._donated:
            arguments[number].delete()
        self.asked.done(found[0], given[0], engine.current())
        kinds = self.program.result_types
        return _Results(
            [
                [jax.device_put(_shown(found[d][i], kind), device) for d, device in enumerate(self.devices)]
                for i, kind in enumerate(kinds)
            ]
        )

    def _followed(self, follower: engine.TracingEngine, arguments: Sequence[Any], with_tokens: bool) -> Any:
        """Compute on the host, and say what the chip would run."""
        if self.program is None and self.refused is None:
            try:
                self.program = self._read()
            except UnsupportedOpError as error:
                self.refused = error
                follower.left(self.asked.name, error)
        results = self.on_host().execute_sharded(arguments, **({"with_tokens": True} if with_tokens else {}))
        if self.program is not None:
            asked = self.asked
            kinds, has = asked.step() if asked.is_update else asked.forward_pass(arguments)
            follower.follow("jax.jit", list(self.program.graphs()), kinds, asked.is_update, has)
            self.asked.followed([np.shape(a) for a in arguments], engine.current())
        return results

    def _execute_on_host(self, arguments: Sequence[Any], with_tokens: bool) -> Any:
        host_ops.current().add(f"jax.jit({self.asked.name})")
        if with_tokens:
            return self.on_host().execute_sharded(arguments, with_tokens=True)
        return self.on_host().execute_sharded(arguments)

    # -- what runs ---------------------------------------------------------------------------------------------------
    def _loaded(self) -> list[Run] | None:
        """What runs on each of the devices; None where the chip cannot."""
        if self.refused is not None:
            return None
        now = session.current()
        key = id(engine.current()), id(now), session.precision_now()
        if key not in self._runs:
            try:
                self._runs[key] = self._compiled(now)
            except UnsupportedOpError as error:
                self.refused = error
                self.asked.tell(error)
                return None
        return self._runs[key]

    def _read(self) -> SegmentedProgram:
        """The program of one device."""
        many, now = len(self.devices), session.current()
        self.asked.require()
        cores = Cluster(now.target, now.instances).ranks
        if many > cores:
            raise UnsupportedOpError(
                f"it runs on {many} devices, and the target has fewer cores",
                code="TRN294",
                limit=cores,
                got=many,
                remedy="choose a larger target, or a mesh of as many devices as it has cores",
            )
        module = self._module if many == 1 else partitioned(self._compile_on_host)
        program = import_module(module, self.asked.name, names=self.asked.names, ranks=many, tells_rank=many > 1)
        return in_precision(program, session.asked())

    def _compiled(self, now: session.Session) -> list[Run]:
        many = len(self.devices)
        self.program = self._read()
        if many == 1:
            return [self.program.load(engine.current().compile)]
        loaded = []
        for each in _ranks(now, many):
            with session.activate(each) if each is not now else nullcontext():
                loaded.append(self.program.load(engine.current().compile))
        return loaded

    def _per_device(self, arguments: Sequence[Any], kinds: Sequence[TensorType]) -> list[list[Array]]:
        """The arguments of each device."""
        if len(self.devices) == 1:
            return [[to_array(a, kind) for a, kind in zip(arguments, kinds)]]
        parts = [{shard.device: shard.data for shard in a.addressable_shards} for a in arguments]
        return [
            [*(to_array(p[device], kind) for p, kind in zip(parts, kinds)), np.array(rank, np.uint32)]
            for rank, device in enumerate(self.devices)
        ]


def _at_once(runs: Sequence[Run], given: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """The results of each device; several compute at the same time, because they wait for each other."""
    if len(runs) == 1:
        return [_own(runs[0](given[0]), given[0])]
    with ThreadPoolExecutor(len(runs)) as pool:
        futures = [pool.submit(run, each) for run, each in zip(runs, given)]
        return [_own(future.result(), each) for future, each in zip(futures, given)]


def _own(results: Sequence[Array], given: Sequence[Array]) -> list[Array]:
    """Results in memory of their own: an argument that is returned may lie in an array that the script writes to."""
    arguments = set(map(id, given))
    return [r.copy() if id(r) in arguments else r for r in results]


def _ranks(now: session.Session, many: int) -> list[session.Session]:
    """A session for each of so many cores; the first is `now`'s own, and tells its run."""
    known = _worlds.get((id(now), many))
    if known is not None:
        return known[1]
    world, hub = world_of(Cluster(now.target, now.instances).name, many, now.faults), Hub(many, _PATIENCE_S)
    made = [Threads(world, rank, hub.of(rank)) for rank in range(many)]
    others = [replace(now, communicator=each, core=None, run=None, counters=session.Counters()) for each in made]
    others[0] = replace(now, communicator=made[0], core=None)
    _worlds[id(now), many] = now, others
    return others


_worlds: dict[tuple[int, int], tuple[session.Session, list[session.Session]]] = {}  # by whose, which is kept


class _Results:
    """What an execution left, as JAX takes it."""

    def __init__(self, arrays: list[list[Any]]) -> None:
        self.arrays = arrays

    def consume_with_handlers(self, handlers: Sequence[Any], strict: bool = True) -> list[Any]:
        """Each result as its handler makes it of the arrays of all devices."""
        return [handler(arrays) for handler, arrays in zip(handlers, self.arrays, strict=strict)]

    def disassemble_into_single_device_arrays(self) -> list[list[Any]]:
        """As they are."""
        return self.arrays


def _shown(array: Array, kind: TensorType) -> Array:
    """A result in the format that the module has it in."""
    wanted = np.dtype(np.bool_) if kind.dtype.kind == "b" else kind.dtype.numpy
    return array.astype(wanted, copy=False)


def _donated(main: Any) -> list[int]:
    """The arguments whose memory the module may take."""
    found = [ir.DictAttr(attrs) for attrs in main.attributes.get("arg_attrs", ())]
    return [i for i, attrs in enumerate(found) if "tf.aliasing_output" in attrs or "jax.buffer_donor" in attrs]


def _only_forward(module: Any) -> bool:
    """Whether a module has products, and nothing that JAX differentiated: it names what is transposed or pushed
    forward so, jit(step)/transpose(jvp(Model))/dot_general."""
    text = module.operation.get_asm(enable_debug_info=True, large_elements_limit=16)
    products = "stablehlo.dot_general" in text or "stablehlo.convolution" in text
    return products and "jvp(" not in text and "transpose(" not in text


def _through(main: Any) -> list[int]:
    """The results that are arguments as they came."""
    *_, end = main.regions[0].blocks[0].operations
    return [i for i, value in enumerate(end.operands) if isinstance(value.owner, ir.Block)]
