# SPDX-License-Identifier: Apache-2.0
"""A run that the vendor's profiler measured, as a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from trnlab.documents import PAGE, TERMINAL, Bar, Bars, Document, Later, Note, Section, Table
from trnlab.profile.critical import pieces
from trnlab.profile.data import Profile, Step
from trnlab.profile.names import nice_time
from trnlab.profile.pages import pictures
from trnlab.profile.pages.page import SCRIPTS
from trnlab.profile.pages.pictures import COLOURS
from trnlab.timeline import ENGINES
from trnlab.units import format_bytes, format_count

OPCODES = 12


def document(profile: Profile) -> Document:
    """What it took, how active the engines were, and which opcodes took how long; its timeline on the page."""
    name, target, step = profile.summary["name"], profile.summary["target"], profile.step
    assert isinstance(step, Step)
    facts = Table(list(_facts(profile)))
    head = [Note(f"{name} on {target}, measured"), Note(""), facts]
    return Document(
        name,
        [
            Section(parts=head, on=TERMINAL),
            Later(lambda: _drawn(profile, step), on=PAGE),
            _opcode_section(profile),
            Section(heading="Numbers", parts=[facts], on=PAGE),
        ],
        over=f"measured on {target}",
        lede=f"The run took {nice_time(step.timeline.total)}.",
        scripts=SCRIPTS,
    )


def _drawn(profile: Profile, step: Step) -> Iterator[Section]:
    yield pictures.timeline({"script": ""}, step, title="Instruction by instruction")
    yield pictures.where(step, pieces(step))
    shares = [Bar.of(engine, share, f"{share:.1%}", colour=COLOURS[engine]) for engine, share in _active(profile)]
    say = "Share of the time in which some instruction is under way, or bytes flow."
    yield Section(heading="Engines", say=say, parts=[Bars(shares)])


def _opcode_section(profile: Profile) -> Section:
    """Which opcodes took how long."""
    rows = [(opcode, f"{count:,}", nice_time(time)) for opcode, count, time in _opcodes(profile)]
    say = "From start to result; such times overlap."
    tables = [Table(rows, numbers=(1, 2), on=TERMINAL), Table(rows, ("", "instructions", "time"), (1, 2), on=PAGE)]
    return Section("instructions, from start to result", tables, heading="Opcodes", say=say)


def _facts(profile: Profile) -> Iterator[tuple[str, str]]:
    s, step = profile.summary["vendor"], profile.step
    assert isinstance(step, Step)
    yield "total", nice_time(step.timeline.total)
    yield "active", ", ".join(f"{engine} {share:.0%}" for engine, share in _active(profile))
    if "hbm_read_bytes" in s:
        read, written = (format_bytes(s.get(f"hbm_{way}_bytes") or 0) for way in ("read", "write"))
        yield "HBM", f"{read} read, {written} written"
    if "hardware_flops" in s:
        used = s.get("hfu_estimated_percent") or 0
        yield "PE array", f"{format_count(s['hardware_flops'] or 0)}FLOP, HFU {used:.1%}"
    spilled = (s.get("spill_save_bytes") or 0) + (s.get("spill_reload_bytes") or 0)
    if spilled:
        yield "spilled", format_bytes(spilled)


def _active(profile: Profile) -> list[tuple[str, float]]:
    s = profile.summary["vendor"]
    named = [(name, s.get(f"{name}_engine_active_time_percent")) for name in ENGINES]
    found = [(name, float(share)) for name, share in [*named, ("dma", s.get("dma_active_time_percent"))] if share]
    return sorted(found, key=lambda entry: -entry[1])


def _opcodes(profile: Profile) -> list[tuple[str, int, int]]:
    """Opcode, how many, and their time in picoseconds, the longest first."""
    step = profile.step
    assert isinstance(step, Step)
    t = step.timeline
    spent = np.bincount(t.op, t.done - t.start, len(t.ops)).astype(np.int64).tolist()
    count = np.bincount(t.op, minlength=len(t.ops)).tolist()
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for op, n, time in zip(t.ops, count, spent):
        times[op.name] += time
        counts[op.name] += n
    return [(name, counts[name], time) for name, time in times.most_common(OPCODES)]
