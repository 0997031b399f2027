# SPDX-License-Identifier: Apache-2.0
"""Start addresses that are known only when the kernel runs: from a register or from a [1, 1] tensor.

The sequencer that issues an instruction loads the number into its own register and adds it to the address. So it is
recorded: a register instruction on the same engine, which waits for the number, and then the instruction itself with
the address that it gets. Sources: NkiTensor.ap and select in nki.language; deep-dives/nki-aps.rst (scalar_offset).
"""

from __future__ import annotations

from typing import Any, TypeVar

from trnlab.isa.base import Engine, Instruction
from trnlab.isa.indirection import index_name
from trnlab.lang.dynamic_index import Dynamic, Lookup
from trnlab.lang.formats import Format
from trnlab.lang.recording import Recording
from trnlab.lang.storage import MemorySpace, refuse
from trnlab.lang.tensor import Tensor

AnyTensor = TypeVar("AnyTensor", bound=Tensor)


def settled(
    recorder: Recording, instr: Instruction, engine: Engine | None, arguments: dict[str, Any]
) -> dict[str, Any] | None:
    """The arguments of an instruction with every run-time start address found out.

    None where one lies outside of its tensor and the instruction skips that (oob_mode skip). Raises ConstraintError
    where it does not.
    """
    on = engine if engine is not None else instr.engines[0]
    skips = arguments.get("oob_mode") == "skip"
    found = dict(arguments)
    for name, value in arguments.items():
        chosen = value.indirection if isinstance(value, Tensor) else None
        if isinstance(chosen, Dynamic):
            at = located(recorder, value, chosen, on, skips)
            if at is None:
                return None
            found[name] = at
        elif isinstance(chosen, Lookup):
            index = _index_of(instr, name)
            if found.setdefault(index, chosen.index) is not chosen.index:
                refuse(
                    "an operand and its scales are picked by one index",
                    limit=index,
                    got="two different ones",
                    remedy="pass the same index to both",
                    code="TRN411",
                )
    if skips and found.get("index") is None:
        del found["oob_mode"]
    return found


def _index_of(instr: Instruction, name: str) -> str:
    """The operand that picks columns of another. Raises ConstraintError where none does."""
    index = index_name(name)
    if index not in {spec.name for spec in instr.operands}:
        refuse(
            f"{instr.name} does not pick columns of {name}",
            limit=", ".join(instr.indirect) or "no operand",
            got=f"{name} with .indirect()",
            remedy="gather into a tile with tensor_copy first",
            code="TRN411",
        )
    return index


def located(
    recorder: Recording, tensor: AnyTensor, dynamic: Dynamic[Tensor], engine: Engine, skips: bool = False
) -> AnyTensor | None:
    """The view with its address as a number; None where that lies outside and may be skipped."""
    number = _loaded(recorder, dynamic, engine)
    start = tensor.offset + number * dynamic.step
    if _is_inside(tensor, start) and (dynamic.count is None or 0 <= number < dynamic.count):
        return type(tensor)(tensor.storage, tensor.shape, tensor.strides, start, tensor.format, None, tensor.name)
    if skips:
        return None
    room = dynamic.count if dynamic.count is not None else _last(tensor, dynamic) + 1
    refuse(
        f"a run-time offset outside of {tensor.name or tensor.storage.buffer.name!r}",
        limit=f"0..{room - 1}",
        got=number,
        remedy="check where the offset comes from, or use oob_mode=nisa.oob_mode.skip",
        code="TRN410",
    )


def _loaded(recorder: Recording, dynamic: Dynamic[Tensor], engine: Engine) -> int:
    """The number, loaded into a register of the engine that issues the instruction."""
    if isinstance(dynamic.index, Tensor):
        recorder.emit("register_load", engine=engine, dst=_address(recorder, engine), src=dynamic.index)
        return int(recorder.read(dynamic.index).reshape(-1)[0])
    operand = dynamic.index.operand
    register = _address(recorder, engine).view(operand.format)
    recorder.emit("register_move", engine=engine, dst=register, src=operand)
    return int(dynamic.index)


def _address(recorder: Recording, engine: Engine) -> Tensor:
    """The register of an engine's sequencer that run-time addresses pass through."""
    tile = recorder.once(
        ("address", engine),
        lambda: recorder.tensor((1, 1), "int32", MemorySpace.sbuf, name=f"{engine.name.lower()} address"),
    )
    assert isinstance(tile, Tensor)
    return tile


def _room(tensor: Tensor) -> tuple[int, int, int]:
    """First start, elements that the pattern spans, and elements of a partition (in HBM, of the tensor)."""
    skip = 1 if tensor.on_chip else 0
    span = sum((n - 1) * s for n, s in zip(tensor.shape[skip:], tensor.strides[skip:]))
    whole = tensor.storage.buffer.nbytes // Format(tensor.format).itemsize
    return tensor.offset // whole * whole if tensor.on_chip else 0, span, whole


def _is_inside(tensor: Tensor, start: int) -> bool:
    first, span, whole = _room(tensor)
    return first <= start and start + span < first + whole


def _last(tensor: Tensor, dynamic: Dynamic[Tensor]) -> int:
    first, span, whole = _room(tensor)
    return (first + whole - 1 - span - tensor.offset) // max(dynamic.step, 1)
