# SPDX-License-Identifier: Apache-2.0
"""What work costs: the rules that turn `isa.Work` and the chip's figures into picoseconds.

Shape letters: N elements streamed per partition, M stationary columns.

Compute engines: an instruction streams for so many cycles, occupies its engine a little longer, and its result is
usable after the pipeline has drained. The rules per cost class are those of the vendor's instruction pages, cited
with the figures; see `isa.costs` for what the fields of Work mean in each class.

DMA: a row of the SBUF side is one descriptor or several, and eight rows share one of the sixteen engines. Their time
is per descriptor and per byte, and no faster than the core's share of HBM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trnlab.chips.spec import Chip, EngineSpec, Figure
from trnlab.isa.base import Engine, Work
from trnlab.isa.elementwise.tensor_scalar import RSQRT
from trnlab.sim.timing.collective import collective_time
from trnlab.units import PS_PER_NS, PS_PER_S, cycles_to_ps

HALF = ("bfloat16", "float16")  # of `Work.dtype` for 16-bit modes
_WITH_SCALAR = ("tensor_scalar", "tensor_scalar_reduce", "scalar_tensor_tensor")
FP8 = ("float8_e4m3", "float8_e5m2", "float8_e4m3fn")


class InstructionCost(NamedTuple):
    """Cost of an instruction of a compute engine, in picoseconds.

    busy: until the engine takes the next instruction. latency: from then until the result is usable. exposed: added
    to busy when the PE array was idle (loading weights is otherwise hidden). table: ScalarE table set, 0 for none.
    slow: busy while the PE array runs at half rate.
    """

    busy: int
    latency: int
    exposed: int = 0
    table: int = 0
    slow: int = 0


class DmaCost(NamedTuple):
    """Cost of a transfer, in picoseconds.

    trigger: the issuing engine is busy. start: from then to the first byte. share: one DMA engine is busy. lanes: how
    many of them take part. stagger: each of them starts so much after the one before. interval: at least from the
    transfer before in its queue. wake: more than a semaphore from when its operands are ready to the trigger. turn:
    from the last byte of a transfer that went the other way to the first of this one.
    """

    trigger: int
    start: int
    share: int
    lanes: int
    stagger: int
    interval: int
    wake: int
    turn: int


def work_cost(work: Work, chip: Chip) -> InstructionCost:
    """Cost of an instruction of a compute engine. Raises KeyError for a cost class without a rule."""
    return _CLASSES[work.kind.partition(".")[0]](work, chip)


def dma_cost(work: Work, chip: Chip, engine: Engine, *, from_hbm: bool, to_hbm: bool) -> DmaCost:
    """Cost of a transfer issued by `engine`."""
    dma, hbm_sides = chip.dma, from_hbm + to_hbm
    lanes, descriptors, size = _spread(work, chip, hbm_sides)
    rate = dma.engine_bandwidth.value * (dma.read_rate.value if from_hbm else 1.0)
    if hbm_sides:
        rate = min(rate, chip.hbm.bandwidth.value / dma.engines.value / hbm_sides)
    if work.dtype == "mixed":
        rate *= dma.cast_rate.value
    rate *= _DMA_RATES[work.kind](hbm_sides) if work.kind in _DMA_RATES else 1.0
    share = descriptors * (dma.descriptor.value * PS_PER_NS + size * PS_PER_S / rate)
    share += dma.read_stall.value * PS_PER_NS if from_hbm else 0
    trigger, start = _issue(work, chip, engine)
    fewer = (dma.engines.value - lanes) * dma.trigger_lane.value
    trigger -= 0 if work.kind == "dma.ring" else fewer
    start += dma.read_latency.value if from_hbm else 0
    stagger = dma.stagger_read if from_hbm else dma.stagger
    interval = 0 if work.kind == "dma.ring" else _ns(dma.queue_interval.value - fewer)
    wake = dma.wake_gpsimd.value if by_software(work, engine) else 0
    turn = share * dma.turnaround.value if hbm_sides == 1 else 0.0
    return DmaCost(
        _ns(trigger), _ns(start), round(share), lanes, _ns(stagger.value), interval, _ns(wake), round(turn)
    )


def _issue(work: Work, chip: Chip, engine: Engine) -> tuple[float, float]:
    """How long the sequencer is busy, and from then to the first byte, by who makes the descriptors, in ns."""
    dma = chip.dma
    if work.kind == "dma.ring":
        return dma.trigger_ring.value, dma.start_ring.value
    if by_software(work, engine):
        return dma.trigger_gpsimd.value, dma.start_indirect.value
    return dma.trigger.value, dma.start.value


def by_software(work: Work, engine: Engine) -> bool:
    """Whether GpSimdE's software makes the descriptors."""
    return work.kind != "dma.ring" and (engine is Engine.GPSIMD or work.kind == "dma.gather")


