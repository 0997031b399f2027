# SPDX-License-Identifier: Apache-2.0
"""What the calibration profiles, the four dumps of 512 keys, say of the figures of Trainium2 that cite them.

    trnlab validate --sources DIR --readings

Each reading is a list of values in the unit of its figure. `chips/trn2.py` cites them; a test holds every figure to
what was recorded of its reading. Times in the dumps are whole nanoseconds from the start of the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from trnlab import chips
from trnlab.documents import Document, Table
from trnlab.files import write_atomic
from trnlab.profile.vendor import CONTROL, size_of
from trnlab.units import PS_PER_NS
from trnlab.validation.anchors import Split
from trnlab.validation.sources.catalogue import load
from trnlab.validation.sources.checkout import profile_of
from trnlab.validation.sources.observed import Transfer, half_rate, transfers_of

PE, VECTOR, SCALAR, DMA_RATE = 2.4, 0.96, 1.2, 27.2  # clocks in cycles a nanosecond; bytes a nanosecond, documented
BACK_TO_BACK = 1.15  # an interval is one between neighbours if it is at most this much longer than the streaming
LANES = 16
_PSUM = re.compile(r"src=\w+@0x2[0-9a-f]{6}\b")
_SOURCE = re.compile(r"src_pattern=(\S+)")
Instruction = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FigureReadings:
    """Values of one figure in its unit, in the order of the dumps, without those outside of the middle 90 %."""

    figure: str
    about: str
    count: int
    low: float
    median: float
    high: float


class Dump:
    """A profile: its instructions by engine in order of their start, its transfers, its half-rate windows."""

    def __init__(self, content: Mapping[str, Any], latency: float) -> None:
        self.content, self.latency = content, latency  # in nanoseconds
        self.rows = sorted(content["instruction"], key=lambda r: r["timestamp"])
        self.total = content["summary"][0]["total_time"] * 1e9
        packets = [p for p in content["dma"] if p["queue_type"] != "instruction"]
        self.transfers = transfers_of(packets)
        self.slow = half_rate(content)

    def named(self, engine: str, *opcodes: str) -> list[Instruction]:
        """Instructions of an engine, or of all where it is "", with one of some opcodes."""
        return [r for r in self.rows if r["subgroup"] in (engine or r["subgroup"]) and r["opcode"] in opcodes]

    def at_half_rate(self, row: Instruction) -> bool:
        """Whether an instruction began in a half-rate window."""
        return any(since <= row["timestamp"] < until for since, until in self.slow)


def dumps(folder: Path) -> list[Dump]:
    """The calibration profiles, out of the clone in `folder`, with the latency of the same kernel in the benchmark.

    Raises UsageError (TRN129) where the clone does not hold them.
    """
    kernels = {kernel.id: kernel for kernel in load()}
    wanted = [k for k in kernels.values() if k.profile and k.split is Split.CALIBRATION]
    return [Dump(profile_of(k, folder), kernels[f"latency_{k.id}"].measured / PS_PER_NS) for k in wanted]


def recorded() -> list[FigureReadings]:
    """What was read last, as data of the package."""
    return [FigureReadings(*row) for row in json.loads(_path().read_text(encoding="utf-8"))]


def record(found: Sequence[FigureReadings]) -> None:
    """Keep what was read."""
    rows = ",\n".join(json.dumps([r.figure, r.about, r.count, r.low, r.median, r.high]) for r in found)
    write_atomic(_path(), f"[\n{rows}\n]\n".encode())


def _path() -> Path:
    return Path(str(files("trnlab.validation").joinpath("data", "readings.json")))


def document(found: Sequence[FigureReadings]) -> Document:
    """A line a reading: the figure as it is, how many values, their middle 90 % and median."""
    figures = dict(chips.figures(chips.get("trn2")))
    head = ("figure", "is", "values", "5 %", "median", "95 %", "unit, what was read")
    rows = []
    for r in found:
        shares = (f"{share:,.2f}" for share in (r.low, r.median, r.high))
        figure = figures[r.figure]
        rows.append((r.figure, f"{figure.value:,.2f}", str(r.count), *shares, f"{figure.unit}, {r.about}"))
    return Document(
        "What calibration profiles say", [Table(rows, head, range(1, 6))], over="trnlab validate --readings"
    )


def read(dumps: Sequence[Dump]) -> list[FigureReadings]:
    """All readings that the dumps give."""
    found = []
    for figure, (about, take) in READINGS.items():
        values = np.array([v for dump in dumps for v in take(dump)])
        if len(values):
            low, middle, high = (round(float(x), 3) for x in np.percentile(values, (5, 50, 95)))
            found.append(FigureReadings(figure, about, len(values), low, middle, high))
    return found


# -- the PE array -----------------------------------------------------------------------------------------------
def _columns(row: Instruction) -> int:
    """Columns that pass through the array in one instruction of the hardware; in float32 twice as many pass."""
    return size_of("", row["operands"]) * (2 if "fp32_mode" in row["operands"] else 1)


def _pe_issue(dump: Dump) -> Iterator[float]:
    for a, b in pairwise(dump.named("Tensor", "MATMUL")):
        gap, stream = b["timestamp"] - a["timestamp"], _columns(a) / PE
        full = not (dump.at_half_rate(a) or dump.at_half_rate(b))
        if full and _columns(a) == _columns(b) and gap <= BACK_TO_BACK * stream:
            yield (gap - stream) * PE


def _pe_latency(slow: bool) -> Callable[[Dump], Iterator[float]]:
    def take(dump: Dump) -> Iterator[float]:
        for a, b in pairwise([None, *dump.named("Tensor", "MATMUL")]):
            assert b is not None
            steady = a is not None and b["timestamp"] - a["timestamp"] <= BACK_TO_BACK * _columns(a) / PE * (1 + slow)
            if steady and dump.at_half_rate(b) == slow:
                yield b["duration"] * PE - _columns(b) * (1 + slow)

    return take


def _windows(dump: Dump) -> Iterator[float]:
    window = 8192 / PE
    ends = sorted(row["timestamp"] for row in dump.content["ham"])
    for a, b in pairwise(ends):
        yield (b - a) / round((b - a) / window)


# -- VectorE and ScalarE ----------------------------------------------------------------------------------------
def _gaps(engine: str, clock: float, *opcodes: str) -> Callable[[Dump], Iterator[float]]:
    """Cycles between the starts of neighbours beyond one for each of their 512 elements."""

    def take(dump: Dump) -> Iterator[float]:
        data = [
            r for r in dump.rows if r["subgroup"] == engine and (r["opcode"] in opcodes or r["evt_wait_time"] > 60)
        ]
        for a, b in pairwise(data):
            sizes = (
                {size_of("", r["operands"]) for r in (a, b)} if {a["opcode"], b["opcode"]} <= set(opcodes) else set()
            )
            gap = (b["timestamp"] - a["timestamp"]) * clock
            if sizes == {512} and gap <= 512 * 1.5:
                yield gap - 512

    return take


def _after_last(
    engine: str, clock: float, opcodes: Sequence[str], rate: float = 1
) -> Callable[[Dump], Iterator[float]]:
    """Cycles from the last element of an instruction on 512 elements to its end."""

    def take(dump: Dump) -> Iterator[float]:
        for row in dump.named(engine, *opcodes):
            if size_of("", row["operands"]) == 512:
                yield row["duration"] * clock - 512 * rate

    return take


def _scalar_operand(dump: Dump) -> Iterator[float]:
    """Beyond the latency of 147 cycles: 128 elements out of PSUM, at one a cycle."""
    for row in dump.named("Vector", "TENSOR_SCALAR"):
        if _PSUM.search(row["operands"]):
            yield row["duration"] * VECTOR - size_of("", row["operands"]) - 147


def _durations(engine: str, opcode: str) -> Callable[[Dump], Iterator[float]]:
    return lambda dump: (row["duration"] for row in dump.named(engine, opcode))


# -- transfers --------------------------------------------------------------------------------------------------
def _triggers(dump: Dump, engine: str) -> list[Instruction]:
    return dump.named(engine, "DMA_DIRECT2D")


def _trigger_gaps(engine: str, most: float = 650) -> Callable[[Dump], Iterator[float]]:
    def take(dump: Dump) -> Iterator[float]:
        for a, b in pairwise(_triggers(dump, engine)):
            if b["timestamp"] - a["timestamp"] <= most:
                yield b["timestamp"] - a["timestamp"]

    return take


def _stores(row: Instruction) -> bool:
    """Whether a transfer comes from SBUF: partitions lie 256 KiB apart there."""
    pattern = _SOURCE.search(row["operands"])
    return pattern is not None and "262144" in re.split(r"[\[\],]", pattern[1])


def _matched(dump: Dump, *engines: str) -> Iterator[tuple[Instruction, Transfer]]:
    """Each trigger with its transfer: those of an engine take one queue, in order."""
    for engine in engines:
        mine = _triggers(dump, engine)
        for queue in dump.transfers.values():
            if len(queue) == len(mine) and mine and abs(queue[0].first - mine[0]["timestamp"]) < 3000:
                yield from zip(mine, queue)
                break


def _alone(dump: Dump, *engines: str) -> Iterator[tuple[Instruction, Transfer]]:
    """Triggers and transfers of engines that find all DMA engines idle from the trigger to the first byte."""
    everything = [t for queue in dump.transfers.values() for t in queue]
    for row, transfer in _matched(dump, *engines):
        others = [t for t in everything if t is not transfer]
        if not any(t.first < transfer.first and t.last > row["timestamp"] for t in others):
            yield row, transfer


def _leads(stores: bool, less: float, *engines: str) -> Callable[[Dump], Iterator[float]]:
    """From the start of a trigger to the first byte, less the time that the trigger takes."""

    def take(dump: Dump) -> Iterator[float]:
        for row, transfer in _alone(dump, *engines):
            if _stores(row) == stores:
                yield transfer.first - row["timestamp"] - less

    return take


def _wake(dump: Dump) -> Iterator[float]:
    """From the last end of what GpSimdE's trigger waits for to its start, less the semaphore of 34 ns."""
    ends = {row["id"]: float(row["timestamp"] + row["duration"]) for row in dump.rows if row["opcode"] not in CONTROL}
    for row in _triggers(dump, "GpSimd"):
        before = [ends[p["id"]] for p in row.get("predecessors", ()) if p["id"] in ends]
        if before:
            yield row["timestamp"] - max(before) - 34


