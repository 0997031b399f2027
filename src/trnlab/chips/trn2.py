# SPDX-License-Identifier: Apache-2.0
"""NeuronCore-v3: the core of Trainium2."""

from __future__ import annotations

from trnlab.chips.sources import (
    ARCH1,
    ARCH2,
    BANDWIDTH,
    CHIP2,
    COLLECTIVES,
    DGE,
    DMA_INTRO,
    ISA_OLD,
    NCCOM,
    OVERLAP,
    PROFILES,
    PUBLIC,
    assumed,
    derived,
    documented,
    measured,
    per_dtype,
)
from trnlab.chips.spec import (
    Chip,
    Dma,
    GpSimdEngine,
    Hbm,
    Links,
    Psum,
    Sbuf,
    ScalarEngine,
    Sync,
    TensorEngine,
    VectorEngine,
)
from trnlab.units import GIB, KIB

_CYCLES = "cycle/element"

TENSOR = TensorEngine(
    clock=documented(2.4e9, "Hz", f"{ARCH2}:52"),
    min_interval=assumed(64, "cycle", f"as on NeuronCore-v2 ({ARCH1}:266-268)"),
    issue=measured(
        7,
        "cycle",
        f"{PROFILES}: passes of float32 follow 6 to 13 cycles after their 128 or 512 columns; of bf16 there are none "
        "at full rate",
    ),
    issue32=derived(7, "cycle", "as issue, which was read from float32"),
    latency=measured(392, "cycle", f"{PROFILES}: matmuls end 163 to 168 ns after their last column"),
    weight_columns_per_cycle=assumed(4, "column/cycle", f"as on NeuronCore-v2 ({ARCH1}:298)"),
    rate_window=measured(8192 / 2.4, "ns", f"{PROFILES}: half-rate windows are multiples of 8192 cycles"),
    full_rate_above=measured(
        0.375,
        "ratio",
        f"{PROFILES}: after windows that did up to 0.371 of a full one came half rate, from 0.421 on full",
    ),
    half_rate_latency=measured(492, "cycle", f"{PROFILES}: at half rate, 203 to 207 ns after their last column"),
    passes=per_dtype(
        documented(4, "pass", f"{ARCH2}:71 fp32 at a quarter of the rate"),
        derived(1, "pass", f"{ARCH2}:52, 71: 79e12 FLOP/s are one column of 128 x 128 a cycle at 2.4 GHz"),
    ),
    transpose_passes=per_dtype(
        measured(
            2, "pass", f"{PROFILES}: 128 columns of float32 take 213 ns at half rate; {ARCH2}:201 half a matmul's"
        ),
        measured(1, "pass", f"{PROFILES}: 128 columns of bf16 take 107 ns at half rate"),
    ),
    peak_flops=per_dtype(
        documented(20e12, "FLOP/s", f"{ARCH2}:71"),
        documented(79e12, "FLOP/s", f"{ARCH2}:71"),
        documented(158e12, "FLOP/s", f"{ARCH2}:71 with two rows in one pass"),
    ),
    peak_flops_mx=derived(158e12, "FLOP/s", "no MX formats: as FP8"),
)

VECTOR = VectorEngine(
    clock=documented(0.96e9, "Hz", f"{ARCH2}:56"),
    min_interval=documented(64, "cycle", f"{ISA_OLD} MIN_II"),
    issue=measured(
        58, "cycle", f"{PROFILES}: reductions of 512 elements follow 593 ns apart at least, every 603 in the median"
    ),
    latency=measured(147, "cycle", f"{PROFILES}: copies and reductions end 139 to 158 ns after their last element"),
    copy=documented(1, _CYCLES, f"{ISA_OLD}:4754; {PROFILES} agree for PSUM sources"),
    copy_sbuf32=measured(0.5, _CYCLES, "kernel-optimization tutorial, v5-zoom.png: 512 fp32 in 423 to 432 ns"),
    copy16=documented(0.25, _CYCLES, f"{ARCH2}:222-239"),
    copy16_strided=documented(0.5, _CYCLES, f"{ARCH2}:222-239"),
    memset16=documented(0.5, _CYCLES, f"{ISA_OLD}:595-601"),
    two_inputs=documented(2, _CYCLES, f"{ISA_OLD}:3888-3903, not restated for this generation"),
    two_inputs_psum=measured(1, _CYCLES, "kernel-optimization tutorial, v5-zoom.png: 512 fp32 in 694 ns"),
    two_inputs16=documented(0.5, _CYCLES, f"{ARCH2}:222-239"),
    reduce=documented(1, _CYCLES, f"{ISA_OLD}:4222-4233; {PROFILES} agree"),
    reduce16=documented(0.5, _CYCLES, f"{ISA_OLD}:4222-4233 bf16 in and out"),
    reciprocal=documented(8, _CYCLES, f"{ISA_OLD}:4544"),
    scalar_operand=measured(60, "cycle", f"{PROFILES}: tensor_scalar ends 210 to 218 ns after its last element"),
)

