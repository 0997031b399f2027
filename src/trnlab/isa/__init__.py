# SPDX-License-Identifier: Apache-2.0
"""The instruction set: every instruction by name and by opcode, and the rules that all of them share."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.errors import ConstraintError, Location
from trnlab.isa.base import Engine, Instruction, Memory, Operand, Work

REGISTRY: dict[str, Instruction] = {}
BY_OPCODE: dict[int, Instruction] = {}


def register(cls: type[Instruction]) -> type[Instruction]:
    """Class decorator: make the one object of an instruction and list it. A name or opcode used twice is a bug."""
    instr = cls()
    assert instr.name not in REGISTRY and instr.opcode not in BY_OPCODE, f"{instr.name}: name or opcode taken"
    REGISTRY[instr.name] = BY_OPCODE[instr.opcode] = instr
    return cls


def validate(
    instr: Instruction,
    ops: Mapping[str, Operand],
    attrs: Mapping[str, Any],
    engine: Engine,
    chip: Chip,
    where: Location | None,
) -> Work:
    """Check one instruction against the rules; returns its work. Raises ConstraintError with `where`."""
    try:
        _shared_rules(instr, ops, attrs, engine, chip)
        instr.check(ops, attrs, engine, chip)
    except ConstraintError as error:
        error.where = error.where or where
        raise
    return instr.work(ops, attrs, engine)


def _shared_rules(
    instr: Instruction, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip
) -> None:
    if engine not in instr.engines and "dma" not in instr.name:
        allowed = ", ".join(e.name.lower() for e in instr.engines)
        instr.refuse(
            "wrong engine", limit=allowed, got=engine.name.lower(), chip=chip, remedy=f"issue it on {allowed}",
            code="TRN401",
        )  # fmt: skip
    for spec in instr.operands:
        op = ops.get(spec.name)
        if op is None:
            if not spec.optional and not (spec.immediate and attrs.get(spec.name) is not None):
                instr.refuse(
                    f"operand {spec.name!r} is missing", limit="an access pattern", got=attrs.get(spec.name), chip=chip,
                    remedy=f"pass {spec.name}=", code="TRN402",
                )  # fmt: skip
            continue
        if op.memory not in spec.memories:
            allowed = " or ".join(sorted(m.name for m in spec.memories))
            instr.refuse(
                f"operand {spec.name!r} lies in the wrong memory", limit=allowed, got=op.memory.name, chip=chip,
                remedy=f"move it to {allowed} first", code="TRN403",
            )  # fmt: skip
        if op.memory is not Memory.HBM:
            _partition_rules(instr, spec.name, op, engine, chip)


def _partition_rules(instr: Instruction, name: str, op: Operand, engine: Engine, chip: Chip) -> None:
    """Partition count and start (architecture guide, trainium_inferentia2_arch.rst:705-713)."""
    if op.partitions > chip.num_partitions:
        instr.refuse(
            f"operand {name!r} has too many partitions", limit=chip.num_partitions, got=op.partitions, chip=chip,
            remedy="tile the partition dimension", code="TRN404",
        )  # fmt: skip
    if "dma" in instr.name:
        return  # DMA reaches every partition
    starts = (0,) if op.partitions > 64 else (0, 64) if op.partitions > 32 else (0, 32, 64, 96)
    if op.first_partition not in starts:
        instr.refuse(
            f"operand {name!r} starts on partition {op.first_partition}", limit=f"starts at {starts} for {op.partitions}",
            got=op.first_partition, chip=chip, remedy="place the tile so that it starts on one of these", code="TRN405",
        )  # fmt: skip


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
