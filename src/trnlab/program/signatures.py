# SPDX-License-Identifier: Apache-2.0
"""Which operand each named argument of an instruction is, found once for all calls with the same names."""

from __future__ import annotations

from functools import cache
from itertools import count

from trnlab.isa.base import Instruction


@cache
def signature(instr: Instruction, given: tuple[str, ...]) -> tuple[int, tuple[tuple[int, str], ...]]:
    """A number for arguments of these names, and the names with the operand that each is, operands in their order.

    What is no operand has -1 and comes last.
    """
    numbers = {spec.name: role for role, spec in enumerate(instr.operands)}
    operands = sorted((numbers[name], name) for name in given if name in numbers)
    return next(_numbers), (*operands, *((-1, name) for name in given if name not in numbers))


_numbers = count()
