# SPDX-License-Identifier: Apache-2.0
"""What one run of a kernel did, in the same terms for a profile of the chip and for a predicted timeline.

Times are picoseconds, sizes bytes. Only what moves or computes data counts; control (semaphores, branches, the start
of a program) does not.

    total                 the whole run
    active ENGINE         some data instruction of the engine was between its start and its result, a DMA trigger
                          between its start and its end; "dma": data packets were under way
    instructions:
      matmuls, transposes on the PE array; the hardware's two or four passes of float32 are one
      PSUM copies         copies and casts out of PSUM
      reductions          of more than 64 elements a partition
      small reductions    of up to 64: they cost what an instruction costs, and could be merged
      reciprocals, activations, tensor_scalars
    triggers ENGINE       DMA triggers by the engine that gives them; "triggers": all of them
    transfers             in the profile what ends with a semaphore write on each DMA engine
    bytes                 moved by DMA
    transfer time         from first to last byte, summed over the transfers
    PE at half rate       matmuls and transposes that began in a half-rate window
    half-rate X[n]:format  their median time from start to result
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from trnlab.isa.base import Memory
from trnlab.profile.vendor import CONTROL, SUBGROUPS, opcode, size_of
from trnlab.program.routine import COL, Routine
from trnlab.sim.timing.summary import engine_use
from trnlab.timeline import ENGINES, Timeline
from trnlab.units import PS_PER_NS

SMALL = 64  # elements a partition: below that an instruction takes as long as with that many
SLOWER = 1.1  # than at full rate by this factor: an instruction at half rate, whose fixed part may be at full rate
COUNTS = (
    "matmuls",
    "transposes",
    "PE at half rate",
    "PSUM copies",
    "copies in SBUF",
    "reductions",
    "small reductions",
    "reciprocals",
    "activations",
    "tensor_scalars",
    "triggers",
    *(f"triggers {name}" for name in ENGINES),
    "transfers",
    "bytes",
)
_PSUM = re.compile(r"src=\w+@0x(2[0-9a-f]{6})\b")
_FORMAT = re.compile(r"src=(\w+)@")
_FORMATS = {"fp32": "float32"}
_KINDS = {
    "ACTIVATE": "activations",
    "RECIPROCAL": "reciprocals",
    "TENSOR_SCALAR": "tensor_scalars",
}


@dataclass(frozen=True, slots=True)
class ProfileQuantities:
    """Quantities by name, see above: times in picoseconds, counts, sizes in bytes."""

    times: Mapping[str, float]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity of a profile and its prediction. unit: "ps", "B", or "" for a count."""

    name: str
    measured: float
    predicted: float
    unit: str

    @property
    def error(self) -> float | None:
        """Relative to what was measured; None where nothing was."""
        return self.predicted / self.measured - 1 if self.measured else None


def compare(measured: ProfileQuantities, predicted: ProfileQuantities) -> Iterator[Quantity]:
    """All quantities that either side has more than nothing of, times first. Half-rate times are compared where both
    sides have the instruction."""
    for name, value in measured.times.items():
        other = predicted.times.get(name)
        if other is not None and (value or other):
            yield Quantity(name, value, other, "ps")
    for name in dict.fromkeys((*COUNTS, *measured.counts, *predicted.counts)):
        pair = measured.counts.get(name, 0), predicted.counts.get(name, 0)
        if any(pair):
            yield Quantity(name, *pair, "B" if name == "bytes" else "")


def of_dump(content: Mapping[str, Any]) -> ProfileQuantities:
    """What the vendor's full JSON says of a run. Raises KeyError for content of another form."""
    data = [row for row in content["instruction"] if row["opcode"] not in CONTROL]
    packets = [row for row in content["dma"] if row["queue_type"] != "instruction"]
    transfers = [t for queue in transfers_of(packets).values() for t in queue]
    arithmetic = list(_matmuls(data))
    slow = [m for m in arithmetic if any(since <= m.start < until for since, until in half_rate(content))]
    times = {"total": content["summary"][0]["total_time"] * 1e12}
    for name in SUBGROUPS:
        mine = [(r["timestamp"], r["timestamp"] + r["duration"]) for r in data if r["subgroup"] == name]
        times[f"active {name.lower()}"] = _union(mine) * PS_PER_NS
    times["active dma"] = _union([(p["timestamp"], p["timestamp"] + p["duration"]) for p in packets]) * PS_PER_NS
    times["transfer time"] = sum(t.last - t.first for t in transfers) * PS_PER_NS
    counts = Counter(_kind_there(row) for row in data)
    counts["bytes"] = sum(p["transfer_size"] for p in packets if p["transfer_size"] > _SEMAPHORE)
    counts["transfers"] = len(transfers)
    return _observed(times, counts, arithmetic, slow)


