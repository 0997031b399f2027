# SPDX-License-Identifier: Apache-2.0
"""What fills a core's HBM when a step needs most of it: by kind, with the largest tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from trnlab.estimate.result import LargeTensor, MemoryReport
from trnlab.program.routine import Call, Program
from trnlab.program.routine import ProgramTensor as HbmTensor
from trnlab.runtime.step_cost import BACKWARD, FORWARD, UPDATE, StepCost

LARGEST = 12
_FIELDS = {
    "parameter": "parameters",
    "buffer": "parameters",
    "gradient": "gradients",
    "state": "state",
    "batch": "batch",
    "copy": "copies",
    "activation": "activations",
    "temporary": "temporaries",
}


def _temporaries(cost: StepCost, kinds: Mapping[int, str]) -> list[LargeTensor]:
    """Temporaries of a program that are alive when most are, with their kinds. A copy is of a parameter, in another
    format; an activation lives from the forward to the backward pass, a gradient from there to the update."""
    program, (first, last) = cost.program, cost.lives
    at = max(range(len(program.calls)), key=cost.temporary_bytes.__getitem__, default=0)
    found = []
    for t in cost.temporaries:
        if first[t.id] <= at <= last[t.id]:
            call = program.calls[first[t.id]]
            original = _original(t, call, program, kinds)
            kind = "copy" if original is not None else _kind(cost.phase[first[t.id]], cost.phase[last[t.id]])
            name = original.name if original is not None else _named(t, call)
            found.append(LargeTensor(name, kind, t.shape, t.dtype.name, t.nbytes))
    return found


def _original(tensor: HbmTensor, call: Call, program: Program, kinds: Mapping[int, str]) -> HbmTensor | None:
    """The parameter of which a temporary is a copy: the one before it, in a call that reads nothing else."""
    read = [program.tensors[i] for i in call.args if program.tensors[i].kind == "input"]
    if not read or any(kinds.get(t.id) != "parameter" for t in read):
        return None
    same = [t for t in read if t.nbytes // t.dtype.itemsize == tensor.nbytes // tensor.dtype.itemsize]
    before = [t for t in same if t.dtype is not tensor.dtype]
    place = call.args.index(tensor.id)
    return min(before, key=lambda t: abs(call.args.index(t.id) - place), default=None)


def _kind(first: str, last: str) -> str:
    if first == FORWARD and last != FORWARD:
        return "activation"
    return "gradient" if first == BACKWARD and last == UPDATE else "temporary"


def _named(tensor: HbmTensor, call: Call) -> str:
    """Temporaries have no name that a user knows; the line that makes them, and its layer, have one."""
    place = f"{call.loc.file.rpartition('/')[2]}:{call.loc.line}" if call.loc is not None else ""
    layer = call.loc.layer if call.loc is not None else ""
    return " ".join(part for part in (layer, place) if part) or tensor.name


def of_program(
    cost: StepCost, kinds: Mapping[int, str], names: Mapping[int, str], lying: Sequence[LargeTensor] = ()
) -> MemoryReport:
    """Memory of one execution of a program. kinds: of its inputs, by tensor; other inputs and constants are
    temporaries. names: of inputs, for people. lying: tensors counted elsewhere, some of which it makes: outputs of
    their shapes are not counted again."""
    live, known = _temporaries(cost, kinds), Counter(t.shape for t in lying)
    kept = []
    for t in cost.program.tensors:
        if t.kind == "output" and known[t.shape]:
            known[t.shape] -= 1
        elif t.kind != "temp":
            kind = kinds.get(t.id, "temporary")
            kept.append(LargeTensor(names.get(t.id, t.name), kind, t.shape, t.dtype.name, t.nbytes))
    memory = total((*kept, *live))
    gaps = cost.program.hbm_bytes - sum(t.bytes for t in live)
    memory.temporaries += max(gaps, 0) + cost.program.scratch_bytes
    return memory


def with_kept(
    kept: Sequence[LargeTensor], programs: Sequence[MemoryReport], activations: int | None = None
) -> MemoryReport:
    """Memory of what lies on the device during the whole step, and of the program that needs most beside it.

    activations: bytes of those, where programs alone do not say how many are kept at a time.
    """
    found = total(kept)
    rest = max(programs, key=lambda m: m.rest, default=MemoryReport())
    found.activations = rest.activations if activations is None else activations
    found.batch, found.temporaries = rest.batch, rest.temporaries
    inner = [t for t in rest.largest if t.kind in ("activation", "temporary", "batch")]
    found.largest = sorted((*found.largest, *inner), key=lambda t: -t.bytes)[:LARGEST]
    return found


def total(tensors: Sequence[LargeTensor]) -> MemoryReport:
    """The sum by kind, and the largest."""
    memory = MemoryReport()
    for t in tensors:
        field = _FIELDS.get(t.kind, "temporaries")
        setattr(memory, field, getattr(memory, field) + t.bytes)
    memory.largest = sorted(tensors, key=lambda t: -t.bytes)[:LARGEST]
    return memory
