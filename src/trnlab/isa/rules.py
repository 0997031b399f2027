# SPDX-License-Identifier: Apache-2.0
"""The rules that every instruction shares, read off its class attributes.

Sources: Trainium/Inferentia2 architecture guide (nki/guides/architecture/trainium_inferentia2_arch.rst, lines 336 for
sizes, 705-723 for partitions and access patterns) and the nki.isa reference, in aws-neuron/aws-neuron-sdk.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from trnlab.chips.spec import FEATURES, Chip
from trnlab.isa.base import Engine, Instruction, Memory, Operand, OperandSpec
from trnlab.isa.indirection import check_indirection

MAX_FREE_DIMS = 4
MAX_STEP = 1 << 15  # steps are signed 16-bit numbers of elements
MAX_FREE = {Memory.SBUF: 64 * 1024, Memory.PSUM: 4 * 1024}  # elements per partition that one operand may span


def check_shared(
    instr: Instruction, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip
) -> None:
    """Raise ConstraintError for the first rule broken."""
    _generation_rule(instr, chip)
    _engine_rule(instr, engine, chip)
    _attribute_rule(instr, attrs, chip)
    for spec in instr.operands:
        op = ops.get(spec.name)
        if op is None:
            _presence_rule(instr, spec, attrs, chip)
            continue
        _memory_rule(instr, spec, op, engine, chip)
        _dtype_rule(instr, spec, op, chip)
        if op.memory is not Memory.HBM:
            _partition_rule(instr, spec, op, chip)
            _pattern_rule(instr, spec.name, op, chip)
    _shape_rule(instr, ops, attrs, chip)
    _pair_rules(instr, ops, chip)
    check_indirection(instr, ops, attrs, engine, chip)
    if engine is Engine.TENSOR and not instr.is_dma and not chip.has("long_matmul"):
        _bank_rule(instr, ops, chip)


def _generation_rule(instr: Instruction, chip: Chip) -> None:
    if not instr.exists_on(chip):
        instr.refuse(
            f"{chip.name} does not have the instruction",
            chip=chip,
            got=f"NeuronCore-v{chip.generation}",
            limit=f"chips with {instr.feature}: {FEATURES[instr.feature]}",
            remedy="choose a later chip, or compose it from other instructions",
            code="TRN414",
        )


def _engine_rule(instr: Instruction, engine: Engine, chip: Chip) -> None:
    allowed = instr.engines_on(chip)
    if engine not in allowed:
        names = ", ".join(e.name.lower() for e in allowed)
        instr.refuse(
            "wrong engine",
            limit=names,
            got=engine.name.lower(),
            chip=chip,
            remedy=f"issue it on {names}",
            code="TRN401",
        )


def _attribute_rule(instr: Instruction, attrs: Mapping[str, Any], chip: Chip) -> None:
    slots = {spec.name: spec for spec in instr.operands}
    for name, value in attrs.items():
        spec = slots.get(name)
        if spec is not None:
            _immediate_rule(instr, spec, value, chip)
        elif name not in instr.attrs:
            known = ", ".join([*slots, *instr.attrs])
            instr.refuse(
                f"no argument {name!r}",
                limit=known,
                got=name,
                chip=chip,
                remedy="use one of these names",
                code="TRN411",
            )


def _immediate_rule(instr: Instruction, spec: OperandSpec, value: Any, chip: Chip) -> None:
    """What stands in an operand's place is a number, if the operand may be one; None stands for "left out"."""
    if value is None or (spec.immediate and isinstance(value, Real)):
        return
    wanted = "an access pattern or a number" if spec.immediate else "an access pattern"
    instr.refuse(
        f"operand {spec.name!r} must be {wanted}",
        limit=wanted,
        got=value,
        chip=chip,
        remedy="put the value in a tile",
        code="TRN402",
    )


def _presence_rule(instr: Instruction, spec: OperandSpec, attrs: Mapping[str, Any], chip: Chip) -> None:
    if spec.optional or (spec.immediate and attrs.get(spec.name) is not None):
        return
    instr.refuse(
        f"operand {spec.name!r} is missing",
        limit="an access pattern" + (" or a number" if spec.immediate else ""),
        got=attrs.get(spec.name),
        chip=chip,
        remedy=f"pass {spec.name}=",
        code="TRN402",
    )


