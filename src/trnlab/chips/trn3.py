# SPDX-License-Identifier: Apache-2.0
"""NeuronCore-v4: the core of Trainium3. No profile of one is public, so what nothing states is taken from v3."""

from __future__ import annotations

from dataclasses import replace

from trnlab.chips import trn2
from trnlab.chips.sources import (
    ARCH1,
    ARCH3,
    BANDWIDTH,
    CHIP3,
    DGE,
    DMA_INTRO,
    ISA_OLD,
    assumed,
    derived,
    documented,
    per_dtype,
)
from trnlab.chips.spec import Chip, Hbm, Psum, Sbuf, ScalarEngine, VectorEngine
from trnlab.units import GIB, KIB

_CYCLES = "cycle/element"
_V3 = "as on NeuronCore-v3"

TENSOR = replace(
    trn2.TENSOR,
    clock=documented(2.4e9, "Hz", f"{ARCH3}:49"),
    min_interval=assumed(64, "cycle", f"as on NeuronCore-v2 ({ARCH1}:266-268)"),
    weight_columns_per_cycle=assumed(4, "column/cycle", f"as on NeuronCore-v2 ({ARCH1}:298)"),
    issue=assumed(7, "cycle", f"{_V3}, whose clock it has"),
    issue32=assumed(7, "cycle", f"{_V3}, whose clock it has"),
    latency=assumed(392, "cycle", f"{_V3}, whose clock it has"),
    rate_window=assumed(8192 / 2.4, "ns", f"{_V3}, whose clock it has"),
    full_rate_above=assumed(0.375, "ratio", _V3),
    half_rate_latency=assumed(492, "cycle", _V3),
    passes=per_dtype(
        documented(4, "pass", f"{ARCH3}:68 fp32 at a quarter of the rate"),
        derived(1, "pass", f"{ARCH3}:49, 68: 79e12 FLOP/s are one column of 128 x 128 a cycle at 2.4 GHz"),
        assumed(1, "pass", _V3),
    ),
    transpose_passes=per_dtype(assumed(2, "pass", _V3), assumed(1, "pass", _V3)),
    peak_flops=per_dtype(
        documented(20e12, "FLOP/s", f"{ARCH3}:68"),
        documented(79e12, "FLOP/s", f"{ARCH3}:68"),
        derived(158e12, "FLOP/s", "nki.isa.nc_matmul keeps two rows in one pass; the MX formats reach 315e12"),
    ),
    peak_flops_mx=documented(315e12, "FLOP/s", f"{ARCH3}:68"),
)

VECTOR = VectorEngine(
    clock=documented(1.2e9, "Hz", f"{ARCH3}:53"),
    min_interval=assumed(64, "cycle", f"as on NeuronCore-v2 ({ISA_OLD} MIN_II)"),
    issue=assumed(58, "cycle", _V3),
    latency=assumed(147, "cycle", _V3),
    copy=assumed(1, _CYCLES, f"as on NeuronCore-v2 ({ISA_OLD}:4754)"),
    copy_sbuf32=assumed(0.5, _CYCLES, f"{_V3}; {ARCH3}:52 states the same width"),
    copy16=documented(0.25, _CYCLES, f"{ARCH3}:52 512 elements a cycle, FP8 among them"),
    copy16_strided=assumed(0.5, _CYCLES, _V3),
    memset16=assumed(0.5, _CYCLES, f"as on NeuronCore-v2 ({ISA_OLD}:595-601)"),
    two_inputs=assumed(2, _CYCLES, f"as on NeuronCore-v2 ({ISA_OLD}:3888-3903)"),
    two_inputs_psum=assumed(1, _CYCLES, _V3),
    two_inputs16=assumed(0.5, _CYCLES, _V3),
    reduce=assumed(1, _CYCLES, f"as on NeuronCore-v2 ({ISA_OLD}:4222-4233)"),
    reduce16=assumed(0.5, _CYCLES, f"as on NeuronCore-v2 ({ISA_OLD}:4222-4233)"),
    reciprocal=assumed(8, _CYCLES, f"as on NeuronCore-v2 ({ISA_OLD}:4544)"),
    scalar_operand=assumed(60, "cycle", _V3),
)

SCALAR = ScalarEngine(
    clock=documented(1.2e9, "Hz", f"{ARCH3}:57"),
    min_interval=assumed(64, "cycle", f"as on NeuronCore-v2 ({ISA_OLD} MIN_II)"),
    issue=assumed(60, "cycle", f"{_V3}, whose clock it has"),
    latency=assumed(190, "cycle", f"{_V3}, whose clock it has"),
    function_issue=assumed(196, "cycle", f"{_V3}, whose clock it has"),
    function_latency=assumed(334, "cycle", f"{_V3}, whose clock it has"),
    accumulator_read=assumed(64, "cycle", f"as on NeuronCore-v2 ({ARCH1}:492)"),
    table_load=assumed(1326, "ns", _V3),
)

