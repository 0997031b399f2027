# SPDX-License-Identifier: Apache-2.0
"""The pictures of the page, each a section: a title, a sentence or two, and a drawing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trnlab.documents import Bar, Bars, Curve, CurveChart, Drawing, Key, Section, Slice, SplitBar, Table
from trnlab.documents.charts import RooflinePoint, both, roofline
from trnlab.documents.html import sentence
from trnlab.profile import summary as words
from trnlab.profile.critical import KINDS, Pieces, by_kind, by_label, pieces
from trnlab.profile.data import Ints, Step, join
from trnlab.profile.names import nice_time, short_label
from trnlab.profile.routines import RoutineUse, uses
from trnlab.profile.view import MOST, packed
from trnlab.quoting import markup as escape
from trnlab.units import format_bytes, format_count

STEP = "One step, instruction by instruction"
ROWS = 14  # of lists by operation
NUMBERED = 8  # routines in the roofline
COLOURS = {**{kind: f"var(--{kind})" for kind in KINDS}, "start and end": "var(--edge)"}
ROUTINES = {"dot": "var(--tensor)", "attention": "var(--gpsimd)", "rows": "var(--vector)"}
Summary = Mapping[str, Any]

_TIMELINE = """\
<div class="timeline">
<div class="tools"><input type="search" placeholder="Search: exp, op:nc_matmul, line:train.py, graph:gelu"
 aria-label="search instructions" autocomplete="off" spellcheck="false"><button data-do="previous"
 aria-label="previous match">‹</button><button data-do="next" aria-label="next match">›</button><output></output>
<span class="gap"></span>{critical}
<button data-do="all">Everything</button></div>
<div class="view" tabindex="0" role="application" aria-label="{label}"><canvas></canvas></div>
<div class="detail" role="status" hidden></div><div class="tip"></div>
<details><summary>Keys</summary><dl class="keys">{keys}</dl></details>
<script type="application/json" class="data-header">{header}</script>
<script type="text/plain" class="data-bars">{bars}</script>
<script type="text/plain" class="data-instructions">{instructions}</script>
</div>"""
_CRITICAL = '<button data-do="critical" aria-pressed="false">Critical path</button>'
_KEYS = (
    ("← → or A D", "move"),
    ("+ − or W S", "zoom; the wheel and two fingers, too"),
    ("0", "everything"),
    ("/", "search; Enter and Shift+Enter, or N and Shift+N, walk through what is found"),
    ("[ ]", "the instruction before and after, of the same engine or queue"),
    ("↑ ↓", "another engine or queue"),
    ("B", "to what the chosen instruction waited for"),
    ("F", "to the first that waited for it"),
    ("Enter", "closer to the chosen one"),
    ("C", "the critical path alone"),
    ("Esc", "choose nothing"),
)


def number(value: float | None) -> str:
    """A loss for people."""
    return "NaN" if value is None or not math.isfinite(value) else f"{value:.4g}"


def loss(s: Summary) -> Iterator[Section]:
    """The curve, and its reference where there is one."""
    if len(s["loss"]) < 2:
        return
    curves = [Curve(f"{s['target']}, {s['precision']}", "var(--accent)", s["loss"])]
    if s["reference_loss"]:
        curves.insert(0, Curve("CPU, fp32", "var(--reference)", s["reference_loss"], broad=True))
    names = [Key([(c.name, c.colour, number(c.values[-1])) for c in curves])] if len(curves) > 1 else []
    say = sentence(words.learning(s).replace("->", "→"))
    yield Section(heading="Loss", say=say, parts=[CurveChart(curves, "loss by step"), *names])


def timeline(s: Summary, step: Step, kinds: Sequence[tuple[str, Step]] = (), title: str = STEP) -> Section:
    """Every instruction, drawn by the page's scripts; of several kinds of steps one of each, side by side."""
    if kinds:
        step = join([kind for _, kind in kinds])
    parts = [(name, kind.timeline.total) for name, kind in kinds]
    header, first, second = packed(step, pieces(step), s["script"], parts)
    count = len(step.timeline)
    shown = f"All {count:,} instructions" if count <= MOST else f"The first {MOST:,} of {count:,} instructions"
    whose = f" of {len(kinds)} kinds of steps" if kinds else " of a step" if title == STEP else ""
    held = ", with what SBUF and PSUM hold beneath" if step.occupancy else ""
    say = (
        f"{shown}{whose}, by engine and DMA queue{held}. Wheel or pinch zooms, "
        "drag moves. Point at a bar to see what it is and what it waited for; click it to follow the chain that held "
        "it up."
    )
    keys = "".join(f"<dt>{escape(key)}</dt><dd>{escape(what)}</dd>" for key, what in _KEYS)
    drawn = _TIMELINE.format(
        header=header,
        bars=first,
        instructions=second,
        keys=keys,
        label=escape(f"timeline: {title}"),
        critical=_CRITICAL if len(step.critical) else "",
    )
    return Section(heading=title, say=say, parts=[Drawing(drawn)], style="broad")


