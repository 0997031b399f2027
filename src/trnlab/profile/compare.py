# SPDX-License-Identifier: Apache-2.0
"""Two runs side by side: what got faster, slower, appeared, vanished.

Of two predictions the time on the critical path is compared: it adds up to the step, so the differences do, too.
Where one of the two was measured nobody knows that path. Then it is the time of the work, as the vendor's profiler
takes it: of an instruction from its start to its result, of a transfer while its bytes flow; such times overlap.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trnlab.errors import RunError
from trnlab.profile import vendor
from trnlab.profile.critical import DMA, pieces
from trnlab.profile.data import Ints, Profile, Step, load
from trnlab.profile.lanes import engine_codes, engine_name
from trnlab.profile.names import short_label, short_place
from trnlab.profile.stall_attribution import ENDS
from trnlab.profile.vendor import CONTROL, opcode
from trnlab.timeline import ENGINES

SAME = 0.005  # relative change of the time that counts as none
APPEARED, VANISHED, FASTER, SLOWER, EQUAL = "appeared", "vanished", "faster", "slower", "same"
_FP32 = re.compile(r"fp32_mode=.*")  # of a matmul: its format and operands
LATENT = "latency"  # signals, and the way of transfers to their first byte and after their last
Groups = dict[str, tuple[int, int, int]]  # instructions, time of the work, time on the critical path
KINDS = ("engine", "opcode", "line", "graph op")


@dataclass(frozen=True, slots=True)
class ActivityDelta:
    """Instructions of one engine, opcode, source line or op of the graph in both runs: how many, the time of their
    work and their time on the critical path, in picoseconds. difference: by how much the second takes longer, on the
    critical path of two predictions, else of the work.
    """

    name: str
    verdict: str
    count: tuple[int, int]
    time: tuple[int, int]
    critical: tuple[int, int]
    difference: int


@dataclass(frozen=True, slots=True)
class InstructionPair:
    """An instruction in both runs: its opcode there, engine, elements per partition, and both durations (ps)."""

    opcode: str
    engine: str
    size: int
    start: tuple[int, int]
    duration: tuple[int, int]
    half_rate: bool = False  # the PE array ran at half its clock in the first

    @property
    def error(self) -> float:
        """The second relative to the first; 0.1 is ten percent longer."""
        return self.duration[1] / self.duration[0] - 1 if self.duration[0] else 0.0


@dataclass(frozen=True)
class Comparison:
    """Two steps, compared."""

    names: tuple[str, str]
    totals: tuple[int, int]  # of both steps, in picoseconds
    changes: dict[str, list[ActivityDelta]]
    pairs: list[InstructionPair]  # instruction by instruction, for the same kernel in both
    unpaired: tuple[dict[str, int], dict[str, int]]
    measured: bool  # one of the two is of the vendor's profiler

    def to_json(self) -> dict[str, Any]:
        """As plain data; times in picoseconds."""
        return {
            "schema": "trnlab.comparison",
            "version": 1,
            "names": self.names,
            "total_ps": self.totals,
            "changes": {kind: [asdict(change) for change in rows] for kind, rows in self.changes.items()},
            "instructions": [{**asdict(pair), "error": pair.error} for pair in self.pairs],
            "unpaired": self.unpaired,
        }


def open_run(path: Path) -> Profile:
    """The run of a folder, or the measured run of a file of the vendor's profiler. Raises RunError for neither, and
    for a run without a timed step.
    """
    found = vendor.read(path) if path.is_file() else load(path)
    if found.step is None or not len(found.step.timeline):
        raise RunError(
            f"nothing was timed in {str(path)!r}",
            code="TRN814",
            got=f"a run that is {found.summary.get('status')}",
            remedy="let the script run at least one step to its end",
        )
    return found


def compare(first: Profile, second: Profile) -> Comparison:
    """What changed from the first run to the second."""
    assert first.step is not None
    assert second.step is not None
    sides = (_Side(first), _Side(second))
    measured = any(side.measured for side in sides)
    for side in sides if measured else ():
        side.as_measured()
    changes = {kind: _changes(sides[0].groups(kind), sides[1].groups(kind), measured) for kind in KINDS}
    pairs, unpaired = _pairs(*sides)
    return Comparison(
        _names(first, second),
        (first.step.timeline.total, second.step.timeline.total),
        changes,
        pairs,
        unpaired,
        measured,
    )


def _names(first: Profile, second: Profile) -> tuple[str, str]:
    """What the runs are called; numbered where both are called the same."""
    names = (str(first.summary["name"]), str(second.summary["name"]))
    return names if names[0] != names[1] else (f"{names[0]} (1)", f"{names[1]} (2)")


class _Side:
    """One of the two runs: per instruction its time, and what it belongs to."""

    def __init__(self, profile: Profile) -> None:
        assert profile.step is not None
        self.step: Step = profile.step
        self.script = str(profile.summary.get("script", ""))
        t = self.step.timeline
        self.lanes = np.array([op.lanes > 0 for op in t.ops], np.bool_)[t.op]
        self.measured = bool(len(t.ops)) and all(op.kind.startswith("vendor") for op in t.ops)
        self.on_engine = t.done - t.start if self.measured else np.where(self.lanes, t.end, t.done) - t.start
        self.flowing = np.where(self.lanes, t.done - t.completion - t.begin, 0)
        self.packet = self.lanes if self.measured else np.zeros(len(t), np.bool_)
        self.chain = pieces(self.step)
        spent = self.chain.until - self.chain.since
        self.on_path = np.bincount(self.chain.instruction, spent, len(t)).astype(np.int64)
        self.works = np.ones(len(t), np.bool_)
        self.also = self.flowing  # what counts of an instruction beside its time on the engine
        self.opcodes = [op.name for op in t.ops]
        self.half_rate: list[tuple[int, int]] = t.meta.get("half_rate", [])

    def as_measured(self) -> None:
        """Count what a measured run can be held against: instructions that do work, and the time that each DMA engine
        moves bytes, which the vendor's profiler has packet by packet.
        """
        t = self.step.timeline
        self.works = np.array([op.name not in CONTROL for op in t.ops], np.bool_)[t.op]
        self.also = np.zeros(len(t), np.int64)
        if not self.measured:
            self.flowing = np.array([op.lanes * op.lane_time for op in t.ops], np.int64)[t.op]
            self.opcodes = [opcode(op.name) for op in t.ops]

    def groups(self, kind: str) -> Groups:
        """Instructions, the time of their work and their time on the critical path, by name."""
        if kind == "engine":
            return self._engines()
        names, index = self._names(kind)
        return _totals(names, index, self.on_engine + self.also, self.on_path, self.works & ~self.packet)

    def _engines(self) -> Groups:
        """By engine, the DMA engines as one; with what of the critical path is nobody's work."""
        t, codes = self.step.timeline, engine_codes(self.step.timeline)
        engines = t.cores * len(ENGINES)
        names = [*(engine_name(code, t.cores) for code in range(engines)), "dma"]
        nothing = np.zeros(len(t), np.int64)
        found = _totals(names, codes, self.on_engine, nothing, self.works & ~self.packet)
        found |= _totals(names, nothing + engines, self.flowing, nothing, self.lanes & self.works)
        whose = np.where(
            self.chain.kind < len(ENGINES), codes[self.chain.instruction], engines + self.chain.kind - DMA
        )
        spent = np.bincount(whose, self.chain.until - self.chain.since, engines + 2).astype(np.int64).tolist()
        ends = t.total - sum(spent)
        for name, time in zip([*names, LATENT, ENDS], [*spent, ends]):
            if time or name in found:
                count, work, _ = found.get(name, (0, 0, 0))
                found[name] = (count, work, time)
        return found

    def _names(self, kind: str) -> tuple[list[str], Ints]:
        t, step = self.step.timeline, self.step
        if kind == "opcode":
            return self.opcodes, t.op
        if kind == "graph op":
            return [short_label(call.label) for call in t.calls], t.call
        return [_line(place, text, self.script) for place, text in step.sources], step.source


