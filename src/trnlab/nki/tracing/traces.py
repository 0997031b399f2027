# SPDX-License-Identifier: Apache-2.0
"""Recorded kernels: what a trace holds, what it depends on, and the arrays that go in and come out."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trnlab.guards.functions import Guards
from trnlab.guards.snapshot import SnapshotReader, StandIn
from trnlab.nki.tracing.arguments import map_objects
from trnlab.nki.tracing.arrays import Array, HostArray, like
from trnlab.program.access import Buffer
from trnlab.program.gang import GangMember
from trnlab.program.routine import Program, ProgramTensor, Routine

if TYPE_CHECKING:
    from trnlab.sim.checks import CheckFinding

UNWRITTEN = 0xFF  # what bytes of HBM hold that nobody has written
_MOST = 256  # traces of a kernel that are kept; the oldest go


@dataclass(frozen=True)
class KernelResult:
    """A tensor that a kernel returns: number `param` of the trace's tensors, as a view."""

    param: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    format: Any


@dataclass(frozen=True)
class CallSignature:
    """What a call would give."""

    results: Any  # the returned structure with zeros of the right shapes and formats
    written: tuple[str, ...]  # the names of the arguments that the kernel writes to


@dataclass(frozen=True)
class Trace:
    """A recorded kernel: the stream of each core, and what to bind to the tensors that they use."""

    program: Program  # a call for each core, beside each other; its first `arguments` tensors are the caller's arrays
    arguments: int
    arrays: dict[int, Array]  # contents of constants
    results: Any  # the returned structure with `KernelResult` where tensors were
    # of the caller's arrays, where the instructions depend on it; empty where every call must record anew
    content: bytes | None = None
    findings: tuple[CheckFinding, ...] = ()  # what the checks found wrong; every call hears of it

    @property
    def routine(self) -> Routine:
        """The stream of the first core."""
        return self.program.routines[0]

    @property
    def tensors(self) -> tuple[ProgramTensor, ...]:
        """What the streams use, by number."""
        return self.program.tensors

    @property
    def written(self) -> list[int]:
        """The arguments that the kernel writes to."""
        return [t for t in self.program.outputs if t < self.arguments]


@dataclass(frozen=True)
class MultiRankTrace:
    """A kernel recorded on several ranks: a trace of each. program: of all of them, who may meet; of one, its own."""

    traces: tuple[Trace, ...]
    program: Program


class TraceCache:
    """The traces of a function, by everything that recording them depended on: arguments, and what the code read.

    stand_in: what counts of objects that only kernels know, see `trnlab.guards.snapshot`.
    """

    def __init__(self, function: Any, stand_in: StandIn) -> None:
        self.function, self._stand_in = function, stand_in
        self._guards: OrderedDict[Hashable, Guards] = OrderedDict()
        self._traces: OrderedDict[Hashable, Trace] = OrderedDict()

    def __len__(self) -> int:
        return len(self._traces)

    def values(self) -> Iterable[Trace]:
        """The traces, the oldest first."""
        return self._traces.values()

    def key(self, *arguments: Any) -> tuple[Hashable, Guards]:
        """What a trace for these arguments depends on, and the guards among it, as things stand now."""
        reader = SnapshotReader(self._stand_in)
        read = reader.read(arguments)
        guards = self._guards.get(read)
        if guards is None or not guards.unchanged():
            guards = Guards({"the kernel": self.function}, reader.identities, self._stand_in)
            _keep(self._guards, read, guards)
        return (read, guards.key), guards

    def get(self, key: Hashable) -> Trace | None:
        """The trace with this key, if there is one."""
        return self._traces.get(key)

    def keep(self, key: Hashable, trace: Trace) -> None:
        """Remember a trace, and forget the oldest."""
        _keep(self._traces, key, trace)


def _keep(kept: OrderedDict[Hashable, Any], key: Hashable, value: Any) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _MOST:
        kept.popitem(last=False)


def tensors_of(members: Sequence[GangMember]) -> tuple[Buffer, ...]:
    """A buffer of each HBM tensor, by number."""
    found = {t: m.routine.buffers[p] for m in reversed(members) for t, p in zip(m.tensors, m.routine.params)}
    return tuple(found[number] for number in range(len(found)))


def memory_of(trace: Trace, arrays: list[HostArray]) -> list[Array]:
    """One array per tensor: the caller's, constants, and fresh memory that is filled with poison."""
    memory, written = [], trace.written
    for number, buffer in enumerate(trace.tensors):
        if number < trace.arguments:
            memory.append(arrays[number].writable() if number in written else arrays[number].data)
        elif number in trace.arrays:
            memory.append(trace.arrays[number].copy())
        else:
            raw = np.full(buffer.nbytes, UNWRITTEN, np.uint8)
            memory.append(raw.view(buffer.dtype.numpy).reshape(buffer.shape))
    return memory


def content_of(arrays: Iterable[HostArray]) -> bytes:
    """What tells the contents of arrays from others."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array.data).reshape(-1).view(np.uint8).data)
    return digest.digest()


def result_of(trace: Trace, memory: Sequence[Array], origin: Any) -> Any:
    """What the kernel returns, as arrays of the kind of `origin`."""
    return map_objects(lambda r: like(_view(r, memory[r.param]), r.format, origin), trace.results, KernelResult)


def _view(result: KernelResult, memory: Array) -> Array:
    kind = result.format.dtype
    bits = memory.reshape(-1).view(f"V{kind.itemsize}")[result.offset :]  # NumPy cannot stride over every format
    seen = np.lib.stride_tricks.as_strided(bits, result.shape, tuple(s * kind.itemsize for s in result.strides))
    found: Array = np.ascontiguousarray(seen).view(kind).reshape(result.shape)
    return found