def _stagger(dump: Dump) -> Iterator[float]:
    """From the first DMA engine's first byte to the last one's, for each of the fifteen that follow."""
    for row, transfer in _alone(dump, "Sync", "Scalar", "GpSimd"):
        if _stores(row):
            yield (max(transfer.starts) - min(transfer.starts)) / (LANES - 1)


def _stagger_read(dump: Dump) -> Iterator[float]:
    """The same of loads that find their queue empty; other queues may be at work."""
    for row, transfer in _matched(dump, "Sync", "Scalar", "GpSimd"):
        if not _stores(row) and not transfer.queued:
            yield (max(transfer.starts) - min(transfer.starts)) / (LANES - 1)


def _packets(dump: Dump) -> Iterator[tuple[int, float]]:
    """Bytes of a packet out of SBUF, and the time until the next of its transfer on its DMA engine."""
    for row, transfer in _matched(dump, "Sync", "Scalar", "GpSimd"):
        if _stores(row):
            for lane in transfer.packets:
                for a, b in pairwise(lane):
                    if a["transfer_size"] == b["transfer_size"]:
                        yield a["transfer_size"], b["timestamp"] - a["timestamp"]


def _descriptor(dump: Dump) -> Iterator[float]:
    for size, gap in _packets(dump):
        if gap <= BACK_TO_BACK * size / DMA_RATE + 10:
            yield gap - size / DMA_RATE