def _line(place: str, text: str, script: str) -> str:
    """A source line by its file and text, so that lines that moved are still the same."""
    if not text:
        return short_place(place, script) or "unknown"
    return f"{re.sub(r':[0-9]+', '', short_place(place, script))}: {text}"


def _totals(names: Sequence[str], index: Ints, time: Ints, on_path: Ints, chosen: Ints) -> Groups:
    """Count, time and critical time by name, without what does not occur."""
    size = len(names)
    count = np.bincount(index[chosen], minlength=size)
    spent = np.bincount(index[chosen], time[chosen], size).astype(np.int64)
    late = np.bincount(index[chosen], on_path[chosen], size).astype(np.int64)
    found: Groups = {}
    for name, *row in zip(names, count.tolist(), spent.tolist(), late.tolist()):
        if row[0]:
            before = found.get(name, (0, 0, 0))
            found[name] = (before[0] + row[0], before[1] + row[1], before[2] + row[2])
    return found


def _changes(a: Groups, b: Groups, measured: bool) -> list[ActivityDelta]:
    """Every name of either run, what changed most first."""
    none = (0, 0, 0)
    rows = []
    for name in dict.fromkeys((*a, *b)):
        x, y = a.get(name, none), b.get(name, none)
        pair = (x[1], y[1]) if measured else (x[2], y[2])
        verdict = APPEARED if x == none else VANISHED if y == none else _verdict(*pair)
        rows.append(ActivityDelta(name, verdict, (x[0], y[0]), (x[1], y[1]), (x[2], y[2]), pair[1] - pair[0]))
    return sorted(rows, key=lambda c: (-abs(c.difference), -abs(c.time[1] - c.time[0]), c.name))


