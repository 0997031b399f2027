# SPDX-License-Identifier: Apache-2.0
"""The full JSON of the vendor's profiler (`view --output-format json`): written for a predicted step, and read for a
measured one.

The format is not specified; what we use of it was read off profiles that people published (eight dumps of profiler
2.28 in allenkchau/trainium-kernel-fusion) and off the descriptions of fields that every dump holds under
"terminology". Times of events are nanoseconds from the start, those of the summary seconds; what is called percent is
a share from 0 to 1.

Of a predicted step we write what means the same there. An event of "dma" is a whole transfer of ours, marked as
aggregated, where the vendor's is a packet.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trnlab import chips
from trnlab.errors import RunError, UsageError
from trnlab.files import json_of
from trnlab.profile.data import Ints, Occupancy, Profile, Step
from trnlab.profile.lanes import engine_codes
from trnlab.timeline import CAUSES, CORE_ENGINES, ENGINES, CallInfo, OpInfo, Timeline
from trnlab.units import PS_PER_NS, PS_PER_S

SUBGROUPS = {"Tensor": 0, "Vector": 1, "Scalar": 2, "GpSimd": 3, "Sync": 4}
FETCH = "instruction fetch"  # what we call the packets of such a queue
CONTROL = frozenset(
    {
        "EVENT_SEMAPHORE",
        "EVENT_SEMAPHORE_RANGE_CLEAR",
        "DRAIN",
        "NOTIFY",
        "NOP",
        "COMPARE_BRANCH",
        "SET_ORDERING_MODE",
        "TENSOR_LOAD",
        "WRITE",
        FETCH,
    }
)
# Names of our instructions there, where they are not the same in capitals.
OPCODES = {
    "nc_matmul": "MATMUL",
    "nc_transpose": "MATMUL",
    "nc_matmul_mx": "MATMUL",
    "activation": "ACTIVATE",
    "activation_reduce": "ACTIVATE",
    "tensor_copy": "COPY",
    "dma_copy": "DMA_DIRECT2D",
}
MOST_NS = 2**60 / PS_PER_NS  # 13 days: starts and durations add up to what 64 bits hold
MOST_QUEUES = 1 << 16
MOST_SHARE = 1000.0  # of a memory
_SIZES = re.compile(r"(?:src|dst)=\S*?\]\[([\d,]+)\]")
_DMA_SIZES = re.compile(r"src_elem_size=(\d+).*?src_pattern=(\[[^ ]*)")
_QUEUES = {"hardware_dynamic": 4, "software_dynamic": 3}  # the engine that a kind of queue belongs to; else Sync's


def opcode(name: str) -> str:
    """What the vendor's profiler calls an instruction of ours."""
    return OPCODES.get(name, name.upper())


