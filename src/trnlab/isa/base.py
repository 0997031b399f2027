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
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.errors import ConstraintError
from trnlab.numerics.dtypes import ALL, PACKED, DType

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]


class Engine(enum.IntEnum):
    """The in-order sequencers of a NeuronCore. Any of the first five can trigger a DMA; only SYNC does nothing else.

    CC stands for the collective-communication cores, which are the chip's: one stream of collectives, in order.
    """

    TENSOR = 0
    VECTOR = 1
    SCALAR = 2
    GPSIMD = 3
    SYNC = 4
    CC = 5


class Memory(enum.IntEnum):
    """Where a buffer lives."""

    HBM = 0
    SBUF = 1
    PSUM = 2


ON_CHIP = frozenset({Memory.SBUF, Memory.PSUM})
SBUF_ONLY = frozenset({Memory.SBUF})
PSUM_ONLY = frozenset({Memory.PSUM})
DMA_MEMORIES = frozenset({Memory.HBM, Memory.SBUF})

ANY_DTYPE = frozenset(d.name for d in ALL)
PACKED_DTYPES = frozenset(d.name for d in PACKED)
MOVABLE = ANY_DTYPE | PACKED_DTYPES  # where bits move as they are
MATMUL_DTYPES = frozenset({"float32", "tfloat32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2"})
HALF_FLOATS = frozenset({"bfloat16", "float16"})
INT32 = frozenset({"int32", "uint32"})
FLOATS = frozenset(d.name for d in ALL if d.is_float)
FLOAT32 = frozenset({"float32"})

# Stable codes of the rules; each is a section of docs/errors.md.
CODES: Mapping[str, str] = {
    "TRN401": "the engine does not execute this instruction",
    "TRN402": "an operand is missing",
    "TRN403": "an operand lies in a memory that the engine cannot reach",
    "TRN404": "too many partitions",
    "TRN405": "a tile starts on a partition that its height does not allow",
    "TRN406": "an operand is larger than the instruction can address",
    "TRN407": "an access pattern has too many dimensions or too long a step",
    "TRN408": "a number format that the instruction does not take",
    "TRN409": "the shapes of two operands do not match",
    "TRN410": "an access outside of its buffer",
    "TRN411": "an attribute that the instruction does not have, or a value it cannot take",
    "TRN412": "an ALU operator or activation function that is unknown or not allowed here",
    "TRN413": "two operands that may not both lie in PSUM",
    "TRN414": "this generation of the chip lacks the feature",
    "TRN415": "a result of the PE array crosses from one PSUM bank into the next",
    "TRN416": "a size that is too small, or not the multiple that the instruction needs",
}


class Operand(Protocol):
    """What an instruction may ask of an operand; `program.AP` is one."""

    @property
    def memory(self) -> Memory:
        """Where it lies."""
        ...

    @property
    def dtype(self) -> DType:
        """Its number format."""
        ...

    @property
    def partitions(self) -> int:
        """P: rows, in HBM the first dimension."""
        ...

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

    def extent(self) -> tuple[int, int]:
        """First and last byte touched, from the start of its buffer (on chip: of the partition)."""
        ...


class Dataflow(enum.Enum):
    """Which elements of what an instruction reads an element of its result may depend on.

    ANY: all of them. PARTITION: those of its own partition. POINTWISE: the one in its own place; an operand of one
    column counts for its whole row. OCTETS: those of its own eight partitions, of an operand four times as long four
    neighbours in each. TRANSPOSE: the one in its place of the transpose. PRODUCT: a row of the second operand
    (stationary) and a column of the third (moving).
    """

    ANY = enum.auto()
    PARTITION = enum.auto()
    POINTWISE = enum.auto()
    OCTETS = enum.auto()
    TRANSPOSE = enum.auto()
    PRODUCT = enum.auto()


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """One operand slot."""

    name: str
    role: str  # "dst" or "src"
    memories: frozenset[Memory] = ON_CHIP
    optional: bool = False
    immediate: bool = False  # a Python number may stand in its place
    rw: bool = False  # read as well as written (a dst)
    # what its partition count and its elements per partition are called. Operands that use one letter must agree
    # on it; a number is itself; "" is not compared.
    shape: tuple[str, str] = ("P", "F")
    dtypes: frozenset[str] = ANY_DTYPE  # names of the formats it takes
    # registers of the engine itself (accumulators, random states), which whoever records the program keeps in a
    # tile of their own, one row per lane. The engine's order alone orders their use, so they take no part in
    # timing.
    state: bool = False
    starts: tuple[int, ...] = ()  # where in a quadrant of 32 partitions it may start, in place of the rule by height
    index_of: str = ""  # the operand whose columns this one picks, see `isa.indirection`

    @property
    def is_scalar(self) -> bool:
        """One value per partition: it is loaded once, not streamed."""
        return self.shape[1] == "1"


