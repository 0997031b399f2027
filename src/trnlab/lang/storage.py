# SPDX-License-Identifier: Apache-2.0
"""Where tensors of the kernel language live: regions, and the memory that views share."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from math import prod
from typing import Any, NoReturn

from trnlab.errors import ConstraintError
from trnlab.isa.base import Memory
from trnlab.lang.formats import Format
from trnlab.lang.recording import Recording
from trnlab.lang.source import user_line
from trnlab.program.access import Buffer


class MemorySpace(enum.Enum):
    """Where a tensor lives. shared_hbm outlives the kernel and can be returned; private_hbm is scratch."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    def __init__(self, name: str) -> None:
        self.memory: Memory = {"sbuf": Memory.SBUF, "psum": Memory.PSUM}.get(name, Memory.HBM)
        self.title = name  # `value` is slow to get


_HBM = Memory.HBM  # to look a member up takes 200 ns in Python 3.11


@dataclass(eq=False, slots=True, weakref_slot=True)
class Storage:
    """The memory that views share. row: elements of `format` per partition (on chip; 0 in HBM)."""

    recorder: Recording
    buffer: Buffer
    region: MemorySpace
    shape: tuple[int, ...]
    format: Format
    # regions of a PSUM tile that a matmul adds to if it does not say, see `lang.instructions.nc_matmul`
    sums: set[tuple[Any, ...]] = field(default_factory=set)
    wrote: set[tuple[Any, ...]] = field(default_factory=set)  # all regions of it that were written
    # HBM that all cores of a rank see: arguments, whatever their region says, and what is made in shared_hbm
    common: bool = False

    @property
    def row(self) -> int:
        """Elements per partition."""
        return prod(self.shape[1:]) if self.region.memory is not _HBM else 0


def refuse(what: str, *, limit: object, got: object, remedy: str, code: str = "TRN409") -> NoReturn:
    """Raise ConstraintError at the user's line."""
    raise ConstraintError(what, code=code, where=user_line(), limit=limit, got=got, remedy=remedy)