# -- writing ----------------------------------------------------------------------------------------------------
def export(profile: Profile) -> bytes:
    """The step of a run in the vendor's format. Raises RunError for a run without a timed step."""
    step = profile.step
    if step is None or not len(step.timeline):
        raise RunError("the run has no timed step to export", code="TRN810", remedy="run the script to its end")
    t = step.timeline
    content = {
        "metadata": [{"is_simulation": True, "first_hw_timestamp": 0, "last_hw_timestamp": _ns(t.total)}],
        "summary": [_summary(profile.summary, step)],
        "instruction": list(_instructions(step)),
        "dma": list(_transfers(step)),
        "active_time": list(_active(t)),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _ns(ps: Any) -> float:
    return int(ps) / PS_PER_NS


def _instructions(step: Step) -> Iterator[dict[str, Any]]:
    t, names = step.timeline, list(SUBGROUPS)
    cores, waited_for = t.core_of().tolist(), _idle_before(t).tolist()
    columns = zip(
        *(getattr(t, n).tolist() for n in ("start", "end", "done", "engine", "op", "call", "blocker", "held"))
    )
    for i, (start, end, done, engine, op, call, blocker, held) in enumerate(columns):
        place, _ = step.sources[step.source[i]]
        info = t.ops[op]
        row = {
            "id": i,
            "timestamp": _ns(start),
            "duration": _ns((end if info.lanes else done) - start),
            "evt_wait_time": _ns(waited_for[i]),
            "subgroup": names[engine],
            "label": names[engine],
            "opcode": opcode(info.name),
            "operands": step.texts[step.text[i]],
            "instruction_type": "TRANSPOSE" if info.kind == "pe.transpose" else "REGULAR",
            "hlo_name": t.calls[call].label,
            "nki_source_location": place.partition(" in ")[0],
            "nc_idx": cores[i],
            "elements_per_partition": 0 if info.lanes else info.n,
        }
        waited = [{"id": w, "cause": c} for w, c in ((blocker, CAUSES[t.cause[i]]), (held, "queue")) if w >= 0]
        yield {**row, "waited_for": waited} if waited else row


def _idle_before(t: Timeline) -> Ints:
    """How long the engine of each instruction had been idle when it started it."""
    code, idle = engine_codes(t), np.zeros(len(t), np.int64)
    for engine in np.unique(code).tolist():
        mine = np.flatnonzero(code == engine)
        mine = mine[np.argsort(t.start[mine], kind="stable")]
        idle[mine] = np.maximum(t.start[mine] - np.append(0, t.end[mine[:-1]]), 0)
    return idle


def _transfers(step: Step) -> Iterator[dict[str, Any]]:
    t = step.timeline
    for i in np.flatnonzero(np.array([op.lanes > 0 for op in t.ops], np.bool_)[t.op]).tolist():
        op = t.ops[t.op[i]]
        time, size = int(t.done[i]) - t.completion - int(t.begin[i]), op.n * op.m
        yield {
            "id": i,
            "timestamp": _ns(t.begin[i]),
            "duration": _ns(time),
            "transfer_size": size,
            "transfer_rate": size * PS_PER_S / time if time else 0,
            "dma_queue": str(op.queue),
            "subgroup": f"Q{op.queue}-{ENGINES[t.engine[i]]}",
            "aggregated": "yes",
            "instruction_id": i,
        }


def _active(t: Timeline) -> Iterator[dict[str, Any]]:
    """When each engine was at work, instructions that overlap taken together."""
    lanes = np.array([op.lanes > 0 for op in t.ops], np.bool_)[t.op]
    for code, name in enumerate(ENGINES):
        mine = np.flatnonzero(t.engine == code)
        start, end = t.start[mine], np.where(lanes[mine], t.issued()[mine], t.done[mine])
        for a, b in _unions(start, end):
            yield {"engine": name, "start_ts": _ns(a), "end_ts": _ns(b), "duration_ns": _ns(b - a)}


def _unions(start: Ints, end: Ints) -> list[tuple[int, int]]:
    """Intervals put together where they touch."""
    if not len(start):
        return []
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > reach[:-1])
    last = np.append(first[1:], True)
    return list(zip(start[first].tolist(), reach[last].tolist()))


def _summary(s: Mapping[str, Any], step: Step) -> dict[str, Any]:
    t = step.timeline
    seconds = t.total / PS_PER_S
    found: dict[str, Any] = {"total_time": seconds, "instance_type": s.get("target", t.target), "nc_idx": 0}
    for code, name in enumerate(CORE_ENGINES):
        mine = t.engine == code
        found[f"{name}_engine_instruction_count"] = int(mine.sum())
        found[f"{name}_engine_instruction_time"] = int((t.done[mine] - t.start[mine]).sum()) / PS_PER_S
        active = s.get("engines", {}).get(name, {}).get("active", 0.0)
        found[f"{name}_engine_active_time_percent"] = active
        found[f"{name}_engine_active_time"] = active * seconds
    moving = s.get("engines", {}).get("dma", {}).get("active", 0.0)
    hbm = s.get("hbm", {})
    count = Counter(opcode(t.ops[op].name) for op in t.op.tolist())
    return {
        **found,
        "dma_active_time_percent": moving,
        "dma_active_time": moving * seconds,
        "hbm_read_bytes": hbm.get("read_bytes", 0),
        "hbm_write_bytes": hbm.get("write_bytes", 0),
        "spill_save_bytes": step.spilled[0],
        "spill_reload_bytes": step.spilled[1],
        "matmul_instruction_count": count["MATMUL"],
        "activate_instruction_count": count["ACTIVATE"],
        "model_flops": s.get("model_flops_per_step", 0),
        "hardware_flops": sum(t.ops[op].flops for op in t.op.tolist() if t.ops[op].kind.startswith("pe.")),
        "mfu_estimated_percent": s.get("mfu", 0.0),
        "hfu_estimated_percent": s.get("hfu", 0.0),
        "mbu_estimated_percent": s.get("mbu", 0.0),
    }