SCALAR = ScalarEngine(
    clock=documented(1.2e9, "Hz", f"{ARCH2}:60"),
    min_interval=documented(64, "cycle", f"{ISA_OLD} MIN_II"),
    issue=measured(60, "cycle", f"{PROFILES}: three copies of 512 elements follow 465, 482 and 482 ns after another"),
    latency=measured(190, "cycle", f"{PROFILES}: copies end 158 ns after their last element"),
    function_issue=measured(196, "cycle", f"{PROFILES}: exp of 512 elements every 570 to 628 ns"),
    function_latency=measured(
        334, "cycle", f"mean of {DMA_INTRO} timelines (exp takes 295 ns + N / 1.2 GHz) and {PROFILES} (270 ns)"
    ),
    accumulator_read=assumed(64, "cycle", f"as on NeuronCore-v2 ({ARCH1}:492)"),
    table_load=measured(1326, "ns", f"{DMA_INTRO} timelines; {PROFILES} show 1283"),
)

GPSIMD = GpSimdEngine(
    clock=documented(1.2e9, "Hz", f"{ARCH2}:64"),
    min_interval=documented(64, "cycle", f"{ISA_OLD} MIN_II"),
    issue=documented(150, "cycle", f"{ISA_OLD}:630, 5634 iota and affine_select cost 150 + N"),
    latency=assumed(190, "cycle", "as ScalarE: nothing is published"),
    rsqrt=documented(4, _CYCLES, "nki/api/nki.api.shared.rst:261 about four times slower than ScalarE"),
    elementwise=assumed(2, _CYCLES, "not published; eight 16-lane processors serve 128 partitions"),
)

DMA = Dma(
    engines=documented(16, "engine", f"{DMA_INTRO}:7"),
    queues=documented(16, "queue", f"{DMA_INTRO}:29"),
    engine_bandwidth=documented(
        27.2e9, "byte/s", f"{DMA_INTRO}:16; {PROFILES} agree: packets of 4 and 2 KiB follow every 155.5 and 80 ns"
    ),
    read_rate=measured(
        0.85, "ratio", f"{PROFILES}: least squares over 26 loads; {BANDWIDTH}:61-63 says 23e9 are achievable"
    ),
    read_stall=measured(57, "ns", f"{PROFILES}: least squares over 26 loads, whose engines stand still at first"),
    descriptor=measured(5, "ns", f"{PROFILES}: packets of 0.25 to 4 KiB follow every 5 ns + bytes / 27.2e9"),
    descriptor_bytes=measured(4 * KIB, "byte", f"{PROFILES}: no longer data packets"),
    partitions_per_engine=documented(8, "partition", f"{DMA_INTRO}:34"),
    trigger=measured(600, "ns", f"{PROFILES}: SyncE's triggers follow every 590 to 606 ns; {DGE} says about 600"),
    trigger_ring=measured(86, "ns", f"{DMA_INTRO} timeline of a load of 32 KiB"),
    trigger_gpsimd=measured(581, "ns", f"{PROFILES}: GpSimdE's triggers follow every 581 to 586 ns"),
    active_gpsimd=measured(43, "ns", f"{PROFILES}: its DMA_DIRECT2D take 31 to 75 ns"),
    wake_gpsimd=measured(
        1_159, "ns", f"{PROFILES}: stores are triggered 1192 to 1204 ns after their operands, less the semaphore"
    ),
    trigger_lane=measured(
        6.4, "ns", f"{PUBLIC} K0355: transfers of one element every 486 ns; {PROFILES}: of 128 rows every 581 ns"
    ),
    queue_interval=measured(581, "ns", f"{PROFILES}: GpSimdE's transfers follow every 581 ns, SyncE's every 606 ns"),
    start=measured(650, "ns", f"{PROFILES}: from SBUF, first byte 1234 to 1281 ns after the trigger's start"),
    start_indirect=measured(52, "ns", f"{PROFILES}: from SBUF, first byte 625 to 643 ns after GpSimdE's trigger"),
    start_ring=measured(
        813, "ns", f"{DMA_INTRO} timeline: a store's first byte 899 ns after the start of the trigger"
    ),
    stagger=measured(10.7, "ns", f"{PROFILES}: from SBUF, the last engine starts 150 to 182 ns after the first"),
    stagger_read=measured(31, "ns", f"{PROFILES}: from HBM, the last engine starts 180 to 750 ns after the first"),
    read_latency=measured(130, "ns", f"{PROFILES}: first byte of a small load 80 to 150 ns later than of a store"),
    cast_rate=measured(1.0, "ratio", f"{PROFILES}: stores of fp32 rows take 28 ns a row, with or without a cast"),
    turnaround=measured(
        0.0, "ratio", f"{PUBLIC} K0388: 2,258 packets of loads and stores take 399 us, 21 GB/s each, as loads alone"
    ),
    completion=measured(
        354,
        "ns",
        f"{PROFILES}: 24 instructions started 312 to 454 ns after the last byte; {DMA_INTRO}: 305 and 335 ns",
    ),
)

