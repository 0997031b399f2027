# SPDX-License-Identifier: Apache-2.0
"""The instruction set: every instruction by name and by opcode, and the one check that all of them pass."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.errors import ConstraintError, Location
from trnlab.isa.base import Engine, Instruction, Memory, Operand, Work
from trnlab.isa.documentation import page
from trnlab.isa.indirection import index_specs
from trnlab.isa.rules import check_shared

__all__ = [
    "BY_OPCODE",
    "REGISTRY",
    "Engine",
    "Instruction",
    "Memory",
    "Operand",
    "Work",
    "describe",
    "register",
    "validate",
]

REGISTRY: dict[str, Instruction] = {}
BY_OPCODE: dict[int, Instruction] = {}


def register(cls: type[Instruction]) -> type[Instruction]:
    """Class decorator: make the one object of an instruction and list it. A name or opcode used twice is a bug."""
    cls.operands += index_specs(cls.indirect)
    instr = cls()
    assert instr.name not in REGISTRY, f"{instr.name}: name taken"
    assert instr.opcode not in BY_OPCODE, f"{instr.name}: opcode {instr.opcode} taken"
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
        check_shared(instr, ops, attrs, engine, chip)
        instr.check(ops, attrs, engine, chip)
    except ConstraintError as error:
        error.where = error.where or where
        raise
    return instr.work(ops, attrs, engine)


def describe(name: str) -> str:
    """The documentation page of an instruction, made from the object itself. KeyError for an unknown name."""
    return page(REGISTRY[name])


_MODULES = [module.name for module in pkgutil.walk_packages(__path__, f"{__name__}.")]
for _module in sorted(_MODULES, key=lambda name: name.rpartition(".")[2]):  # instructions are listed by their names
    importlib.import_module(_module)