# -- reading ----------------------------------------------------------------------------------------------------
def read(path: Path) -> Profile:
    """A measured run. Raises RunError when the file cannot be read or is not of this format."""
    try:
        content = json_of(path.read_bytes())
        return Profile(path.parent, _about(path, content), _step(path.stem, content))
    except OSError as error:
        raise RunError(f"{str(path)!r} cannot be read", code="TRN811", got=error.strerror) from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise RunError(
            f"{str(path)!r} is not a profile of the vendor's profiler",
            code="TRN815",
            got=f"{type(error).__name__}: {error}",
            remedy="write it with the profiler's view command and --output-format json",
        ) from error


def _about(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    (summary, *_) = content.get("summary") or [{}]
    target = str(summary.get("instance_type", "unknown"))
    for name, value in summary.items():
        if name.endswith(("percent", "bytes", "flops")) and value is not None and not _is_figure(value):
            raise ValueError(f"{name} is {value!r:.40}")
    return {"name": path.stem, "script": "", "target": target, "chip": target.partition(".")[0], "vendor": summary}


def _is_figure(value: Any) -> bool:
    """Whether it can be shown as a share or an amount."""
    return isinstance(value, int | float) and -1e300 < value < 1e300


def _number(value: Any, most: float) -> float:
    """A number of the file, of which others are made. Raises ValueError for other things (a text, multiplied, is as
    much memory) and for what is larger than such numbers are."""
    if not isinstance(value, int | float) or not -most <= value <= most:
        raise ValueError(f"{value!r:.40} is not a number up to {most:g}")
    return value


def _ps(ns: Any) -> int:
    """Picoseconds of a time in nanoseconds."""
    return round(_number(ns, MOST_NS) * PS_PER_NS)


def _step(name: str, content: Mapping[str, Any]) -> Step:
    """Instructions, then packets as transfers of their queues; in the order of their start."""
    rows = [_instruction(row) for row in content["instruction"]] + [_packet(row) for row in content.get("dma", ())]
    rows.sort(key=lambda row: row["start"])
    ops: dict[OpInfo, int] = {}
    texts: dict[str, int] = {}
    sources: dict[tuple[str, str], int] = {}
    column = {key: np.array([row[key] for row in rows], np.int64) for key in ("start", "begin", "done", "engine")}
    end = _ends(column["start"], column["done"], column["engine"], np.array([row["packet"] for row in rows]))
    blocker, cause = _blockers(rows, column["done"])
    total = _ps(_total(content)) or int(column["done"].max(initial=0))
    number = [ops.setdefault(row["op"], len(ops)) for row in rows]
    text = [texts.setdefault(row["text"], len(texts)) for row in rows]
    source = [sources.setdefault((row["place"], ""), len(sources)) for row in rows]
    timeline = Timeline(
        name=name,
        target="",
        total=total,
        startup=0,
        completion=0,
        ops=tuple(ops),
        calls=(CallInfo("measured", "measured", 0, len(rows)),),
        start=column["start"],
        end=end,
        begin=column["begin"],
        done=column["done"],
        blocker=blocker.astype(np.int32),
        cause=cause.astype(np.int8),
        held=np.full(len(rows), -1, np.int32),
        engine=column["engine"].astype(np.int8),
        op=np.array(number, np.int32),
        call=np.zeros(len(rows), np.int32),
        meta={"half_rate": _half_rate(content)},
    )
    none = np.full(len(rows), -1)
    return Step(
        timeline,
        tuple(texts),
        tuple(sources),
        np.array(text, np.int64),
        np.array(source, np.int64),
        _chain(timeline),
        (),
        none,
        _occupancy(content),
    )


def _occupancy(content: Mapping[str, Any]) -> dict[str, Occupancy]:
    """How full SBUF and PSUM were, where the profile says it and we know the chip of its instance."""
    (summary, *_) = content.get("summary") or [{}]
    try:
        chip = chips.target(str(summary.get("instance_type"))).chip
    except UsageError:
        return {}
    sizes = {
        "sb": ("sbuf", int(chip.sbuf.bytes_per_partition.value)),
        "psum": ("psum", chip.psum.num_banks * chip.psum.bank_bytes_per_partition),
    }
    found = {}
    for kind, (name, size) in sizes.items():
        rows = [(r["timestamp"], r["usage_avg"]) for r in content.get("instruction_usage", ()) if r["type"] == kind]
        used = {0.0: 0.0} | dict(sorted(rows))
        time = np.array([_ps(t) for t in used], np.int64)
        capacity = size * chip.num_partitions
        full = [round(_number(u, MOST_SHARE) * capacity) for u in used.values()]
        found[name] = Occupancy(capacity, time, np.array(full, np.int64))
    return found if content.get("instruction_usage") else {}


def _total(content: Mapping[str, Any]) -> float:
    """Nanoseconds of the whole run."""
    (summary, *_), (metadata, *_) = content.get("summary") or [{}], content.get("metadata") or [{}]
    return float(summary.get("total_time", 0)) * 1e9 or float(metadata.get("last_hw_timestamp", 0))


def _half_rate(content: Mapping[str, Any]) -> list[tuple[int, int]]:
    """When the PE array ran at less than its full clock, in picoseconds: in windows that use k of n cycles, and
    before the first window, when it has not warmed up.
    """
    windows = sorted(content.get("ham", ()), key=lambda row: float(row["timestamp"]))
    slow = [(row["timestamp"], row["timestamp"] + row["duration"]) for row in windows if row["k"] < row["n"]]
    before = [(0, windows[0]["timestamp"])] if windows else []
    return [(_ps(since), _ps(until)) for since, until in before + slow]


def _instruction(row: Mapping[str, Any]) -> dict[str, Any]:
    start, operands = _ps(row["timestamp"]), str(row.get("operands", "")).strip()
    name, duration = str(row["opcode"]), _ps(row["duration"])
    size = int(row.get("elements_per_partition", 0)) or size_of(name, operands)
    kind = "vendor.transpose" if row.get("instruction_type") == "TRANSPOSE" else "vendor"
    return {
        "start": start,
        "begin": start,
        "done": start + duration,
        "engine": SUBGROUPS[row["subgroup"]],
        "op": OpInfo(name, kind, size, 1, 1, ""),
        "text": f"{name} {operands}",
        "place": str(row.get("nki_source_location") or ""),
        "packet": False,
        "id": row.get("id"),
        "after": [p["id"] for p in row.get("predecessors", ())] + [p["id"] for p in row.get("waited_for", ())],
    }


def _packet(row: Mapping[str, Any]) -> dict[str, Any]:
    start, duration = _ps(row["timestamp"]), _ps(row["duration"])
    size, kind = int(row["transfer_size"]), str(row.get("queue_type", ""))
    queue = int(_number(int(row.get("dma_queue") or 0), MOST_QUEUES))
    name = FETCH if kind == "instruction" else "dma packet"
    op = OpInfo(name, f"vendor.{kind}", size, 1, 1, "", queue=queue, lanes=1, lane_time=duration)
    text = f"{size} B on queue {queue}" + (f" ({kind})" if kind else "")
    return {
        "start": start,
        "begin": start,
        "done": start + duration,
        "engine": _QUEUES.get(kind, 4),
        "op": op,
        "text": text,
        "place": "",
        "packet": True,
        "id": None,
        "after": (),
    }


def size_of(name: str, operands: str) -> int:
    """Elements per partition that an instruction reads, as its operands say; 0 where they do not."""
    found = _SIZES.search(operands)
    if not found or name == "LDWEIGHTS":
        return 0
    return int(np.prod([int(n) for n in found[1].split(",")]))


def _ends(start: Ints, done: Ints, engine: Ints, packet: Ints) -> Ints:
    """Until when an instruction has its engine: the profile tells when its result is there; the next may start
    earlier. Packets do not occupy an engine.
    """
    end = np.where(packet, start, done)
    for code in range(len(ENGINES)):
        mine = np.flatnonzero((engine == code) & ~packet)
        end[mine[:-1]] = np.minimum(end[mine[:-1]], start[mine[1:]])
    return end


def _blockers(rows: Sequence[Mapping[str, Any]], done: Ints) -> tuple[Ints, Ints]:
    """Blockers: of the instructions that each one depends on the one that ended last, and that it was for an
    operand; else the one before it on its engine."""
    number = {row["id"]: i for i, row in enumerate(rows) if row["id"] is not None}
    found, before = np.full(len(rows), -1, np.int64), dict.fromkeys(range(len(ENGINES)), -1)
    cause = np.full(len(rows), CAUSES.index("issue"))
    for i, row in enumerate(rows):
        after = [number[w] for w in row["after"] if number.get(w, i) < i]
        if after:
            found[i], cause[i] = max(after, key=lambda w: int(done[w])), CAUSES.index("operand")
        elif not row["packet"]:
            found[i] = before[row["engine"]]
        if not row["packet"]:
            before[row["engine"]] = i
    return found, cause


def _chain(t: Timeline) -> Ints:
    """Back from the last instruction through what each one waited for."""
    if not len(t):
        return np.empty(0, np.int64)
    i, path = int(t.done.argmax()), []
    while i >= 0:
        path.append(i)
        i = int(t.blocker[i])
    return np.array(path[::-1], np.int64)