SYNC = Sync(
    semaphore=measured(34, "ns", f"{PROFILES}: between VectorE and ScalarE, and from an engine to itself"),
    program_start=derived(
        6_600, "ns", f"{PROFILES}: the first trigger 13.3 to 13.7 us after the start, less the profiler"
    ),
    gpsimd_start=measured(1_290, "ns", f"{PROFILES}: its first trigger 1.28 to 1.32 us after SyncE's"),
    program_end=measured(1_732, "ns", f"{PROFILES}: 2.08 to 2.10 us after the last byte, less its semaphore"),
    register=measured(20, "ns", f"{PROFILES}: NOP of TensorE takes 13 to 21 ns"),
    register_memory=measured(
        650, "ns", f"{PROFILES}: TENSOR_LOAD takes 472 to 1377 ns; {ISA_OLD}:4806 says 600 cycles for a dynamic start"
    ),
    profiler=derived(6_900, "ns", f"{PROFILES}: total time less the kernel's latency without it, median of four"),
)

LINKS = Links(
    bandwidth=derived(
        128e9, "byte/s", f"{CHIP2}:37 1.28 TB/s per chip with the links to other instances, 1024 GB/s without"
    ),
    efficiency=assumed(0.8, "ratio", "not published; what other fabrics reach"),
    launch=derived(
        4_900, "ns", f"{NCCOM}: 6.2 and 10.0 us for all-gathers of 1 KiB over 32 and 8 ranks, less two steps"
    ),
    step=documented(1_500, "ns", f"{COLLECTIVES}:61 one to two microseconds a hop within an instance"),
    cc_cores=documented(2, "core", f"{OVERLAP}:110 two per physical core, a stream each; 16 per chip ({CHIP2}:48)"),
)

TRN2 = Chip(
    name="trn2",
    title="Trainium2 (NeuronCore-v3)",
    generation=3,
    features=frozenset(
        {
            "pe_transpose",
            "pe_tiles_32",
            "fp8_double_row",
            "parallel_ports",
            "vector_fast_modes",
            "scalar_tensor_copy",
            "scalar_tensor_scalar",
            "scalar_bias_immediate",
            "range_select",
            "gpsimd_rng",
            "gpsimd_nonzero",
            "hwdge",
            "dma_transpose",
            "logical_cores",
        }
    ),
    partitions=documented(128, "partition", f"{ARCH2}:39"),
    cores=documented(8, "core", f"{ARCH2}:15"),
    sbuf=Sbuf(
        bytes_per_partition=documented(224 * KIB, "byte", f"{ARCH2}:39"),
        reserved_bytes_per_partition=documented(
            16 * KIB, "byte", "aws-neuron/nki-library d2ad3a5 core/mlp/mlp_cte/mlp_cte_constants.py:46 scratch of DMA"
        ),
        wide_stride_rate=assumed(0.5, "ratio", f"as on NeuronCore-v2 ({ARCH1}:757-762)"),
    ),
    psum=Psum(
        banks=documented(8, "bank", f"{ARCH2}:39"),
        bank_bytes=documented(2 * KIB, "byte", f"{ARCH2}:39 512 fp32 in each partition"),
    ),
    hbm=Hbm(
        capacity=derived(12 * GIB, "byte", f"{ARCH2}:16 a stack of 24 GiB for two cores"),
        bandwidth=derived(362.5e9, "byte/s", f"{CHIP2}:30 2.9 TB/s for eight cores; profilers state 716e9 for two"),
        alone=measured(716e9, "byte/s", f"{PROFILES} state it, of the stack that two cores share"),
    ),
    tensor=TENSOR,
    vector=VECTOR,
    scalar=SCALAR,
    gpsimd=GPSIMD,
    dma=DMA,
    sync=SYNC,
    links=LINKS,
)