def _sizes(dump: Dump) -> Iterator[float]:
    yield max(p["transfer_size"] for p in dump.content["dma"] if p["queue_type"] != "instruction")


def _completion(dump: Dump) -> Iterator[float]:
    """From the last byte to the start of an instruction that waited for it; what waited longer waited for more."""
    for row, trigger, ended in _waits(dump):
        if trigger["opcode"] == "DMA_DIRECT2D" and row["timestamp"] - ended <= 500:
            yield row["timestamp"] - ended


def _semaphore(dump: Dump) -> Iterator[float]:
    """From the end of an instruction of VectorE or ScalarE to the start of one of them that waited for it."""
    for row, before, ended in _waits(dump):
        between = {row["subgroup"], before["subgroup"]} <= {"Vector", "Scalar"} and before["opcode"] != "DMA_DIRECT2D"
        if between and row["timestamp"] - ended <= 60:
            yield row["timestamp"] - ended


def _waits(dump: Dump) -> Iterator[tuple[Instruction, Instruction, float]]:
    """Instructions that waited, with which of those that they depend on ended last, and when; of a transfer its last
    byte."""
    known = {row["id"]: row for row in dump.rows}
    ends = {row["id"]: float(row["timestamp"] + row["duration"]) for row in dump.rows}
    moved = {row["id"]: transfer.last for row, transfer in _matched(dump, "Sync", "Scalar", "GpSimd")}
    for row in dump.rows:
        before = [p["id"] for p in row.get("predecessors", ()) if p["id"] in known]
        if before and row["evt_wait_time"] >= 30:
            last = max(before, key=lambda i: moved.get(i, ends[i]))
            yield row, known[last], moved.get(last, ends[last])