def of_timeline(timeline: Timeline, routine: Routine, full_rate: Timeline) -> ProfileQuantities:
    """What a predicted run does. full_rate: the same routine with the PE array always at full rate."""
    t = timeline
    times: dict[str, float] = {"total": t.total}
    times |= {f"active {use.name}": use.active for use in engine_use(t)}
    lanes = np.array([op.lanes > 0 for op in t.ops], np.bool_)[t.op]
    times["transfer time"] = float((t.done - t.completion - t.begin)[lanes].sum())
    counts = Counter(_kind_here(t, i, from_psum) for i, from_psum in enumerate(_reads_psum(routine)))
    counts["bytes"] = sum(t.ops[op].n * t.ops[op].m for op in t.op[lanes].tolist())
    counts["transfers"] = int(lanes.sum())
    arithmetic = [_matmul(t, i) for i in range(len(t)) if t.ops[t.op[i]].kind.startswith("pe.")]
    usual = {m.name: m.time for m in sorted((_matmul(full_rate, m.row) for m in arithmetic), key=lambda m: -m.time)}
    return _observed(times, counts, arithmetic, [m for m in arithmetic if m.time > SLOWER * usual[m.name]])


def window_phase(content: Mapping[str, Any], window: float) -> int:
    """When a window of the PE array's clock control began in a profiled run, in picoseconds from its start.

    window: its length in nanoseconds. Raises KeyError where the profile lists no windows.
    """
    first = min(float(row["timestamp"]) for row in content["ham"])
    return round(first % window * PS_PER_NS)


# -- what both have ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Matmul:
    """A matmul or transpose: "matmuls" or "transposes", elements and format, start and time until the result (ns in a
    profile, ps in a prediction), row of the timeline."""

    kind: str
    name: str
    start: float
    time: float
    row: int = 0


def _observed(
    times: Mapping[str, float], counts: Counter[str], arithmetic: Sequence[_Matmul], slow: Sequence[_Matmul]
) -> ProfileQuantities:
    counts.pop("", None)
    counts += Counter(m.kind for m in arithmetic)
    counts["triggers"] = sum(counts[f"triggers {name}"] for name in ENGINES)
    counts["PE at half rate"] = len(slow)
    by_name: dict[str, list[float]] = defaultdict(list)
    for m in slow:
        by_name[m.name].append(m.time)
    halves = {f"half-rate {name}": median(values) for name, values in sorted(by_name.items())}
    return ProfileQuantities({**times, **halves}, dict(counts))


def _union(intervals: Iterable[tuple[float, float]]) -> float:
    total, reach = 0.0, -np.inf
    for start, end in sorted(intervals):
        total += max(end - max(start, reach), 0.0)
        reach = max(reach, end)
    return float(total)


# -- the profile ------------------------------------------------------------------------------------------------
_SEMAPHORE = 8  # bytes of a packet that raises a semaphore, at most


def _kind_there(row: Mapping[str, Any]) -> str:
    """What an instruction of the profile counts as; "" for nothing (weights, tables, matmuls)."""
    name, operands = row["opcode"], row["operands"]
    if name == "DMA_DIRECT2D":
        return f"triggers {row['subgroup'].lower()}"
    if name in ("COPY", "CAST"):
        return "PSUM copies" if _PSUM.search(operands) else "copies in SBUF"
    if name == "TENSOR_REDUCE":
        return _reduction(_last_dim(operands))
    return _KINDS.get(name, "")


def _last_dim(operands: str) -> int:
    """Elements a partition that an instruction reads."""
    return size_of("", operands)


def _reduction(elements: int) -> str:
    return "small reductions" if elements <= SMALL else "reductions"


