# SPDX-License-Identifier: Apache-2.0
"""Why a step takes as long as it does: the part of the summary that says where the time went, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trnlab import policy
from trnlab.chips.spec import Chip
from trnlab.profile.critical import Pieces, pieces
from trnlab.profile.data import Step, step_of
from trnlab.profile.routines import uses
from trnlab.profile.stall_attribution import by_engine, lines, lost
from trnlab.runtime.analysis.advice import advice
from trnlab.runtime.analysis.compiled import spill_cost, spilled_tiles
from trnlab.units import PS_PER_S

if TYPE_CHECKING:
    from trnlab.runtime.executable import Executable

CAUSES, WAITS = 40, 16  # entries that are told in full: of the list of causes, and of each engine
LINES = 10
ROUTINES = 8


@dataclass(frozen=True)
class ExecutableRuns:
    """An executable of the step: how often it runs, and what its details say."""

    executable: Executable
    times: int
    about: dict[str, Any]
    step: Step
    chain: Pieces


def parts_of(calls: Iterable[tuple[Executable, int]], details: dict[str, dict[str, Any]]) -> list[ExecutableRuns]:
    """The executables of a step, ready to be asked."""
    found = []
    for executable, times in calls:
        about = details[executable.key]
        step = step_of(executable.timeline, about)
        found.append(ExecutableRuns(executable, times, about, step, pieces(step)))
    return found


def insight(parts: Sequence[ExecutableRuns], chip: Chip) -> dict[str, Any]:
    """The fields, see `docs/summary.md`; their times are integer picoseconds, those of a step."""
    total = sum(p.step.timeline.total * p.times for p in parts)
    return {
        "step_ps": total,
        "dma": _dma(parts, chip),
        "spill": _spill(parts),
        "lost": _lost(parts),
        "engine_time": _engine_time(parts, total),
        "costliest_lines": _lines(parts),
        "roofline": _roofline(parts),
        "advice": _advice(parts, total),
    }


def _spill(parts: Sequence[ExecutableRuns]) -> dict[str, Any]:
    """What left a memory for want of room, and what that costs."""
    tiles = spilled_tiles((p.executable, p.times) for p in parts)
    return {
        "save_bytes": sum(p.step.spilled[0] * p.times for p in parts),
        "reload_bytes": sum(p.step.spilled[1] * p.times for p in parts),
        "psum_bytes": sum(t["save_bytes"] for t in tiles if t["from"] == "psum"),
        "cost_ps": sum(spill_cost(p.executable) * p.times for p in parts),
        "tiles": tiles,
    }


def _dma(parts: Sequence[ExecutableRuns], chip: Chip) -> dict[str, Any]:
    """Bytes through the DMA engines, and their rate while they are busy as a share of what they could do."""
    moved = busy = 0
    for p in parts:
        t = p.step.timeline
        for op, count in zip(t.ops, np.bincount(t.op, minlength=len(t.ops)).tolist()):
            if op.lanes:
                moved += max(op.hbm_read, op.hbm_write, op.n * op.m) * count * p.times
                busy += op.lanes * op.lane_time * count * p.times
    rate = moved * PS_PER_S / busy if busy else 0.0
    return {"bytes": moved, "efficiency": rate / chip.dma.engine_bandwidth.value, "engine_bytes_per_s": rate}


def _lost(parts: Sequence[ExecutableRuns]) -> list[dict[str, Any]]:
    """The critical path by cause; the entries add up to the step."""
    spent: Counter[tuple[str, str, str, str]] = Counter()
    for p in parts:
        for loss in lost(p.step, p.chain):
            spent[loss.waiting_for, loss.part, loss.cause, loss.buffer] += loss.time * p.times
    names = ("waiting_for", "part", "cause", "buffer")
    return [dict(zip(names, key)) | {"ps": time} for key, time in _shortened(spent, CAUSES)]


def _shortened(spent: Counter[Any], most: int) -> list[tuple[Any, int]]:
    """The largest entries, and what is left of each engine and queue (the first part of the key) as one, the largest
    first; together as much as all of them.
    """
    ranked = spent.most_common()
    rest: Counter[str] = Counter()
    for key, time in ranked[most:]:
        rest[key[0]] += time
    blank = ("",) * (len(ranked[0][0]) - 1) if ranked else ()
    return ranked[:most] + [((name, *blank), time) for name, time in rest.most_common()]


def _engine_time(parts: Sequence[ExecutableRuns], total: int) -> dict[str, Any]:
    """What each engine did with the step: busy, waiting for whom and why, and the rest at both ends."""
    busy: Counter[str] = Counter()
    waits: dict[str, Counter[tuple[str, str, str]]] = {}
    for p in parts:
        for engine, use in by_engine(p.step).items():
            busy[engine] += use.busy * p.times
            mine = waits.setdefault(engine, Counter())
            for wait in use.waits:
                mine[wait.waiting_for, wait.cause, wait.buffer] += wait.time * p.times
    found = {}
    for engine, mine in waits.items():
        names = ("waiting_for", "cause", "buffer")
        rows = [dict(zip(names, key)) | {"ps": time} for key, time in _shortened(mine, WAITS)]
        found[engine] = {
            "busy_ps": busy[engine],
            "waiting": rows,
            "ends_ps": total - busy[engine] - sum(mine.values()),
        }
    return found


def _lines(parts: Sequence[ExecutableRuns]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], list[int]] = {}
    for p in parts:
        for line in lines(p.step, p.chain):
            entry = found.setdefault(p.step.sources[line.source], [0, 0, 0])
            for i, value in enumerate((line.instructions, line.critical, line.busy)):
                entry[i] += value * p.times
    order = sorted(found.items(), key=lambda item: (-item[1][1], -item[1][2]))
    return [
        {"line": place, "text": text, "instructions": n, "critical_ps": critical, "busy_ps": busy}
        for (place, text), (n, critical, busy) in order[:LINES]
    ]


def _roofline(parts: Sequence[ExecutableRuns]) -> dict[str, Any]:
    """The routines that run the longest, and the ceilings of the chip."""
    found: dict[str, list[int]] = {}
    for p in parts:
        for use in uses(p.step.timeline):
            entry = found.setdefault(use.label, [0, 0, 0, 0])
            for i, value in enumerate((use.calls, use.time, use.flops, use.bytes)):
                entry[i] += value * p.times
    order = sorted(found.items(), key=lambda item: -item[1][1])
    meta = parts[0].step.timeline.meta
    return {
        "peak_flops": meta.get("peak_flops", {}),
        "hbm_bytes_per_s": meta.get("hbm_bandwidth"),
        "routines": [
            {"label": label, "calls": calls, "ps": time, "flops": flops, "hbm_bytes": size}
            for label, (calls, time, flops, size) in order[:ROUTINES]
        ],
    }


def _advice(parts: Sequence[ExecutableRuns], total: int) -> list[dict[str, Any]]:
    """Ranked by what a step would gain."""
    gains: dict[tuple[str, str, str, str], int] = {}
    for p in parts:
        own = [(p.about["routines"][routine]["source"], line) for routine, line in p.about["calls"]]
        with policy.use(p.executable.policy):
            found = advice(p.executable.laid, p.executable.chip, p.step, p.chain, own)
        for a in found:
            key = (a.cost, a.about, a.what, a.way)
            gains[key] = gains.get(key, 0) + a.gain * p.times
    order = sorted(gains.items(), key=lambda item: (-item[1], item[0]))
    return [
        {"cost": cost, "line": about, "what": what, "way": way, "gain_ps": gain, "gain": gain / total}
        for (cost, about, what, way), gain in order
    ]