def _verdict(before: int, after: int) -> str:
    if abs(after - before) <= SAME * before:
        return EQUAL
    return FASTER if after < before else SLOWER


def _pairs(a: _Side, b: _Side) -> tuple[list[InstructionPair], tuple[dict[str, int], dict[str, int]]]:
    """The n-th instruction of an engine, opcode and size in the one run with the n-th of the same in the other."""
    found, alone = [], (defaultdict[str, int](int), defaultdict[str, int](int))
    mine, theirs = _by_key(a), _by_key(b)
    for key in dict.fromkeys((*mine, *theirs)):
        x, y = mine.get(key, []), theirs.get(key, [])
        engine, name, size = key
        for i, j in zip(x, y):
            start = (int(a.step.timeline.start[i]), int(b.step.timeline.start[j]))
            durations = (int(a.on_engine[i]), int(b.on_engine[j]))
            slow = engine == 0 and any(since <= start[0] < until for since, until in a.half_rate)
            found.append(InstructionPair(name, ENGINES[engine], size, start, durations, slow))
        for side, count in zip(alone, (len(x) - len(y), len(y) - len(x))):
            if count > 0:
                side[f"{name} on {ENGINES[engine]}" + (f", {size} elements" if size else "")] += count
    found.sort(key=lambda pair: pair.start[0])
    return found, (dict(alone[0]), dict(alone[1]))


def _by_key(side: _Side) -> dict[tuple[int, str, int], list[int]]:
    """Instructions that do work, by engine, opcode and elements per partition, in order of their start.

    Where one of the two is measured, only what both count in the same way tells sizes apart: data, not transfers.
    """
    t = side.step.timeline
    if side.measured:
        _put_together(side)
    keys: list[tuple[str, int] | None] = [_key(op.name, op.kind, op.n, op.lanes) for op in t.ops]
    found: dict[tuple[int, str, int], list[int]] = defaultdict(list)
    for i in np.argsort(t.start, kind="stable").tolist():
        key = keys[t.op[i]]
        if key is not None and side.on_engine[i] >= 0:
            found[int(t.engine[i]), *key].append(i)
    return dict(found)


def _put_together(side: _Side) -> None:
    """A matmul in float32 is several instructions of the hardware, which read and write the same: let the first of
    them last until the end of the last, and mark the others with a time of -1.
    """
    t, before = side.step.timeline, (-1, "")
    side.on_engine = side.on_engine.copy()
    matmul = np.array([op.name == "MATMUL" for op in t.ops], np.bool_)
    for i in np.flatnonzero(matmul[t.op]).tolist():
        text = side.step.texts[side.step.text[i]]
        found = _FP32.search(text)
        what = found[0] if found else ""
        if what and what == before[1]:
            side.on_engine[before[0]] = t.done[i] - t.start[before[0]]
            side.on_engine[i] = -1
        else:
            before = (i, what)


def _key(name: str, kind: str, n: int, lanes: int) -> tuple[str, int] | None:
    """Opcode and size; None for what only one side has: packets, control, and the loading of weights, which our
    matmuls include.
    """
    measured = kind.startswith("vendor")
    if measured and (lanes or name in CONTROL or name in ("LDWEIGHTS", "ACT_TABLE_LOAD")):
        return None
    plain = name if measured else opcode(name)
    plain = {"CAST": "COPY"}.get(plain, plain)  # a copy into another format
    transposed = kind in ("vendor.transpose", "pe.transpose")
    return (f"{plain} (transpose)" if transposed else plain), 0 if plain.startswith("DMA") or lanes else n


def by_opcode(pairs: Iterable[InstructionPair]) -> list[tuple[str, str, int, float, float, float]]:
    """Per opcode and engine: pairs, the median durations of both (ps), and the median of the errors' sizes."""
    groups: dict[tuple[str, str], list[InstructionPair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.opcode + ", at half rate" * pair.half_rate, pair.engine].append(pair)
    rows = []
    median: Callable[[list[float]], float] = lambda values: float(np.median(values))  # noqa: E731
    for (name, engine), mine in groups.items():
        both = [median([pair.duration[side] for pair in mine]) for side in (0, 1)]
        rows.append((name, engine, len(mine), both[0], both[1], median([abs(pair.error) for pair in mine])))
    return sorted(rows, key=lambda row: (-row[2] * row[3], row[0]))