# -- start and end ----------------------------------------------------------------------------------------------
def _first_trigger(dump: Dump, engine: str) -> float:
    return float(_triggers(dump, engine)[0]["timestamp"])


def _profiler(dump: Dump) -> Iterator[float]:
    yield dump.total - dump.latency


def _program_start(dump: Dump) -> Iterator[float]:
    """Less the profiler's share as it is in `sync.profiler`."""
    yield _first_trigger(dump, "Sync") - 6900


def _program_end(dump: Dump) -> Iterator[float]:
    """From the last byte to the end, less the semaphore of a transfer as it is in `dma.completion`."""
    last = max(t.last for queue in dump.transfers.values() for t in queue)
    yield dump.total - last - 354


def _gpsimd_start(dump: Dump) -> Iterator[float]:
    yield _first_trigger(dump, "GpSimd") - _first_trigger(dump, "Sync")


READINGS: dict[str, tuple[str, Callable[[Dump], Iterable[float]]]] = {
    "tensor.issue": ("cycles between neighbouring passes of float32 beyond their columns, at full rate", _pe_issue),
    "tensor.latency": ("cycles from the last column to the result, at full rate", _pe_latency(False)),
    "tensor.half_rate_latency": ("the same at half rate", _pe_latency(True)),
    "tensor.rate_window": ("time between changes of rate, over how many windows of 8192 cycles it is", _windows),
    "vector.issue": ("cycles between reductions beyond one an element", _gaps("Vector", VECTOR, "TENSOR_REDUCE")),
    "vector.latency": (
        "cycles from the last element of a copy or reduction to its end",
        _after_last("Vector", VECTOR, ("COPY", "CAST", "TENSOR_REDUCE")),
    ),
    "vector.scalar_operand": ("the same of tensor_scalar, beyond the latency", _scalar_operand),
    "scalar.issue": ("cycles between copies beyond one an element", _gaps("Scalar", SCALAR, "COPY", "CAST")),
    "scalar.latency": (
        "cycles from the last element of a copy to its end",
        _after_last("Scalar", SCALAR, ("COPY", "CAST")),
    ),
    "scalar.function_issue": ("cycles between exps beyond one an element", _gaps("Scalar", SCALAR, "ACTIVATE")),
    "scalar.function_latency": (
        "cycles from the last element of an exp to its end",
        _after_last("Scalar", SCALAR, ("ACTIVATE",)),
    ),
    "scalar.table_load": ("time of a load of exp's table", _durations("Scalar", "ACT_TABLE_LOAD")),
    "dma.descriptor": ("time between packets out of SBUF beyond their bytes at 27.2 GB/s", _descriptor),
    "dma.descriptor_bytes": ("bytes of the longest packet", _sizes),
    "dma.trigger": ("time between neighbouring triggers of SyncE", _trigger_gaps("Sync")),
    "dma.trigger_gpsimd": ("time between neighbouring triggers of GpSimdE", _trigger_gaps("GpSimd")),
    "dma.active_gpsimd": ("time of GpSimdE's triggers themselves", _durations("GpSimd", "DMA_DIRECT2D")),
    "dma.wake_gpsimd": ("from the end of what GpSimdE's trigger waits for to its start, less 34 ns", _wake),
    "dma.start": (
        "from the start of SyncE's or ScalarE's trigger to the first byte out of SBUF, less 600 ns",
        _leads(True, 600, "Sync", "Scalar"),
    ),
    "dma.start_indirect": ("the same of GpSimdE's triggers, less 581 ns", _leads(True, 581, "GpSimd")),
    "dma.stagger": ("between the starts of neighbouring DMA engines, out of SBUF", _stagger),
    "dma.stagger_read": ("the same, out of HBM, beside other queues", _stagger_read),
    "dma.completion": ("from the last byte to the start of an instruction that waited for it", _completion),
    "sync.semaphore": ("from the end of an instruction to the start of one that waited for it", _semaphore),
    "sync.program_start": ("from the start of the run to SyncE's first trigger, less the profiler", _program_start),
    "sync.gpsimd_start": ("from SyncE's first trigger to GpSimdE's", _gpsimd_start),
    "sync.program_end": ("from the last byte to the end of the run, less its semaphore", _program_end),
    "sync.register": ("time of a NOP of TensorE", _durations("Tensor", "NOP")),
    "sync.register_memory": ("time of a TENSOR_LOAD", _durations("", "TENSOR_LOAD")),
    "sync.profiler": ("the run's time less the benchmark's latency", _profiler),
    "hbm.alone": ("stated", lambda dump: [dump.content["metadata"][0]["hbm_ddr_bandwidth"] * 1.0]),
}