@dataclass(frozen=True, slots=True)
class Work:
    """How much an instruction has to do, in terms that no generation changes."""

    kind: str  # cost class, a key of `isa.costs.COST_CLASSES`, e.g. "pe.matmul", "vector.tensor_tensor", "dma.copy"
    n: int  # elements streamed per partition (PE: moving columns N; DMA: bytes of one descriptor)
    # second size (PE: stationary columns M; DMA: number of descriptors; else what the cost class says, or 0)
    m: int = 0
    k: int = 128  # partitions (PE: contraction rows K; DMA: partitions on the SBUF side)
    itemsize: int = 4  # bytes of the widest streamed operand's element
    # the format that all streamed operands share, "float16" where bfloat16 and float16 mix, "mixed" otherwise
    # (PE: the wider input's)
    dtype: str = "float32"
    psum: int = 0  # bit i set when operand i (in spec order) lies in PSUM
    strided: bool = False  # some streamed operand's inner step is not 1
    nbytes: int = 0  # bytes moved (DMA)
    flops: int = 0  # useful floating point operations (2*K*M*N for a matmul, else elements times operators)
    wide_stride: bool = False  # it is more than 16 bytes
    # row, column, rows and columns of the part of the PE array that is used; all of it when empty
    part: tuple[int, ...] = ()
    # the ranks that meet, group by group (collectives; of permutations the pairs)
    groups: tuple[tuple[int, ...], ...] = ()