def _matmuls(data: Iterable[Mapping[str, Any]]) -> Iterator[_Matmul]:
    """Matmuls of a profile; several passes of one (they share the compiler's name) are one, from the first start to
    the last end."""
    rows: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in data:
        if row["opcode"] == "MATMUL":
            rows[row["bir_instruction_name"]].append(row)
    for passes in rows.values():
        start = min(r["timestamp"] for r in passes)
        time = (max(r["timestamp"] + r["duration"] for r in passes) - start) * PS_PER_NS
        kind = "transposes" if passes[0]["instruction_type"] == "TRANSPOSE" else "matmuls"
        found = _FORMAT.search(passes[0]["operands"])
        dtype = found[1] if found else "unknown"
        name = f"{kind}[{_last_dim(passes[0]['operands'])}]:{_FORMATS.get(dtype, dtype)}"
        yield _Matmul(kind, name, start, time)


def half_rate(content: Mapping[str, Any]) -> list[tuple[float, float]]:
    """When the PE array ran at half rate, in nanoseconds; before the first window listed, it did."""
    windows = sorted((row["timestamp"], row["duration"], row["k"] < row["n"]) for row in content["ham"])
    return [(0.0, windows[0][0])] + [(start, start + length) for start, length, slow in windows if slow]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer of a profile: the data packets of each DMA engine. queued: the one before it was still under way."""

    packets: tuple[tuple[Mapping[str, Any], ...], ...]
    queued: bool

    @property
    def starts(self) -> list[float]:
        """The first byte of each DMA engine, in nanoseconds."""
        return [lane[0]["timestamp"] for lane in self.packets]

    @property
    def first(self) -> float:
        """The first byte of all."""
        return min(self.starts)

    @property
    def last(self) -> float:
        """The last byte of all."""
        return _last_byte(self.packets)


def _last_byte(lanes: Iterable[Sequence[Mapping[str, Any]]]) -> float:
    return float(max(packet["timestamp"] + packet["duration"] for lane in lanes for packet in lane))


def transfers_of(packets: Iterable[Mapping[str, Any]]) -> dict[str, list[Transfer]]:
    """The transfers of each queue in order. A DMA engine takes those of a queue in turn, and ends its part of each
    with a packet that raises a semaphore."""
    lanes: dict[str, dict[str, list[list[Mapping[str, Any]]]]] = defaultdict(lambda: defaultdict(lambda: [[]]))
    for packet in sorted(packets, key=lambda p: (p["timestamp"], p["packet_idx"])):
        mine = lanes[packet["dma_queue"]][packet["dma_engine"]]
        if packet["transfer_size"] <= _SEMAPHORE:
            mine.append([])
        else:
            mine[-1].append(packet)
    found: dict[str, list[Transfer]] = {}
    for queue, by_engine in lanes.items():
        reach, found[queue] = -np.inf, []
        for parts in zip(*by_engine.values()):
            used = tuple(tuple(part) for part in parts if part)
            if used:
                first = min(part[0]["timestamp"] for part in used)
                found[queue].append(Transfer(used, queued=bool(first < reach)))
                reach = _last_byte(used)
    return found


# -- the prediction ---------------------------------------------------------------------------------------------
def _reads_psum(routine: Routine) -> list[bool]:
    """For each instruction, whether an operand that it reads (any but its first) lies in PSUM."""
    psum = np.array([b.memory is Memory.PSUM for b in routine.buffers], np.bool_)
    reads = psum[routine.operands[:, COL["buffer"]]] & (routine.operands[:, COL["role"]] > 0)
    sums = np.append(0, np.cumsum(reads))
    found: list[bool] = (sums[routine.first_operand[1:]] > sums[routine.first_operand[:-1]]).tolist()
    return found


def _kind_here(t: Timeline, row: int, from_psum: bool) -> str:
    """What an instruction of the prediction counts as, as `_kind_there`."""
    op = t.ops[t.op[row]]
    if op.lanes:
        return f"triggers {ENGINES[t.engine[row]]}"
    if op.name == "tensor_copy":
        return "PSUM copies" if from_psum else "copies in SBUF"
    if op.name == "tensor_reduce":
        return _reduction(op.n)
    return _KINDS.get(opcode(op.name), "")


def _matmul(t: Timeline, row: int) -> _Matmul:
    op = t.ops[t.op[row]]
    kind = "transposes" if op.kind == "pe.transpose" else "matmuls"
    return _Matmul(kind, f"{kind}[{op.n}]:{op.dtype}", int(t.start[row]), int(t.done[row] - t.start[row]), row)