GPSIMD = replace(
    trn2.GPSIMD,
    clock=documented(1.2e9, "Hz", f"{ARCH3}:61"),
    min_interval=assumed(64, "cycle", f"as on NeuronCore-v2 ({ISA_OLD} MIN_II)"),
    issue=assumed(150, "cycle", f"as on NeuronCore-v2 ({ISA_OLD}:630, 5634)"),
    elementwise=documented(1, _CYCLES, f"{ARCH3}:60 128 elements a cycle of every format"),
)

DMA = replace(
    trn2.DMA,
    engines=documented(16, "engine", f"{DMA_INTRO}:7"),
    engine_bandwidth=documented(38.4e9, "byte/s", f"{DMA_INTRO}:16"),
    read_rate=derived(0.86, "ratio", f"{BANDWIDTH}:61-63 33e9 achievable"),
    read_stall=assumed(57, "ns", _V3),
    descriptor=assumed(5, "ns", _V3),
    descriptor_bytes=assumed(4 * KIB, "byte", _V3),
    trigger=assumed(600, "ns", f"{_V3}; {DGE} says about 600"),
    trigger_gpsimd=assumed(581, "ns", _V3),
    active_gpsimd=assumed(43, "ns", _V3),
    wake_gpsimd=assumed(1_159, "ns", _V3),
    trigger_ring=assumed(86, "ns", _V3),
    queue_interval=assumed(581, "ns", _V3),
    start=assumed(650, "ns", _V3),
    start_indirect=assumed(52, "ns", _V3),
    start_ring=assumed(813, "ns", _V3),
    stagger=assumed(10.7, "ns", _V3),
    stagger_read=assumed(31, "ns", _V3),
    read_latency=assumed(130, "ns", _V3),
    cast_rate=assumed(1.0, "ratio", f"{ARCH3}:264-272 arithmetic at the full rate"),
    turnaround=assumed(0.0, "ratio", _V3),
    completion=assumed(354, "ns", f"{_V3} ({DMA_INTRO})"),
)

SYNC = replace(
    trn2.SYNC,
    semaphore=assumed(34, "ns", _V3),
    program_start=assumed(6_600, "ns", _V3),
    gpsimd_start=assumed(1_290, "ns", _V3),
    program_end=assumed(1_732, "ns", _V3),
    register=assumed(20, "ns", _V3),
    register_memory=assumed(650, "ns", _V3),
    profiler=assumed(6_900, "ns", _V3),
)

LINKS = replace(
    trn2.LINKS,
    bandwidth=derived(320e9, "byte/s", f"{CHIP3}:41 2.56 TB/s per chip, as over four links; it is a switched fabric"),
    cc_cores=derived(2, "core", f"{CHIP3}:47 16 per chip of eight cores"),
)

TRN3 = Chip(
    name="trn3",
    title="Trainium3 (NeuronCore-v4)",
    generation=4,
    features=trn2.TRN2.features
    | {
        "long_matmul",
        "bf16_psum",
        "matmul_onto_any",
        "fp8_e4m3fn",
        "mx_formats",
        "tensor_indirection",
        "background_transpose",
        "fp8_fast_modes",
        "scalar_fast_modes",
        "scalar_alu",
        "activate2",
        "vector_exponential",
        "vector_xorwow",
        "alu_abs_max_min",
        "alu_square_relu",
        "dma_priority",
    },
    partitions=documented(128, "partition", f"{ARCH3}:36"),
    cores=documented(8, "core", f"{ARCH3}:15"),
    sbuf=Sbuf(
        bytes_per_partition=documented(256 * KIB, "byte", f"{ARCH3}:36 32 MiB"),
        reserved_bytes_per_partition=assumed(16 * KIB, "byte", "as on Trainium1"),
        wide_stride_rate=assumed(0.5, "ratio", f"as on NeuronCore-v2 ({ARCH1}:757-762)"),
    ),
    psum=Psum(
        banks=documented(8, "bank", "nki.isa.nc_matmul: eight banks are all of PSUM"),
        bank_bytes=derived(2 * KIB, "byte", f"{ARCH3}:36 2 MiB in 128 partitions and eight banks"),
    ),
    hbm=Hbm(
        capacity=derived(18 * GIB, "byte", f"{ARCH3}:16 144 GiB for eight cores"),
        bandwidth=derived(587.5e9, "byte/s", f"{ARCH3}:16 4.7 TB/s for eight cores; {CHIP3} says 4.9"),
        alone=derived(1175e9, "byte/s", f"{ARCH3}:16 4.7 TB/s in four stacks"),
    ),
    tensor=TENSOR,
    vector=VECTOR,
    scalar=SCALAR,
    gpsimd=GPSIMD,
    dma=DMA,
    sync=SYNC,
    links=LINKS,
)
