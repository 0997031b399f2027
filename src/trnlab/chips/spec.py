# SPDX-License-Identifier: Apache-2.0
"""Hardware as data: what a chip description is made of. Every figure says how it is known and where from.

Nothing here behaves: what an instruction costs on these figures is `sim.timing.cost`, when it happens `sim.timing`.
Rates are in cycles of the engine's own clock, so that scaling a clock scales everything the engine does.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Confidence(enum.StrEnum):
    """How a figure is known."""

    DOCUMENTED = "documented"  # the vendor says so
    MEASURED = "measured"  # somebody's run of a real chip shows it
    DERIVED = "derived"  # arithmetic from documented or measured figures
    ASSUMED = "assumed"  # nothing published: our choice, with a reason


class Figure(NamedTuple):
    """One figure of the hardware with its unit, how it is known, and the source (or, when assumed, the reason)."""

    value: float
    unit: str
    confidence: Confidence
    source: str


# What a generation can do beyond the first; behaviour asks `chip.has(...)`, never for the generation's number.
FEATURES: dict[str, str] = {
    "pe_transpose": "the PE array transposes bit-exactly, 16-bit in and out",
    "fp8_double_row": "two FP8 rows of the contraction in one pass (K = 256)",
    "pe_tiles_32": "the PE array splits into tiles of 32 rows or columns, not of 64 only",
    "long_matmul": "one matmul writes as many columns as all of PSUM holds",
    "matmul_onto_any": "a matmul may accumulate onto what another engine wrote to PSUM",
    "bf16_psum": "the PE array writes and accumulates bfloat16 in PSUM",
    "fp8_e4m3fn": "the PE array multiplies the OCP format float8_e4m3fn",
    "mx_formats": "matmul and quantization of the MX formats (packed words with shared scales)",
    "tensor_indirection": "compute engines gather and scatter columns of SBUF and PSUM by an index",
    "background_transpose": "a transpose runs beside another matmul or transpose",
    "parallel_ports": "VectorE uses SBUF beside GpSimdE, and PSUM beside ScalarE; without it they take turns",
    "vector_fast_modes": "VectorE runs 16-bit SBUF copies and tensor-scalar ops at two or four elements a cycle",
    "fp8_fast_modes": "the 16-bit modes of VectorE and ScalarE take FP8 too",
    "scalar_fast_modes": "ScalarE runs 16-bit copies and tensor-scalar ops at two elements a cycle",
    "scalar_alu": "ScalarE runs tensor_scalar with every arithmetic operator of VectorE",
    "activate2": "activation with freely chosen operators before it and reductions behind it",
    "vector_exponential": "VectorE computes exp(x - max) with row sums",
    "vector_xorwow": "VectorE draws random numbers with XORWOW, and loads and stores its states",
    "alu_square_relu": "the ALU has square and relu",
    "scalar_tensor_copy": "ScalarE copies tensors bit-exactly",
    "scalar_tensor_scalar": "ScalarE runs tensor_scalar with multiply and add",
    "scalar_bias_immediate": "activation takes a number as bias",
    "alu_abs_max_min": "the ALU has abs_max and abs_min",
    "range_select": "VectorE selects by an index range",
    "gpsimd_rng": "GpSimdE draws random bits",
    "gpsimd_nonzero": "GpSimdE lists the indices of nonzero elements",
    "dma_priority": "transfers have one of four classes of service",
    "hwdge": "two hardware blocks generate DMA descriptors on command of ScalarE and SyncE",
    "dma_transpose": "the DMA engines transpose 2-byte and 4-byte elements",
    "logical_cores": "two cores can act as one (LNC = 2)",
}


_SAME_RATE = {
    "float8_e4m3fn": "float8_e4m3",
    "float8_e4m3fn_x4": "float8_e4m3",
    "float8_e5m2_x4": "float8_e5m2",
    "float4_e2m1fn_x4": "float8_e4m3",
}


@dataclass(frozen=True)
class PerDtype:
    """One figure per floating point format of the PE array. Formats without a field cost as float32.

    float8_e4m3fn costs as float8_e4m3, and the packed MX formats as one FP8 word.
    """

    float32: Figure
    tfloat32: Figure
    bfloat16: Figure
    float16: Figure
    float8_e4m3: Figure
    float8_e5m2: Figure

    def of(self, dtype: str) -> Figure:
        """The figure of a format by name; integers and unknown names take float32's."""
        found = getattr(self, _SAME_RATE.get(dtype, dtype), self.float32)
        assert isinstance(found, Figure)
        return found


