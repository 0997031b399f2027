# SPDX-License-Identifier: Apache-2.0
"""NeuronCore-v2: the core of Trainium1 and Inferentia2."""

from __future__ import annotations

from dataclasses import replace

from trnlab.chips.sources import (
    ARCH1,
    BANDWIDTH,
    CHIP1,
    COLLECTIVES,
    CONVOLUTION,
    DMA_INTRO,
    ISA_OLD,
    MAMBA,
    NCCOM,
    PERF,
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

_ACCESS = documented(60, "cycle", f"{ARCH1}:773 static overhead of a memory access request")
_CYCLES = "cycle/element"

TENSOR = TensorEngine(
    clock=documented(2.8e9, "Hz", f"{ARCH1}:67"),
    min_interval=documented(64, "cycle", f"{ARCH1}:266-268 a matmul takes max(N, 64) cycles"),
    issue=documented(
        60,
        "cycle",
        f"{ARCH1}:773 static overhead of a memory access request, of each pass; {PUBLIC} K0006 says 68, K0040 69",
    ),
    issue32=derived(120, "cycle", f"of two passes, as issue; {PUBLIC} K0018 says 124, K0040 138, K0049 196"),
    latency=measured(440, "cycle", f"{PERF} fig18 and fig20: 219 and 188 ns for matmuls of 128 columns"),
    weight_columns_per_cycle=documented(4, "column/cycle", f"{ARCH1}:298 LoadStationary up to 4x faster"),
    rate_window=assumed(8192 / 2.8, "ns", "as many cycles as on NeuronCore-v3"),
    full_rate_above=assumed(0.375, "ratio", "as on NeuronCore-v3"),
    half_rate_latency=assumed(540, "cycle", "a quarter more, as on NeuronCore-v3"),
    passes=per_dtype(
        documented(4, "pass", f"{ARCH1}:103 fp32 at a quarter of the rate"),
        documented(1, "pass", f"{ARCH1}:266-268"),
    ),
    transpose_passes=per_dtype(
        derived(4, "pass", f"{ARCH1}:188-190 a transpose is a matmul with the identity"),
        derived(1, "pass", f"{ARCH1}:188-190 a transpose is a matmul with the identity"),
    ),
    peak_flops=per_dtype(
        documented(23e12, "FLOP/s", f"{ARCH1}:103"),
        documented(92e12, "FLOP/s", f"{ARCH1}:103"),
    ),
    peak_flops_mx=derived(92e12, "FLOP/s", "no MX formats: as FP8"),
)

VECTOR = VectorEngine(
    clock=documented(1.12e9, "Hz", f"{ARCH1}:69"),
    min_interval=measured(
        42, "cycle", f"{CONVOLUTION}: 131,072 instructions of 3 elements in 4.955 ms, though {ISA_OLD} says about 64"
    ),
    issue=measured(
        39, "cycle", f"{CONVOLUTION}: 131,072 instructions of 3 elements in 4.955 ms, 2,048 of 192 in 0.461 ms"
    ),
    latency=measured(385, "cycle", f"{PERF} fig17: fp32 tensor_tensor of 8192 takes 14.97 us"),
    copy=documented(1, _CYCLES, f"{ISA_OLD}:4754"),
    copy_sbuf32=documented(1, _CYCLES, f"{ISA_OLD}:4754"),
    copy16=documented(1, _CYCLES, f"{ISA_OLD}:4754"),
    copy16_strided=documented(1, _CYCLES, f"{ISA_OLD}:4754"),
    memset16=documented(0.5, _CYCLES, f"{ISA_OLD}:595-601"),
    two_inputs=documented(2, _CYCLES, f"{ISA_OLD}:3888-3903"),
    two_inputs_psum=documented(1, _CYCLES, f"{ISA_OLD}:3888-3903"),
    two_inputs16=documented(1, _CYCLES, f"{ISA_OLD}:3888-3903"),
    reduce=documented(1, _CYCLES, f"{ISA_OLD}:4222-4233"),
    reduce16=documented(0.5, _CYCLES, f"{ISA_OLD}:4222-4233 bf16 in and out"),
    reciprocal=measured(
        2.66,
        _CYCLES,
        f"{PUBLIC} K0052: VectorE is active 985 us for 448 reciprocals and products; {ISA_OLD}:4544 says 8",
    ),
    scalar_operand=_ACCESS,
)

SCALAR = ScalarEngine(
    clock=documented(1.4e9, "Hz", f"{ARCH1}:71"),
    min_interval=documented(64, "cycle", f"{ISA_OLD} MIN_II"),
    issue=_ACCESS,
    latency=measured(222, "cycle", f"{PERF} fig16: an ACTIVATE of one element takes 159 ns"),
    function_issue=documented(100, "cycle", f"{ARCH1}:402 about 100 cycles of static overhead"),
    function_latency=measured(222, "cycle", f"{PERF} fig16: an ACTIVATE of one element takes 159 ns"),
    accumulator_read=documented(64, "cycle", f"{ARCH1}:492"),
    table_load=measured(368, "ns", "neuron-profile-instruction-details.png, the chip is not named"),
)

GPSIMD = GpSimdEngine(
    clock=documented(1.4e9, "Hz", f"{ARCH1}:73"),
    min_interval=documented(64, "cycle", f"{ISA_OLD} MIN_II"),
    issue=documented(150, "cycle", f"{ISA_OLD}:630, 5634 iota and affine_select cost 150 + N"),
    latency=assumed(222, "cycle", "as ScalarE: nothing is published"),
    rsqrt=documented(4, _CYCLES, "nki/api/nki.api.shared.rst:261 about four times slower than ScalarE"),
    elementwise=assumed(2, _CYCLES, "not published; eight 16-lane processors serve 128 partitions"),
)

DMA = Dma(
    engines=documented(16, "engine", f"{ARCH1}:613"),
    queues=documented(16, "queue", f"{DMA_INTRO}:29"),
    engine_bandwidth=documented(17e9, "byte/s", f"{BANDWIDTH}:61-63 achievable; the links could do 27.2e9"),
    read_rate=derived(1.0, "ratio", f"the achievable bandwidth of {BANDWIDTH}:61-63 is that of loads"),
    read_stall=derived(0, "ns", f"the achievable bandwidth of {BANDWIDTH}:61-63 contains it"),
    descriptor=assumed(5, "ns", "as measured on Trainium2"),
    descriptor_bytes=documented(
        4 * KIB, "byte", "neuron-runtime/explore/compute-comm-overlap.rst:83 packet of a ring"
    ),
    partitions_per_engine=documented(8, "partition", f"{DMA_INTRO}:34"),
    trigger=assumed(
        86, "ns", f"descriptors lie ready in a ring; {DMA_INTRO} shows 86 ns for such a trigger on Trainium2"
    ),
    trigger_gpsimd=assumed(86, "ns", "as the other engines"),
    active_gpsimd=assumed(43, "ns", "as on Trainium2"),
    wake_gpsimd=assumed(0, "ns", "its part of dma.start_indirect is not known"),
    trigger_ring=assumed(86, "ns", f"as on Trainium2 ({DMA_INTRO} timeline)"),
    trigger_lane=derived(0, "ns", "descriptors lie ready in a ring"),
    queue_interval=measured(
        330,
        "ns",
        f"{PUBLIC} K0366, K0367: 357 and 310 ns a transfer; K0004, if its loads were not joined, at most 320",
    ),
    stagger=assumed(10.7, "ns", "as on Trainium2"),
    stagger_read=assumed(31, "ns", "as on Trainium2"),
    read_latency=assumed(130, "ns", "as on Trainium2"),
    cast_rate=assumed(1.0, "ratio", "as measured on NeuronCore-v3"),
    turnaround=measured(
        0.5,
        "ratio",
        f"{PUBLIC} that load and store at a time: K0015 and K0016 say 0.54, K0052 0.63, K0048 0.14",
    ),
    start=derived(1084, "ns", f"{BANDWIDTH}:39-43 about 1300 ns from semaphore to data, less trigger and reading"),
    start_indirect=assumed(
        1214, "ns", "software makes the descriptors; its time is not published for this generation"
    ),
    start_ring=derived(
        1084, "ns", f"{BANDWIDTH}:39-43 about 1300 ns from semaphore to data, less trigger and reading"
    ),
    completion=measured(300, "ns", f"{DMA_INTRO} timeline, on Trainium2"),
)

SYNC = Sync(
    semaphore=measured(30, "ns", f"{PERF} fig16: one dependent ACTIVATE every 189 ns, each 159 ns long"),
    program_start=derived(
        10_100, "ns", f"{MAMBA} profile: 17 us of set-up, less what the profiler takes on Trainium2"
    ),
    gpsimd_start=assumed(1_290, "ns", "as on Trainium2"),
    program_end=measured(5_000, "ns", f"{MAMBA} profile: after the last"),
    register=assumed(20, "ns", "as on Trainium2"),
    register_memory=documented(536, "ns", f"{ISA_OLD}:4806 600 cycles of VectorE for a dynamic start"),
    profiler=measured(0, "ns", f"{PUBLIC} K0371 and K0372: one kernel, 29 us under the profiler, 30 us without"),
)

LINKS = Links(
    bandwidth=derived(48e9, "byte/s", f"{CHIP1}:58 384 GB/s per chip, over four links in both directions"),
    efficiency=assumed(0.8, "ratio", "not published; what other fabrics reach"),
    launch=derived(
        4_900, "ns", f"{NCCOM}: 6.2 and 10.0 us for all-gathers of 1 KiB over 32 and 8 ranks, less two steps"
    ),
    step=documented(1_500, "ns", f"{COLLECTIVES}:61 one to two microseconds a hop within an instance"),
    cc_cores=derived(3, "core", f"{ARCH1}:23 6 per chip of two cores"),
)

TRN1 = Chip(
    name="trn1",
    title="Trainium1 (NeuronCore-v2)",
    generation=2,
    features=frozenset(),
    partitions=documented(128, "partition", f"{ARCH1}:76"),
    cores=documented(2, "core", f"{ARCH1}:20"),
    sbuf=Sbuf(
        bytes_per_partition=documented(192 * KIB, "byte", f"{ARCH1}:76"),
        reserved_bytes_per_partition=measured(16 * KIB, "byte", "architecture.md of ucb-bar/autocomp, trn1-nki1:9"),
        wide_stride_rate=documented(0.5, "ratio", f"{ARCH1}:757-762"),
    ),
    psum=Psum(
        banks=documented(8, "bank", f"{ARCH1}:790"),
        bank_bytes=documented(2 * KIB, "byte", f"{ARCH1}:790 512 fp32 in each partition"),
    ),
    hbm=Hbm(
        capacity=derived(16 * GIB, "byte", f"{ARCH1}:21 32 GiB for two cores"),
        bandwidth=derived(410e9, "byte/s", f"{ARCH1}:21 820 GB/s for two cores"),
        alone=derived(410e9, "byte/s", f"{ARCH1}:21 two stacks for two cores"),
    ),
    tensor=TENSOR,
    vector=VECTOR,
    scalar=SCALAR,
    gpsimd=GPSIMD,
    dma=DMA,
    sync=SYNC,
    links=LINKS,
)

INF2 = replace(
    TRN1,
    name="inf2",
    title="Inferentia2 (NeuronCore-v2)",
)