def _memory_rule(instr: Instruction, spec: OperandSpec, op: Operand, engine: Engine, chip: Chip) -> None:
    allowed = spec.memories
    if engine is Engine.GPSIMD and not instr.is_dma:
        allowed = allowed - {Memory.PSUM}  # GpSimd has no port to PSUM
    if op.memory not in allowed:
        names = " or ".join(sorted(m.name for m in allowed))
        who = "DMA" if instr.is_dma else f"the {engine.name.lower()} engine"
        verb = "write to" if spec.role == "dst" else "read from"
        instr.refuse(
            f"operand {spec.name!r} lies in {op.memory.name}, which {who} cannot {verb} here",
            limit=names,
            got=op.memory.name,
            chip=chip,
            remedy=_way_to(spec, op.memory, allowed),
            code="TRN403",
        )


def _way_to(spec: OperandSpec, memory: Memory, allowed: frozenset[Memory]) -> str:
    """How an operand gets into a memory that is allowed."""
    best = Memory.SBUF if Memory.SBUF in allowed else min(allowed)
    if spec.role == "dst":
        then = " and copy it on from there" if memory is not best else ""
        return f"write to a tile made with buffer=nl.{best.name.lower()}{then}"
    if memory is Memory.HBM:
        return "load it into an SBUF tile with dma_copy first"
    return f"copy it to {best.name} with tensor_copy first"


def _bank_rule(instr: Instruction, ops: Mapping[str, Operand], chip: Chip) -> None:
    """What the PE array writes lies in one bank (PSUM tiles start at the beginning of a bank)."""
    for spec in instr.operands:
        if spec.role != "dst" or spec.name not in ops or ops[spec.name].memory is not Memory.PSUM:
            continue
        first, last = ops[spec.name].extent()
        size = chip.psum.bank_bytes_per_partition
        if first // size != last // size:
            instr.refuse(
                f"operand {spec.name!r} crosses from one PSUM bank into the next",
                limit=f"banks of {size} bytes",
                got=f"bytes {first}..{last} of its tile",
                chip=chip,
                remedy="slice the tile at multiples of the bank, or split the instruction",
                code="TRN415",
            )


def _dtype_rule(instr: Instruction, spec: OperandSpec, op: Operand, chip: Chip) -> None:
    if op.dtype.name not in spec.dtypes:
        instr.refuse(
            f"operand {spec.name!r} has a format it cannot have",
            limit=", ".join(sorted(spec.dtypes)),
            got=op.dtype.name,
            chip=chip,
            remedy="cast it with tensor_copy first",
            code="TRN408",
        )


def _partition_rule(instr: Instruction, spec: OperandSpec, op: Operand, chip: Chip) -> None:
    name = spec.name
    if op.partitions > chip.num_partitions:
        instr.refuse(
            f"operand {name!r} has too many partitions",
            limit=chip.num_partitions,
            got=op.partitions,
            chip=chip,
            remedy="tile the partition dimension",
            code="TRN404",
        )
    if instr.is_dma:
        return  # DMA reaches every partition
    starts = tuple(q + s for q in (0, 32, 64, 96) for s in spec.starts) or allowed_starts(op.partitions)
    if op.first_partition not in starts:
        instr.refuse(
            f"operand {name!r} starts on partition {op.first_partition}",
            limit=f"partition {' or '.join(map(str, starts))} for {op.partitions} partitions",
            got=op.first_partition,
            chip=chip,
            remedy="slice or place the tile so that it starts there, or use fewer partitions",
            code="TRN405",
        )


def allowed_starts(partitions: int) -> tuple[int, ...]:
    """The partitions on which a tile of this height may start: quadrants, halves or zero."""
    return (0,) if partitions > 64 else (0, 64) if partitions > 32 else (0, 32, 64, 96)


