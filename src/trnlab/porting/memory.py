# SPDX-License-Identifier: Apache-2.0
"""What fills a core's HBM when a step needs most of it: by kind, with the largest tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trnlab.porting.result import Memory, Tensor
from trnlab.program.digest import written_params
from trnlab.program.routine import Call, Program
from trnlab.program.routine import Tensor as HbmTensor

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
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


def phases(program: Program, loss: int | None, updated: Sequence[int]) -> list[str]:
    """For each call, whether it is of the forward pass, the backward pass or the update.

    loss: the tensor of the loss; None where the program is of one phase, which its name begins with. updated: tensors
    of inputs that the program overwrites. A matmul that uses its gradient for an update at once is of the way back.
    """
    if loss is None:
        start = next((p for p in (FORWARD, BACKWARD) if program.name.startswith(p)), UPDATE)
        return [start] * len(program.calls)
    written = [_written(call, program) for call in program.calls]
    end = max((i for i, w in enumerate(written) if loss in w), default=-1)
    changed = frozenset(updated)
    late = [bool(w & changed) and call.label.startswith("rows") for w, call in zip(written, program.calls)]
    return [FORWARD if i <= end else UPDATE if late[i] else BACKWARD for i in range(len(written))]


def phases_by_lines(program: Program, updated: Sequence[int]) -> list[str] | None:
    """`phases`, where the calls' lines say what is of the backward pass; None where none does."""
    back = [call.loc is not None and call.loc.phase == BACKWARD for call in program.calls]
    if not any(back):
        return None
    end = max(i for i, is_back in enumerate(back) if is_back)
    changed = frozenset(updated)
    late = [bool(_written(c, program) & changed) and c.label.startswith("rows") for c in program.calls]
    return [UPDATE if late[i] or i > end else BACKWARD if back[i] else FORWARD for i in range(len(back))]


def _written(call: Call, program: Program) -> frozenset[int]:
    return frozenset(call.args[i] for i in written_params(program.routines[call.routine]))


@dataclass(frozen=True)
class Temporaries:
    """Temporaries of a program that are alive when most are, with their kinds; `peak` is the size of their arena."""

    tensors: tuple[Tensor, ...]
    peak: int


def lives(program: Program) -> tuple[dict[int, int], dict[int, int]]:
    """The first and the last call of each tensor, by its number."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, call in enumerate(program.calls):
        for id in call.args:
            first.setdefault(id, i)
            last[id] = i
    return first, last


def temporaries(program: Program, phase: Sequence[str], kinds: Mapping[int, str]) -> Temporaries:
    """A copy is of a parameter, in another format; an activation lives from the forward to the backward pass, a
    gradient from there to the update."""
    first, last = lives(program)
    temps = [t for t in program.tensors if t.kind == "temp" and t.id in first]
    change = [0] * (len(program.calls) + 1)
    for t in temps:
        change[first[t.id]] += t.nbytes
        change[last[t.id] + 1] -= t.nbytes
    alive, most, at = 0, -1, 0
    for i, by in enumerate(change):
        alive += by
        if alive > most:
            most, at = alive, i
    found = []
    for t in temps:
        if first[t.id] <= at <= last[t.id]:
            call = program.calls[first[t.id]]
            original = _original(t, call, program, kinds)
            kind = "copy" if original is not None else _kind(phase[first[t.id]], phase[last[t.id]])
            name = original.name if original is not None else _named(t, call)
            found.append(Tensor(name, kind, t.shape, t.dtype.name, t.nbytes))
    return Temporaries(tuple(found), program.hbm_bytes)


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
    program: Program, kinds: Mapping[int, str], phase: Sequence[str], scratch: int, names: Mapping[int, str]
) -> Memory:
    """Memory of a program. kinds: of its inputs, by tensor; other inputs and constants are temporaries. names: of
    inputs, for people."""
    live = temporaries(program, phase, kinds)
    kept = [
        Tensor(names.get(t.id, t.name), kinds.get(t.id, "temporary"), t.shape, t.dtype.name, t.nbytes)
        for t in program.tensors
        if t.kind != "temp"
    ]
    memory = total((*kept, *live.tensors))
    gaps = live.peak - sum(t.bytes for t in live.tensors)
    memory.temporaries += max(gaps, 0) + scratch
    return memory


def total(tensors: Sequence[Tensor]) -> Memory:
    """The sum by kind, and the largest."""
    memory = Memory()
    for t in tensors:
        field = _FIELDS.get(t.kind, "temporaries")
        setattr(memory, field, getattr(memory, field) + t.bytes)
    memory.largest = sorted(tensors, key=lambda t: -t.bytes)[:LARGEST]
    return memory