@dataclass(frozen=True)
class Sbuf:
    """The state buffer: 128 partitions of on-chip memory."""

    bytes_per_partition: Figure
    reserved_bytes_per_partition: Figure  # kept by the compiler
    wide_stride_rate: Figure  # speed of an engine whose innermost step is more than 16 bytes

    @property
    def usable_bytes_per_partition(self) -> int:
        """What programs may use."""
        return int(self.bytes_per_partition.value - self.reserved_bytes_per_partition.value)


@dataclass(frozen=True)
class Psum:
    """The accumulation buffer of the PE array."""

    banks: Figure
    bank_bytes: Figure  # per partition

    @property
    def num_banks(self) -> int:
        """Banks, eight."""
        return int(self.banks.value)

    @property
    def bank_bytes_per_partition(self) -> int:
        """Bytes of one bank in each partition."""
        return int(self.bank_bytes.value)


@dataclass(frozen=True)
class Hbm:
    """Device memory as one core sees it when all cores of the chip are at work."""

    capacity: Figure  # bytes per core
    bandwidth: Figure  # bytes/s per core
    alone: Figure  # bytes/s of a core while no other core uses its stack

    @property
    def capacity_bytes(self) -> int:
        """Bytes that one core may use."""
        return int(self.capacity.value)


@dataclass(frozen=True)
class EngineSpec:
    """What the four compute engines share. Cycles are of `clock`.

    An instruction that streams for c cycles occupies its engine for max(c + issue, min_interval) cycles
    (the PE array: max(c, min_interval) + issue); its result is usable c + latency cycles after it began.
    """

    clock: Figure  # Hz
    min_interval: Figure  # cycles
    issue: Figure  # cycles between independent instructions, beyond streaming
    latency: Figure  # cycles from the last element streamed to the result


@dataclass(frozen=True)
class TensorEngine(EngineSpec):
    """The 128 x 128 PE array: LoadStationary, then one moving column a cycle and pass."""

    issue32: Figure  # as `issue`, for float32, which takes two instructions
    weight_columns_per_cycle: Figure  # LoadStationary speed
    rate_window: Figure  # ns; after each the array decides whether to run the next at full or at half rate
    full_rate_above: (
        Figure  # work in a window, as a share of what fits in one at full rate, that makes the next one full
    )
    half_rate_latency: Figure  # as `latency`, while the array runs at half rate
    passes: PerDtype  # passes over the array per matmul
    transpose_passes: PerDtype
    peak_flops: PerDtype  # FLOP/s, dense, best published mode
    peak_flops_mx: Figure  # the same for the packed MX formats


@dataclass(frozen=True)
class VectorEngine(EngineSpec):
    """Elementwise and reductions along the free dimension. Rates are cycles per element and partition.

    "16" is for operands of two bytes or less. Where the hardware's fast modes apply is in `sim.timing.cost`.
    """

    copy: Figure  # one input stream, PSUM or 32-bit strided
    copy_sbuf32: Figure  # one 32-bit input stream, SBUF to SBUF
    copy16: Figure  # 16-bit, all in SBUF, contiguous
    copy16_strided: Figure  # 16-bit, strided or one side in PSUM
    memset16: Figure
    two_inputs: Figure  # two input streams, both from SBUF
    two_inputs_psum: Figure  # one of them from PSUM
    two_inputs16: Figure  # both 16-bit from SBUF
    reduce: Figure
    reduce16: Figure
    reciprocal: Figure
    scalar_operand: Figure  # cycles more, of issue and latency, when an operand is one value per partition


@dataclass(frozen=True)
class ScalarEngine(EngineSpec):
    """Pointwise functions from tables."""

    function_issue: Figure  # as `issue`, for a function from the tables
    function_latency: Figure  # as `latency`, for a function from the tables
    accumulator_read: Figure  # cycles to read the reduction registers
    table_load: Figure  # ns, when the function's table set is not the one that is loaded