def _pattern_rule(instr: Instruction, name: str, op: Operand, chip: Chip) -> None:
    if len(op.dims) > MAX_FREE_DIMS:
        instr.refuse(
            f"operand {name!r} has too many free dimensions",
            limit=MAX_FREE_DIMS,
            got=len(op.dims),
            chip=chip,
            remedy="merge dimensions, or issue one instruction per outer index",
            code="TRN407",
        )
    if instr.is_dma:
        return  # descriptors hold addresses, not steps
    limit = MAX_FREE[op.memory]
    if op.memory is Memory.PSUM and op.dtype.itemsize == 2 and chip.has("bf16_psum"):
        limit *= 2  # all of PSUM, see nki.isa.nc_matmul
    if op.free > limit:
        instr.refuse(
            f"operand {name!r} is too long",
            limit=f"{limit} elements per partition in {op.memory.name}",
            got=op.free,
            chip=chip,
            remedy="split the free dimension",
            code="TRN406",
        )
    for step, count in op.dims:
        if count > 1 and not -MAX_STEP <= step < MAX_STEP:
            instr.refuse(
                f"operand {name!r} has too long a step",
                limit=f"{-MAX_STEP}..{MAX_STEP - 1} elements",
                got=step,
                chip=chip,
                remedy="issue one instruction per outer index",
                code="TRN407",
            )


def _shape_rule(instr: Instruction, ops: Mapping[str, Operand], attrs: Mapping[str, Any], chip: Chip) -> None:
    """Operands that use one letter agree on it, and every letter keeps its limits."""
    sized = [
        (spec, op, letter, size)
        for spec, op in ((spec, ops[spec.name]) for spec in instr.operands if spec.name in ops)
        for letter, size in zip(spec.shape, instr.size_of(spec, op, attrs))
        if letter
    ]
    for spec, _, letter, size in sized:
        _size_rule(instr, spec.name, letter, size, ops, chip)
    seen: dict[str, tuple[int, str]] = {}
    for spec, op, letter, size in sized:
        known = (int(letter), "the instruction") if letter.isdigit() else (size, f"{spec.name!r}")
        expected, owner = seen.setdefault(letter, known)
        if size != expected:
            repeat = size == 1 and letter == "P"
            instr.refuse(
                f"operand {spec.name!r} does not match {owner} in {_spelt(letter)}",
                limit=f"{letter} = {expected}",
                got=f"{letter} = {size}: {spec.name} [{op.partitions}, {op.free}] is [{', '.join(spec.shape)}]",
                chip=chip,
                code="TRN409",
                remedy="repeat the row first, with nl.broadcast_to or a dma_copy that reads it again"
                if repeat
                else "slice or reshape the operands to agree",
            )


_LETTERS = {
    "P": "partitions",
    "F": "elements per partition",
    "K": "rows of the contraction",
    "M": "columns of the stationary operand",
    "N": "columns of the moving operand",
}


def _spelt(letter: str) -> str:
    return f"{letter} ({_LETTERS[letter]})" if letter in _LETTERS else letter


def _size_rule(instr: Instruction, name: str, letter: str, size: int, ops: Mapping[str, Operand], chip: Chip) -> None:
    limit = instr.largest(letter, ops, chip)
    if limit is not None and size > limit:
        instr.refuse(
            f"{_spelt(letter)} of operand {name!r} is too large",
            limit=limit,
            got=size,
            chip=chip,
            remedy=f"loop over {letter} in pieces of at most {limit}",
            code="TRN406",
        )
    least, step = instr.least.get(letter, 0), instr.multiples.get(letter, 1)
    if size < least or size % step:
        wanted = f"at least {least}" if size < least else f"a multiple of {step}"
        instr.refuse(
            f"{letter} of operand {name!r} is not {wanted}",
            limit=wanted,
            got=size,
            chip=chip,
            remedy=f"pad {letter}",
            code="TRN416",
        )


def _pair_rules(instr: Instruction, ops: Mapping[str, Operand], chip: Chip) -> None:
    in_psum = [name for name in instr.not_both_psum if name in ops and ops[name].memory is Memory.PSUM]
    if len(in_psum) > 1:
        instr.refuse(
            f"{' and '.join(in_psum)} both lie in PSUM",
            limit="at most one of them",
            got=", ".join(in_psum),
            chip=chip,
            remedy="copy one of them to SBUF first",
            code="TRN413",
        )
    formats = {name: ops[name].dtype.name for name in instr.same_dtype if name in ops}
    if len(set(formats.values())) > 1:
        instr.refuse(
            "operands must share one format",
            limit=" = ".join(formats),
            got=formats,
            chip=chip,
            remedy="cast with tensor_copy first",
            code="TRN408",
        )