def where(step: Step, chain: Pieces) -> Section:
    """The critical path by kind of time, and by operation."""
    total = step.timeline.total
    kinds = sorted(((time, name) for name, time in by_kind(step, chain).items() if time), reverse=True)
    whole = [Slice(name, time / total, _share(time, total), COLOURS[name]) for time, name in kinds]
    labels = list(by_label(step, chain).items())
    most = int(labels[0][1].sum()) if labels else 1
    rows = [_where_row(label, times, most, total) for label, times in labels]
    say = (
        "The longest chain of instructions, each held back by the one before: only what lies on it makes the step "
        "longer. Latency is semaphores, and the way of a transfer to its first byte and after its last."
    )
    operations = Section(heading="By operation", parts=[Bars(rows, style="", most_on_page=ROWS)])
    return Section(heading="Where the time goes", say=say, parts=[SplitBar(whole), operations])


def _where_row(label: str, times: Ints, most: int, total: int) -> Bar:
    parts = [(kind, int(time)) for kind, time in zip(KINDS, times) if time]
    slices = [Slice(name, time / most, nice_time(time), COLOURS[name]) for name, time in parts]
    return Bar(short_label(label), [_share(sum(time for _, time in parts), total)], slices)


def _share(time: int, total: int) -> str:
    return f"{nice_time(time)}, {time / total:.1%}"


def roofs(step: Step) -> Iterator[Section]:
    """The routines that run the longest under the ceilings of the chip."""
    found = [use for use in uses(step.timeline) if use.flops and use.bytes and use.time]
    meta = step.timeline.meta
    if not found or not {"peak_flops", "hbm_bandwidth"} <= set(meta):
        return
    total = sum(use.time for use in found)
    points = [_point(use, total) for use in found[:NUMBERED]]
    picture = Drawing(both(roofline(points, meta["peak_flops"], meta["hbm_bandwidth"]), "roofline"))
    head = ("", "routine", "calls", "time", "FLOP per byte", "rate")
    rows = [(str(i), *_routine_row(use)) for i, use in enumerate(found[:NUMBERED], 1)]
    say = (
        f"The {len(points)} routines that run the longest, larger where the time is. Their operations are those of "
        "all engines; the ceilings are what HBM and the PE array allow one core."
    )
    yield Section(heading="Roofline", say=say, parts=[picture, Table(rows, head, (0, 2, 3, 4, 5))])


def _point(use: RoutineUse, total: int) -> RooflinePoint:
    colour = ROUTINES.get(use.label.partition(":")[0], "var(--sync)")
    return RooflinePoint(short_label(use.label), colour, use.intensity, use.rate, use.time / total)


def _routine_row(use: RoutineUse) -> tuple[str, ...]:
    rate = f"{format_count(use.rate)}FLOP/s"
    return short_label(use.label), str(use.calls), nice_time(use.time), f"{use.intensity:.3g}", rate


def engines(s: Summary) -> Section:
    """How much of the step each engine is at work."""
    ordered = sorted(s["engines"].items(), key=lambda item: -item[1]["active"])
    rows = [Bar.of(name, use["active"], f"{use['active']:.1%}", colour=COLOURS[name]) for name, use in ordered]
    say = "Share of the step in which some instruction of the engine is under way, or bytes flow."
    return Section(heading="Engines", say=say, parts=[Bars(rows)])


def hbm(s: Summary) -> Section:
    """What fills HBM, and how much of its size and bandwidth is used."""
    traffic, used = s["hbm"], s["memory"]
    peak = used["peak_bytes"] / used["capacity_bytes"]
    rows = [
        Bar.of("bandwidth", traffic["bandwidth_used"], f"{traffic['bandwidth_used']:.1%}", colour="var(--dma)"),
        Bar.of("capacity", peak, f"{peak:.1%}"),
    ]
    parts = [(name, size) for name, size in used["parts"].items() if size]
    total = sum(size for _, size in parts) or 1
    shades = [f"color-mix(in srgb, var(--accent) {100 - 16 * i}%, var(--panel))" for i in range(len(parts))]
    split = SplitBar([Slice(n, size / total, format_bytes(size), c) for (n, size), c in zip(parts, shades)])
    say = (
        f"{format_bytes(traffic['read_bytes'])} read and {format_bytes(traffic['write_bytes'])} written a step. "
        f"At most {format_bytes(used['peak_bytes'])} of {format_bytes(used['capacity_bytes'])} in use:"
    )
    shares = Section(heading="Used of what the core has", parts=[Bars(rows)])
    return Section(heading="HBM", say=say, parts=[split, shares])