def _spread(work: Work, chip: Chip, hbm_sides: int) -> tuple[int, int, float]:
    """Engines that serve a transfer, descriptors of each, bytes of a descriptor."""
    dma = chip.dma
    engines, longest = int(dma.engines.value), int(dma.descriptor_bytes.value)
    if work.kind == "dma.transpose" and not chip.has("dma_transpose"):
        longest = work.itemsize  # every element goes its own way
    pieces = -(-work.n // longest)  # a long run is cut
    descriptors, size = work.m * pieces, work.n / pieces
    if hbm_sides == 2:
        lanes = min(engines, descriptors)
        return lanes, -(-descriptors // lanes), size
    per_engine = int(dma.partitions_per_engine.value)
    rows = min(work.k, chip.num_partitions)
    lanes = min(engines, -(-rows // per_engine))
    return lanes, -(-descriptors // rows) * min(rows, per_engine), size


def _engine_cost(spec: EngineSpec, streamed: float, *, issue: float, latency: float) -> InstructionCost:
    """Cost of streaming for so many cycles."""
    hz = spec.clock.value
    busy = cycles_to_ps(max(streamed + issue, spec.min_interval.value), hz)
    return InstructionCost(busy, max(cycles_to_ps(streamed + latency, hz) - busy, 0))


def _tensor(work: Work, chip: Chip) -> InstructionCost:
    pe = chip.tensor
    passes = (pe.transpose_passes if work.kind == "pe.transpose" else pe.passes).of(work.dtype).value
    if work.kind == "pe.matmul_onezero":
        passes = max(passes / 2, 1.0)  # nki.isa.nc_matmul: twice as fast in float32
    instructions = max(1.0, passes / 2)  # the array does two passes per instruction pair
    streamed = max(work.n, pe.min_interval.value) * passes
    load = work.m / pe.weight_columns_per_cycle.value * passes
    issue = (pe.issue32 if work.dtype == "float32" else pe.issue).value * instructions
    # As on other engines, the least interval has room for what an instruction takes beyond its columns.
    busy = cycles_to_ps(max(work.n * passes + issue, streamed, load), pe.clock.value)
    slow = max(cycles_to_ps(2 * max(streamed, load), pe.clock.value), busy)  # the gaps between instructions vanish
    usable = cycles_to_ps(streamed + pe.latency.value, pe.clock.value)
    if work.kind == "pe.transpose" and chip.has("background_transpose"):
        busy //= 2  # beside another matmul or transpose: trainium3_arch.rst:148-150 says almost twice as fast
        slow //= 2
    return InstructionCost(busy, max(usable - busy, 0), exposed=cycles_to_ps(load, pe.clock.value), slow=slow)


def _vector(work: Work, chip: Chip) -> InstructionCost:
    vector = chip.vector
    name = work.kind.partition(".")[2]
    rule = _VECTOR_RATES.get(name)
    rate = rule(work, chip) if rule else _vector_mode(work, chip, _VECTOR_MODES.get(name, _copy_mode))
    streamed = work.n * rate * _stride_factor(work, chip)
    if name == "tensor_scalar_reduce":
        streamed += vector.min_interval.value  # isa_docs.md:4293
    reading = vector.scalar_operand.value if name in _WITH_SCALAR else 0
    return _engine_cost(vector, streamed, issue=vector.issue.value + reading, latency=vector.latency.value + reading)


def _scalar(work: Work, chip: Chip) -> InstructionCost:
    scalar = chip.scalar
    table = work.m if work.kind.startswith("scalar.activat") else 0
    # Without an instruction of its own, scale and shift are an activation by the identity.
    activates = table or (work.kind == "scalar.tensor_scalar" and not chip.has("scalar_tensor_scalar"))
    issue, latency = (scalar.function_issue, scalar.function_latency) if activates else (scalar.issue, scalar.latency)
    copies = work.kind in ("scalar.tensor_copy", "scalar.tensor_scalar")
    fast = copies and chip.has("scalar_fast_modes") and _narrow(work, chip)
    streamed = work.n * _stride_factor(work, chip) * (0.5 if fast else 1.0)  # trainium3_arch.rst:56, 218
    if work.kind in ("scalar.activation_reduce", "scalar.activate2_reduce"):
        streamed += scalar.accumulator_read.value
    return _engine_cost(scalar, streamed, issue=issue.value, latency=latency.value)._replace(table=table)


def _gpsimd(work: Work, chip: Chip) -> InstructionCost:
    gpsimd = chip.gpsimd
    if work.kind in _GPSIMD_CYCLES:
        cycles = _GPSIMD_CYCLES[work.kind](work, chip)
        return _engine_cost(gpsimd, cycles, issue=gpsimd.issue.value, latency=gpsimd.latency.value)
    rate = 1.0 if work.kind in ("gpsimd.iota", "gpsimd.affine_select") else gpsimd.elementwise.value
    if work.kind == "gpsimd.tensor_scalar" and work.m == RSQRT:
        rate = gpsimd.rsqrt.value
    return _engine_cost(gpsimd, work.n * rate, issue=gpsimd.issue.value, latency=gpsimd.latency.value)


def _sequencer(work: Work, chip: Chip) -> InstructionCost:
    """Registers and barriers: no data path of an engine is at work."""
    sync = chip.sync
    if work.kind == "sequencer.barrier":
        return InstructionCost(_ns(2 * sync.semaphore.value), 0)  # there and back
    figure = sync.register if work.kind == "sequencer.register" else sync.register_memory
    return InstructionCost(_ns(figure.value), 0)


def in_fast_mode(work: Work, chip: Chip) -> bool:
    """Whether VectorE runs one of its 16-bit modes."""
    name = work.kind.partition(".")[2]
    if name in _VECTOR_RATES or not chip.has("vector_fast_modes"):
        return False
    return _VECTOR_MODES.get(name, _copy_mode)(work, chip).endswith(("16", "16_strided"))


def _narrow(work: Work, chip: Chip) -> bool:
    """Whether the streamed formats run in the 16-bit modes."""
    return work.dtype in HALF or (work.dtype in FP8 and chip.has("fp8_fast_modes"))


def _stride_factor(work: Work, chip: Chip) -> float:
    return 1 / chip.sbuf.wide_stride_rate.value if work.wide_stride else 1.0


def _vector_mode(work: Work, chip: Chip, mode: Callable[[Work, Chip], str]) -> float:
    """Cycles per element in the mode of VectorE that a rule chooses."""
    figure = getattr(chip.vector, mode(work, chip))
    assert isinstance(figure, Figure)
    return figure.value


def _copy_mode(work: Work, chip: Chip) -> str:
    """One input stream: tensor_copy, tensor_scalar and what is like them."""
    if _narrow(work, chip) and not (work.strided and work.psum):
        return "copy16_strided" if work.strided or work.psum else "copy16"
    plain = work.itemsize == 4 and work.dtype != "mixed" and not work.psum and not work.strided
    return "copy_sbuf32" if plain else "copy"


def _two_input_mode(work: Work, chip: Chip) -> str:
    """Two streams; a source in PSUM has a port of its own. m = 1: an operator with a 16-bit mode everywhere."""
    any_operator = work.kind == "vector.tensor_tensor" and chip.has("vector_fast_modes")
    if work.psum & ~1:
        return "two_inputs_psum"
    if work.dtype in HALF and (work.m == 1 or any_operator) and not work.strided and not work.psum:
        return "two_inputs16"
    return "two_inputs"


def _select_mode(work: Work, chip: Chip) -> str:
    return "two_inputs_psum" if work.psum & ~1 else "two_inputs"


def _reduce_mode(work: Work, chip: Chip) -> str:
    return "reduce16" if work.dtype == "bfloat16" and work.m == 1 else "reduce"


def _memset_mode(work: Work, chip: Chip) -> str:
    return "memset16" if work.m == 1 and work.dtype in HALF else "copy"


def _ns(value: float) -> int:
    return round(value * PS_PER_NS)


def _one_input(work: Work, chip: Chip) -> float:
    return chip.vector.copy.value


def _four_at_once(work: Work, chip: Chip) -> float:
    """What trainium3_arch.rst:172, 179, 206 gives as four elements a cycle: the fastest mode of a copy."""
    return chip.vector.copy16.value


def _local_gather(work: Work, chip: Chip) -> float:
    """isa_docs.md:5823, without the 150 cycles that every instruction of GpSimd pays."""
    overlap = (28 + 4 * work.m) / (4 * work.m) / min(4 / work.itemsize, work.m)
    return work.n * work.m / overlap


def _n_gather(work: Work, chip: Chip) -> float:
    groups = -(-work.n // 512)  # nki.isa.nc_n_gather: one group of instructions each
    return work.n * chip.gpsimd.elementwise.value + (groups - 1) * chip.gpsimd.issue.value


_GPSIMD_CYCLES: dict[str, Callable[[Work, Chip], float]] = {
    "gpsimd.local_gather": _local_gather,
    "gpsimd.nc_n_gather": _n_gather,
    "gpsimd.topk": lambda work, chip: 4 * work.n + work.m,  # nki.isa.topk
}
# Share of the copy rate that is left: trainium2_arch.rst:321, 340 and trainium3_arch.rst:270. By sides in HBM.
_DMA_RATES: dict[str, Callable[[int], float]] = {
    "dma.transpose": lambda hbm_sides: 0.9 if hbm_sides else 0.5,
    "dma.compute": lambda hbm_sides: 0.5,
}
_VECTOR_MODES: dict[str, Callable[[Work, Chip], str]] = {
    "memset": _memset_mode,
    "tensor_tensor": _two_input_mode,
    "scalar_tensor_tensor": _two_input_mode,
    "select_reduce": _select_mode,
    "tensor_copy_predicated": _select_mode,
    "tensor_reduce": _reduce_mode,
}
_VECTOR_RATES: dict[str, Callable[[Work, Chip], float]] = {
    "reciprocal": lambda work, chip: chip.vector.reciprocal.value,
    "tensor_tensor_scan": lambda work, chip: chip.vector.two_inputs.value,
    "bn_aggr": lambda work, chip: 13 / 3,  # isa_docs.md:4693
    "exponential": _four_at_once,
    "quantize_mx": _four_at_once,
    "rand2": _four_at_once,
    **dict.fromkeys(
        (
            "nc_transpose",
            "dropout",
            "rng",
            "range_select",
            "tensor_scalar_cumulative",
            "max8",
            "nc_find_index8",
            "nc_match_replace8",
            "bn_stats",
            "nc_stream_shuffle",
            "set_rng_seed",
            "rand_set_state",
            "rand_get_state",
        ),
        _one_input,
    ),
}
_CLASSES: dict[str, Callable[[Work, Chip], InstructionCost]] = {
    "pe": _tensor,
    "vector": _vector,
    "scalar": _scalar,
    "gpsimd": _gpsimd,
    "sequencer": _sequencer,
    "collective": lambda work, chip: InstructionCost(*collective_time(work, chip)),
}
