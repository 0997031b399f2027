# SPDX-License-Identifier: Apache-2.0
"""verify.html: the verdict as one page, in the manner of a run's report."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from trnlab.documents import charts, html
from trnlab.documents.html import document, section
from trnlab.verify.bounds import table as bounds
from trnlab.verify.result import DIFFERS, OpResult, Verdict, worst_by_kind
from trnlab.verify.text import conclusion, named, short

FAILED = "var(--scalar)"


def page(verdict: Verdict) -> str:
    """The whole page."""
    body = "\n".join([_top(verdict), *_first(verdict), *_losses(verdict), *_worst(verdict), *_bounds()])
    return document(f"verify {Path(verdict.script).name}", body)


def _top(v: Verdict) -> str:
    what = f"{v.compared:,} results of ops, {v.elements:,} elements" if v.compared else ""
    against = (
        f"against {Path(v.against).name}" if v.against else f"on {v.target}, {v.precision}, against {v.reference}"
    )
    notice = "" if v.clean else f'<p class="notice"><b>{escape(conclusion(v))}</b></p>'
    clean = f'<p class="lede">{escape(conclusion(v).capitalize())}.</p>' if v.clean else ""
    return (
        f'<header>\n<p class="over">trnlab verify {escape(against)}</p>\n<h1>{escape(Path(v.script).name)}</h1>'
        f'{clean}{notice}<p class="say">{escape(what)}</p></header>'
    )


def _first(v: Verdict) -> Iterator[str]:
    r = v.first
    if r is None:
        return
    rows = [
        ("op", f"{named(r)}, step {r.step}"),
        ("layer", r.place.layer or "outside of a module"),
        ("line", str(r.place)),
    ]
    rows += [("", r.place.text)] if r.place.text else []
    rows += [("against", f"{r.other}  {r.other.text}")] if r.other else []
    rows += [
        ("result", f"{r.format}{list(r.shape)}" + (f", element {list(r.index)}" if r.index else "")),
        ("this" if r.other else "chip", f"{r.chip:.9g}"),
        ("other" if r.other else "host", f"{r.reference:.9g}" + (f" ± {r.bound:.2g}" if r.bound else "")),
        ("because", r.condition + (f": {r.why}" if r.why else "")),
        ("do", r.remedy),
    ]
    yield section("The first divergence", "", html.table((), rows))
    around = v.neighbours()
    if around:
        say = "The results before and after it in graph order, and each one's worst element in units of its bound."
        head = ("", "op", "layer", "line", "error / bound")
        yield section("Around it", say, html.table(head, [_row(x, x is r) for x in around], (4,)))


def _row(r: OpResult, first: bool) -> tuple[str, ...]:
    mark = "→" if first else "differs" if r.status == DIFFERS else ""
    return mark, named(r), r.place.layer, short(r), f"{r.ratio:.3g}"


def _losses(v: Verdict) -> Iterator[str]:
    curves = v.curves
    if not curves.reference:
        return
    band = curves.band()
    names = ("this", "the other") if v.against else ("chip", "host")
    hosts = curves.reference
    area = charts.Area(
        "rounding alone",
        "var(--reference)",
        [b[0] - h for b, h in zip(band, hosts)],
        [b[1] - h for b, h in zip(band, hosts)],
    )
    apart = charts.Curve(names[0], "var(--accent)", [a - h for a, h in zip(curves.chip, hosts)])
    lines = [
        charts.Curve(names[1], "var(--reference)", curves.reference, broad=True),
        charts.Curve(names[0], "var(--accent)", curves.chip),
    ]
    picture = charts.both(charts.line_chart(lines), "loss")
    distance = charts.both(charts.line_chart([apart], [area]), "distance of the losses")
    title = f"<h3>{escape(names[0]).capitalize()} minus {escape(names[1])}, and what rounding alone gives</h3>"
    key = html.key((c.name, c.colour, f"{c.values[-1]:.6g}") for c in reversed(lines))
    say = (
        "The band is what rounding alone would give: the reference repeated with errors of half a unit in the last "
        "place thrown in wherever the chip rounds."
    )
    rows = [
        (str(i), f"{a:.7g}", f"{b:.7g}", f"{low:.7g} to {high:.7g}", "" if low <= a <= high else "outside")
        for i, (a, b, (low, high)) in enumerate(zip(curves.chip, curves.reference, band), 1)
    ]
    numbers = html.table(("step", *names, "rounding alone", ""), rows, (0, 1, 2))
    yield section("Loss", say, key + picture + title + distance + numbers)


def _worst(v: Verdict) -> Iterator[str]:
    worst = worst_by_kind(v)
    if not worst:
        return
    rows = [
        (kind, html.track(min(ratio, 1), "var(--accent)"), f"{ratio:.3f}")
        for kind, ratio in sorted(worst.items(), key=lambda item: -item[1])
    ]
    say = "The largest error of any element, in units of what its kind of op may err; results that differ left out."
    yield section("How near to the bounds", say, html.bars(rows, "slim"))


def _bounds() -> Iterator[str]:
    say = (
        "An element may lie from the exact result, for the operands that the chip had, by u of its format times the "
        "result, and by c u(float32) times the scale; n is the number of terms."
    )
    rows = [(kind, c, scale) for kind, c, scale, _ in bounds()]
    yield section("Bounds", say, html.table(("kind of op", "c", "scale"), rows))