class Instruction:
    """One instruction of the NeuronCore; subclasses are singletons, one file each, registered in `trnlab.isa`.

    Subclasses set the class attributes and define `check`, `meaning` and `work`. What the class attributes say is
    checked by `isa.rules` for every instruction; `check` adds what they cannot say, and `limits` says that in words.
    """

    name: ClassVar[str]
    opcode: ClassVar[int]
    engines: ClassVar[tuple[Engine, ...]]  # engines allowed; the first is the default
    operands: ClassVar[tuple[OperandSpec, ...]]  # destinations first
    attrs: ClassVar[Mapping[str, Any]] = {}  # attribute name -> default
    required: ClassVar[tuple[str, ...]] = ()  # what kernels must pass, in order, where not just required operands
    source: ClassVar[str] = ""
    example: ClassVar[str] = ""  # lines of a kernel, with nl, nisa and ncc (nki.collectives) at hand
    example_on: ClassVar[tuple[int, int]] = (1, 1)  # cores of a rank, and ranks, that they are for
    engine_features: ClassVar[Mapping[Engine, str]] = {}  # engine -> what `chip.has` must say yes to
    sizes: ClassVar[Mapping[str, int]] = {}  # letter of a shape -> largest value
    least: ClassVar[Mapping[str, int]] = {}  # letter of a shape -> smallest value
    multiples: ClassVar[Mapping[str, int]] = {}  # letter of a shape -> what divides it
    same_dtype: ClassVar[tuple[str, ...]] = ()  # operands that share one format
    not_both_psum: ClassVar[tuple[str, ...]] = ()  # operands of which at most one lies in PSUM
    limits: ClassVar[tuple[str, ...]] = ()  # rules beyond these, for people
    is_dma: ClassVar[bool] = False
    feature: ClassVar[str] = ""  # what `chip.has` must say yes to; "" for an instruction of every generation
    indirect: ClassVar[tuple[str, ...]] = ()  # operands that tensor indirection may gather or scatter
    dataflow: ClassVar[Dataflow] = Dataflow.ANY  # what the checks follow undefined values by
    accumulates: ClassVar[bool] = False  # computes with what an `rw` destination held; others only keep some of it
    partly_used: ClassVar[tuple[str, ...]] = ()  # operands of which it uses only some elements
    moves_data: ClassVar[bool] = True  # whether it reads and writes its operands at all
    cost_kinds: ClassVar[tuple[str, ...]] = ()  # the cost classes of its work, where names do not tell

    def exists_on(self, chip: Chip) -> bool:
        """Whether this generation has the instruction."""
        return not self.feature or chip.has(self.feature)

    def engines_on(self, chip: Chip) -> tuple[Engine, ...]:
        """The engines that execute this instruction on `chip`, the default first."""
        needs = self.engine_features
        return tuple(e for e in self.engines if e not in needs or chip.has(needs[e]))

    def size_of(self, spec: OperandSpec, op: Operand, attrs: Mapping[str, Any]) -> tuple[int, int]:
        """What an operand counts for under the letters of its shape: partitions, elements per partition."""
        return op.partitions, op.free

    def largest(self, letter: str, ops: Mapping[str, Operand], chip: Chip) -> int | None:
        """The largest value of a letter of the shapes; None where nothing limits it."""
        return self.sizes.get(letter)

    def implied(self, ops: Mapping[str, Operand]) -> Mapping[str, Any]:
        """Attributes that follow from the operands' formats and patterns; whoever records it adds them."""
        return {}

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Whether the former contents of an `rw` destination matter."""
        return any(spec.rw for spec in self.operands)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Raise ConstraintError for what the chip refuses, beyond the rules every instruction shares."""

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Destination arrays from source arrays.

        Every array is [P, F...]; floats arrive as float32 (already exact values of their format), integers in their
        own dtype. Every operand given is in `arrays`, destinations too: of these only the shape and dtype count, and
        the contents where `reads_destination`. The result is cast to the destination's format by the caller:
        unchanged when it already has that dtype, otherwise through float32 (`numerics.rounding.store`).
        """
        raise NotImplementedError

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """The amount of work."""
        return self.streaming(ops, engine)

    def streaming(
        self, ops: Mapping[str, Operand], engine: Engine, *, m: int = 0, flops: int = 0, kind: str | None = None
    ) -> Work:
        """Work of an instruction that streams its operands through one engine; `flops` are per element."""
        beside = {s.name for s in self.operands if s.is_scalar or s.state or s.index_of}
        streamed = [op for name, op in ops.items() if name not in beside]
        largest = max(streamed, key=lambda op: op.partitions * op.free)
        steps = [(inner_step(op), op.dtype.itemsize) for op in streamed]
        return Work(
            kind=f"{engine.name.lower()}.{kind or self.name}",
            n=largest.free,
            m=m,
            k=largest.partitions,
            itemsize=max(op.dtype.itemsize for op in streamed),
            dtype=shared_dtype({op.dtype.name for op in streamed}),
            psum=self.psum_mask(ops),
            strided=any(step != 1 for step, _ in steps),
            flops=flops * largest.partitions * largest.free,
            wide_stride=any(abs(step) * item > 16 for step, item in steps),
        )

    def psum_mask(self, ops: Mapping[str, Operand]) -> int:
        """Bit i is set when operand i lies in PSUM."""
        return sum(1 << i for i, s in enumerate(self.operands) if s.name in ops and ops[s.name].memory is Memory.PSUM)

    def refuse(
        self, what: str, *, limit: object, got: object, chip: Chip, remedy: str, code: str = "TRN400"
    ) -> NoReturn:
        """Raise the ConstraintError of this instruction."""
        raise ConstraintError(f"{self.name}: {what}", code=code, limit=limit, got=got, chip=chip.name, remedy=remedy)


def inner_step(op: Operand) -> int:
    """Elements from one streamed element to the next; 1 where there is only one."""
    return next((step for step, count in reversed(op.dims) if count > 1), 1)


def shared_dtype(names: set[str]) -> str:
    """The name that stands for the formats of several streamed operands, see `Work.dtype`."""
    if len(names) == 1:
        return next(iter(names))
    return "float16" if names <= HALF_FLOATS else "mixed"


def as_float(array: Array) -> Array:
    """An operand as the arithmetic units see it: float32, integers rounded to nearest even."""
    return array if array.dtype == np.float32 else array.astype(np.float32)


def per_partition(value: Any, ndim: int) -> Any:
    """A [P, 1] operand shaped to broadcast against [P, F...] with `ndim` dimensions; numbers pass as float32."""
    if isinstance(value, np.ndarray):
        return as_float(value).reshape(value.shape[0], *(1,) * (ndim - 1))
    return np.float32(value)