@dataclass(frozen=True)
class GpSimdEngine(EngineSpec):
    """Eight general processors; everything else. `issue` is the overhead of their software."""

    elementwise: Figure  # cycles per element and partition of elementwise work; iota and affine_select take 1
    rsqrt: Figure  # the same for the functions that its software computes


@dataclass(frozen=True)
class Dma:
    """The DMA engines of one core. Times in ns."""

    engines: Figure
    queues: Figure  # rings per engine
    engine_bandwidth: Figure  # bytes/s of one engine while it moves data
    read_rate: Figure  # speed of a transfer whose source lies in HBM
    read_stall: Figure  # ns that an engine waits for HBM in each such transfer
    descriptor: Figure  # ns per descriptor beyond its bytes
    descriptor_bytes: Figure  # longest run that one descriptor moves
    partitions_per_engine: Figure  # rows of a [128, F] transfer that one engine serves
    trigger: Figure  # ns that the issuing sequencer is busy (ScalarE, SyncE, TensorE, VectorE), for all engines
    trigger_gpsimd: Figure  # ns that GpSimdE's software is busy with the descriptors of a transfer
    active_gpsimd: Figure  # ns of these that its instruction takes, which is what a profiler counts
    wake_gpsimd: Figure  # ns more than the semaphore from when a transfer's operands are ready to that trigger
    trigger_ring: Figure  # ns that the sequencer is busy when descriptors lie ready in a ring in HBM
    trigger_lane: Figure  # ns less of either, and of queue_interval, for each engine that takes no part
    queue_interval: Figure  # ns at least between the descriptors of two transfers of one queue
    start: Figure  # ns from the trigger's end to the first byte
    start_indirect: Figure  # the same when descriptors are made by software (gather)
    start_ring: Figure  # the same when descriptors lie ready in a ring in HBM
    stagger: Figure  # ns between the starts of two neighbouring engines in one transfer
    stagger_read: Figure  # the same when the source lies in HBM
    read_latency: Figure  # ns more until the first byte when the source lies in HBM
    cast_rate: Figure  # speed of a transfer that changes the format
    turnaround: (
        Figure  # how much longer a transfer takes right behind one that went the other way, into or out of HBM
    )
    completion: Figure  # ns from the last byte to the semaphore


@dataclass(frozen=True)
class Sync:
    """Semaphores and the start and end of a program. Times in ns."""

    semaphore: Figure  # from a producer's end to the start of an instruction of another engine that waits for it
    program_start: Figure  # before the first instruction
    gpsimd_start: Figure  # more before the first instruction of GpSimdE
    program_end: Figure  # after the last
    register: Figure  # an instruction between registers of a sequencer
    register_memory: Figure  # one number between memory and a register of a sequencer
    profiler: Figure  # more before the first instruction under the profiler


@dataclass(frozen=True)
class Links:
    """How ranks reach each other in collectives, within one instance."""

    bandwidth: Figure  # bytes/s to one neighbour, in one direction
    efficiency: Figure  # share of that which collectives reach
    launch: Figure  # ns from the trigger to the first step
    step: Figure  # ns of one step of an algorithm, beyond its bytes
    cc_cores: Figure  # that orchestrate collectives, for each core: so many streams of them at once


@dataclass(frozen=True)
class Chip:
    """One NeuronCore of a chip generation, and how many of them share the chip."""

    name: str
    title: str
    generation: int  # NeuronCore version
    features: frozenset[str]
    partitions: Figure
    cores: Figure  # per chip
    sbuf: Sbuf
    psum: Psum
    hbm: Hbm
    tensor: TensorEngine
    vector: VectorEngine
    scalar: ScalarEngine
    gpsimd: GpSimdEngine
    dma: Dma
    sync: Sync
    links: Links

    @property
    def num_partitions(self) -> int:
        """Partitions of SBUF and PSUM, 128."""
        return int(self.partitions.value)

    def has(self, feature: str) -> bool:
        """Whether the chip can do `feature`, one of FEATURES. Raises KeyError for a name that is not a feature."""
        FEATURES[feature]
        return feature in self.features

    def peak_flops(self, dtype: str) -> float:
        """Published dense FLOP/s of one core's PE array in this format."""
        if dtype.endswith("_x4"):
            return self.tensor.peak_flops_mx.value
        return self.tensor.peak_flops.of(dtype).value
