# SPDX-License-Identifier: Apache-2.0
"""A run that the vendor's profiler measured, for a terminal and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape

import numpy as np

from trnlab.documents.html import bars, section, table, track
from trnlab.profile.critical import pieces
from trnlab.profile.data import Profile, Step
from trnlab.profile.names import nice_time
from trnlab.profile.pages import pictures
from trnlab.profile.pages.page import document
from trnlab.profile.pages.pictures import COLOURS
from trnlab.timeline import ENGINES
from trnlab.units import format_bytes, format_count

OPCODES = 12


def text(profile: Profile) -> str:
    """What it took, how active the engines were, and which opcodes took how long."""
    rows = list(_facts(profile))
    width = max(len(name) for name, _ in rows)
    head = f"{profile.summary['name']} on {profile.summary['target']}, measured"
    opcodes = [f"  {name:<28}{count:>7,}{nice_time(time):>12}" for name, count, time in _opcodes(profile)]
    facts = [f"{name:<{width}}  {value}" for name, value in rows]
    return "\n".join([head, "", *facts, "", "instructions, from start to result", *opcodes])


def page(profile: Profile) -> str:
    """Its timeline and numbers."""
    name, step = profile.summary["name"], profile.step
    assert isinstance(step, Step)
    head = (
        f'<header>\n<p class="over">measured on {escape(profile.summary["target"])}</p>\n<h1>{escape(name)}</h1>\n'
        f'<p class="lede">The run took <b>{nice_time(step.timeline.total)}</b>.</p>\n</header>'
    )
    shares = [(engine, track(share, COLOURS[engine]), f"{share:.1%}") for engine, share in _active(profile)]
    rows = [(opcode, f"{count:,}", nice_time(time)) for opcode, count, time in _opcodes(profile)]
    body = [
        head,
        pictures.timeline({"script": ""}, step, title="Instruction by instruction"),
        pictures.where(step, pieces(step)),
        section(
            "Engines",
            "Share of the time in which some instruction is under way, or bytes flow.",
            bars(shares, "slim"),
        ),
        section(
            "Opcodes", "From start to result; such times overlap.", table(("", "instructions", "time"), rows, (1, 2))
        ),
        section("Numbers", "", table((), list(_facts(profile)))),
    ]
    return document(name, "\n".join(body))


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
