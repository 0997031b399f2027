# SPDX-License-Identifier: Apache-2.0
"""What an instruction is: operands and their roles, limits, meaning, amount of work.

An instruction knows no machine state and no clock. `check` refuses what the engine would refuse, `meaning` is a pure
function of arrays, `work` says how much there is to do; the chip says how long that takes, the simulator when.

Shape letters: P partition, F free (elements per partition), K contraction, M stationary free, N moving free.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.errors import ConstraintError
from trnlab.numerics.dtypes import DType

Arrays = Mapping[str, np.ndarray[Any, Any]]


class Engine(enum.IntEnum):
    """The in-order sequencers of a NeuronCore. Any of them can trigger a DMA; only SYNC does nothing else."""

    TENSOR = 0
    VECTOR = 1
    SCALAR = 2
    GPSIMD = 3
    SYNC = 4


class Memory(enum.IntEnum):
    """Where a buffer lives."""

    HBM = 0
    SBUF = 1
    PSUM = 2


ON_CHIP = frozenset({Memory.SBUF, Memory.PSUM})
SBUF_ONLY = frozenset({Memory.SBUF})
PSUM_ONLY = frozenset({Memory.PSUM})
DMA_MEMORIES = frozenset({Memory.HBM, Memory.SBUF})


class Operand(Protocol):
    """What an instruction may ask of an operand; `program.AP` is one."""

    @property
    def memory(self) -> Memory: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def partitions(self) -> int: ...
    @property
    def first_partition(self) -> int:
        """Absolute partition the operand starts at (0 for HBM)."""
        ...

    @property
    def free(self) -> int:
        """Elements per partition, F."""
        ...

    @property
    def dims(self) -> tuple[tuple[int, int], ...]:
        """Free dimensions as (step in elements, count), outermost first."""
        ...

    @property
    def contiguous_bytes(self) -> int:
        """Length of the longest run of adjacent bytes: what one DMA descriptor can move."""
        ...


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """One operand slot. `immediate`: a Python float may stand in its place. `rw`: read as well as written (a dst)."""

    name: str
    role: str  # "dst" or "src"
    memories: frozenset[Memory] = ON_CHIP
    optional: bool = False
    immediate: bool = False
    rw: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """How much an instruction has to do, in terms that no generation changes.

    kind: cost class, e.g. "pe.matmul", "vector.tensor_tensor", "scalar.activation", "dma.copy".
    n: elements streamed per partition (PE: moving columns N; DMA: bytes of one descriptor).
    m: second size (PE: stationary columns M; DMA: number of descriptors; else 0).
    k: partitions (PE: contraction rows K).
    itemsize: bytes of the widest streamed operand's element. dtype: its name.
    psum: bit i set when operand i (in spec order) lies in PSUM. strided: some operand's inner step is not 1.
    nbytes: bytes moved (DMA). flops: useful floating point operations (2*K*M*N for a matmul, else elements times ops).
    """

    kind: str
    n: int
    m: int = 0
    k: int = 128
    itemsize: int = 4
    dtype: str = "float32"
    psum: int = 0
    strided: bool = False
    nbytes: int = 0
    flops: int = 0


class Instruction:
    """One instruction of the NeuronCore; subclasses are singletons, one file each, registered in `trnlab.isa`.

    Subclasses set the class attributes and define `check`, `meaning` and `work`.
    """

    name: ClassVar[str]
    opcode: ClassVar[int]
    engines: ClassVar[tuple[Engine, ...]]  # engines allowed; the first is the default
    operands: ClassVar[tuple[OperandSpec, ...]]  # destinations first
    attrs: ClassVar[Mapping[str, Any]] = {}  # attribute name -> default
    source: ClassVar[str] = ""

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Raise ConstraintError for what the chip refuses, beyond the rules every instruction shares."""

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Destination arrays from source arrays.

        Every array is [P, F...]; floats arrive as float32 (already exact values of their format), integers in their
        own dtype. The result is cast to the destination's format by the caller.
        """
        raise NotImplementedError

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """The amount of work."""
        raise NotImplementedError

    def refuse(self, what: str, *, limit: object, got: object, chip: Chip, remedy: str, code: str = "TRN400") -> None:
        """Raise the ConstraintError of this instruction."""
        raise ConstraintError(
            f"{self.name}: {what}", code=code, limit=limit, got=got, chip=chip.name, remedy=remedy
        )
