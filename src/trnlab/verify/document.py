# SPDX-License-Identifier: Apache-2.0
"""A verdict as a document: the first divergence in its surroundings, the losses, and one line that says it all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from trnlab.documents import (
    PAGE,
    TERMINAL,
    Area,
    Bar,
    Bars,
    Curve,
    CurveChart,
    Document,
    Key,
    Note,
    Part,
    Section,
    Table,
)
from trnlab.documents.html import sentence
from trnlab.verify.bounds import table as bounds
from trnlab.verify.result import DIFFERS, OpResult, Verdict, to_json, worst_by_kind

_WIDE = 52
_AROUND = "The results before and after it in graph order, and each one's worst element in units of its bound."
_BAND = (
    "The band is what rounding alone would give: the reference repeated with errors of half a unit in the last place "
    "thrown in wherever the chip rounds."
)
_WORST = "The largest error of any element, in units of what its kind of op may err; results that differ left out."
_BOUNDS = (
    "An element may lie from the exact result, for the operands that the chip had, by u of its format times the "
    "result, and by c u(float32) times the scale; n is the number of terms."
)


def document(v: Verdict) -> Document:
    """The whole report."""
    said = conclusion(v)
    host = f"on {v.target}, {v.precision}, against {v.reference}"
    return Document(
        Path(v.script).name,
        [Note(_head(v), on=TERMINAL), *_first(v), *_losses(v), *_worst(v), *_counts(v), _bounds(), _last(said)],
        over=f"trnlab verify {f'against {Path(v.against).name}' if v.against else host}",
        lede=sentence(said) if v.clean else "",
        notice="" if v.clean else said,
        name=f"verify {Path(v.script).name}",
        record=lambda: to_json(v),
    )


def conclusion(verdict: Verdict) -> str:
    """The last line."""
    steps = f"{verdict.steps} step{'s' * (verdict.steps != 1)}"
    if verdict.clean:
        return f"no difference beyond rounding in {steps}"
    first = verdict.first
    if first is None:
        return (
            f"the loss of step {verdict.curves.outside()} lies outside of what rounding gives, and no op is to blame"
        )
    gradient = " (gradient)" if first.gradient else ""
    return f"first divergence: {first.op}{gradient} at {_short(first)}, {first.condition}"


def _last(said: str) -> Section:
    return Section(parts=[Note(said)], on=TERMINAL)


def _short(result: OpResult) -> str:
    """File and line, the file without its folders."""
    return f"{Path(result.place.file).name}:{result.place.line}" if result.place.file else "an unknown line"


def _named(result: OpResult) -> str:
    """The op, and whether it is of the backward pass."""
    return f"{result.op}{', gradient' if result.gradient else ''}"


def _head(verdict: Verdict) -> str:
    if verdict.against:
        return f"{verdict.script} against {verdict.against}, both on the host, {verdict.steps} steps"
    return (
        f"{verdict.script} on {verdict.target}, {verdict.precision} matrix products, against PyTorch on the host "
        f"({verdict.reference}), {verdict.steps} steps"
    )


def _first(v: Verdict) -> Iterator[Section]:
    r = v.first
    if r is None:
        return
    title = f"first divergence  {_named(r)}, step {r.step}"
    op = Table([("op", f"{_named(r)}, step {r.step}")], on=PAGE)
    yield Section(title, [op, Table(list(_divergence(r)))], heading="The first divergence")
    rows = [
        (
            "->" if x is r else "",
            _named(x)[:_WIDE],
            f"{x.ratio:.3g}",
            x.place.layer,
            _short(x),
            "differs" if x.status == DIFFERS else "",
        )
        for x in v.neighbours()
    ]
    if rows:
        table = Table(rows, ("", "in graph order", "error / bound", "layer", "line", ""), [2])
        yield Section(parts=[table], heading="Around it", say=_AROUND)


def _divergence(r: OpResult) -> Iterator[tuple[str, str]]:
    """Where it is, what was computed there and what was to be, and what may be done."""
    where = r.place
    yield "layer", where.layer or "outside of a module"
    yield "at", f"{where}" + (f" in {where.function}" if where.function else "")
    if where.text:
        yield "", where.text
    if r.other is not None:
        yield "against", str(r.other)
        yield "", r.other.text
    yield "result", f"{r.format}{list(r.shape)}" + (f", element {list(r.index)}" if r.index else "")
    yield "chip" if r.other is None else "this", f"{r.chip:.9g}"
    allowed = f"  (+- {r.bound:.2g} allowed)" if r.bound else ""
    yield "host" if r.other is None else "other", f"{r.reference:.9g}{allowed}"
    if r.wrong:
        yield "wrong", f"{r.wrong:,} of {math.prod(r.shape):,} elements"
    yield "because", r.condition + (f": {r.why}" if r.why else "")
    if r.remedy:
        yield "do", r.remedy


def _losses(v: Verdict) -> Iterator[Section]:
    curves, band, hosts = v.curves, v.curves.band(), v.curves.reference
    if not hosts:
        return
    names = ("this", "other") if v.against else ("chip", "host")
    rows = [
        (str(i), f"{a:.7g}", f"{b:.7g}", f"{low:.7g} to {high:.7g}", _mark(v, i, low <= a <= high))
        for i, (a, b, (low, high)) in enumerate(zip(curves.chip, hosts, band), 1)
    ]
    lines = [
        Curve(names[1], "var(--reference)", hosts, broad=True),
        Curve(names[0], "var(--accent)", curves.chip),
    ]
    lows, highs = ([b[i] - h for b, h in zip(band, hosts)] for i in (0, 1))
    apart = Curve(names[0], "var(--accent)", [a - h for a, h in zip(curves.chip, hosts)])
    area = Area("rounding alone", "var(--reference)", lows, highs)
    distance = f"{names[0].capitalize()} minus {names[1]}, and what rounding alone gives"
    parts: list[Part] = [
        Key([(c.name, c.colour, f"{c.values[-1]:.6g}") for c in reversed(lines)]),
        CurveChart(lines, "loss"),
        Section(heading=distance, parts=[CurveChart([apart], "distance of the losses", [area])], on=PAGE),
        Table(rows, ("loss", *names, "rounding alone gives", "")),
    ]
    yield Section(parts=parts, heading="Loss", say=_BAND)


def _mark(v: Verdict, step: int, inside: bool) -> str:
    """A loss that lies outside after one that could no longer be rounding."""
    outside = v.curves.outside()
    return "outside" if outside is not None and step >= outside and not inside else ""


def _worst(v: Verdict) -> Iterator[Section]:
    found = sorted(worst_by_kind(v).items(), key=lambda item: -item[1])
    if found:
        bars = Bars([Bar.of(kind, min(ratio, 1), f"{ratio:.3f}") for kind, ratio in found])
        yield Section(heading="How near to the bounds", parts=[bars], say=_WORST, on=PAGE)


def _counts(v: Verdict) -> Iterator[Section]:
    worst = {k: r for k, r in worst_by_kind(v).items() if r}
    nearest = max(worst.items(), key=lambda item: item[1], default=None)
    close = f"; the largest error is {nearest[1]:.2f} of its bound ({nearest[0]})" if nearest else ""
    lines = [f"compared {v.compared:,} results of ops, {v.elements:,} elements, in {v.seconds:.0f} s{close}"]
    if v.skipped:
        ops = sorted({r.op for r in v.skipped})
        lines.append(f"not compared: {len(v.skipped)} results of {', '.join(ops[:5])}{' ...' * (len(ops) > 5)}")
    if not v.against:
        same = "bit for bit those of" if v.same_program else "NOT all the same as those of"
        lines.append(
            f"the outputs of the program that shows its intermediate results are {same} the program that you run"
        )
    lines += v.notes
    more = len(v.differing) - 1
    if more > 0:
        said = f"{more} more result{'s' * (more != 1)} after the first differ{'s' * (more == 1)}"
        lines.append(f"{said}; --json has them all")
    yield Section(parts=[Note(line) for line in lines], heading="What was compared")


def _bounds() -> Section:
    rows = [(kind, c, scale) for kind, c, scale, _ in bounds()]
    return Section(heading="Bounds", parts=[Table(rows, ("kind of op", "c", "scale"))], say=_BOUNDS, on=PAGE)
