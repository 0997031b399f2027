# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG. Colours are variables of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trnlab.quoting import markup as escape
from trnlab.units import format_count

WIDE, NARROW = (1060, 300), (420, 270)  # drawn for both; the style sheet shows one
MOST_POINTS = 1500  # of a curve
Draw = Callable[[int, int], str]


@dataclass(frozen=True)
class Curve:
    """A line over the steps. `values` may hold None, where the line breaks. A broad one shows beneath a fine one."""

    name: str
    colour: str
    values: Sequence[float | None]
    broad: bool = False


@dataclass(frozen=True)
class Area:
    """What lies between two curves over the steps."""

    name: str
    colour: str
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class RooflinePoint:
    """A routine in a roofline: operations per byte of HBM, operations per second, and its share of the time."""

    name: str
    colour: str
    intensity: float
    rate: float
    share: float


@dataclass(frozen=True)
class ScatterPoint:
    """A point with both values above 0, what it is, and whether it is drawn filled."""

    x: float
    y: float
    name: str
    filled: bool = False


@dataclass(frozen=True)
class PlotArea:
    """The drawing area within an SVG, and the two scales."""

    left: float
    top: float
    right: float
    bottom: float
    low: tuple[float, float]
    high: tuple[float, float]

    def x(self, value: float) -> float:
        """Horizontal place of a value."""
        share = (value - self.low[0]) / (self.high[0] - self.low[0])
        return round(self.left + share * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        """Vertical place of a value."""
        share = (value - self.low[1]) / (self.high[1] - self.low[1])
        return round(self.bottom - share * (self.bottom - self.top), 1)


def both(draw: Draw, title: str) -> str:
    """A chart drawn for wide and for narrow screens."""
    return "".join(
        f'<svg class="{name}" viewBox="0 0 {w} {h}" role="img" aria-label="{escape(title)}">{draw(w, h)}</svg>'
        for name, (w, h) in (("wide", WIDE), ("narrow", NARROW))
    )


def line_chart(curves: Sequence[Curve], areas: Sequence[Area] = (), along: str = "step") -> Draw:
    """Curves over their index, counted from one, above areas. along: what is counted."""
    values = [v for curve in curves for v in curve.values if v is not None]
    values += [v for area in areas for v in (*area.low, *area.high)]
    values = [v for v in values if math.isfinite(v)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    marks = ticks(low, high, 5)
    low, high = min(low, marks[0]), max(high, marks[-1])
    count = max(len(curve.values) for curve in curves)

    def draw(width: int, height: int) -> str:
        frame = PlotArea(44, 12, width - 12, height - 30, (1, low), (max(count, 2), high if high > low else low + 1))
        parts = [_y_mark(frame, mark, f"{mark:.10g}") for mark in marks]
        for mark in ticks(1, count, 8 if width > 600 else 4):
            if 1 <= mark <= count and mark == int(mark) and frame.x(mark) < frame.right - 45:
                parts.append(_text(frame.x(mark), frame.bottom + 20, f"{int(mark)}", "middle"))
        parts.append(_text(frame.right, frame.bottom + 20, along if count > 1 else "", "end"))
        parts += [_area(frame, area) for area in areas]
        parts += [_curve(frame, curve) for curve in curves]
        return "".join(parts)

    return draw


def roofline(points: Sequence[RooflinePoint], peaks: Mapping[str, float], bandwidth: float) -> Draw:
    """Points under the ceilings of the chip: FLOP/s by format, and bytes/s of HBM. Both axes are logarithmic."""
    log = math.log10
    top = log(max(peaks.values())) + 0.35
    x_low = min([log(p.intensity) for p in points] + [-1.0]) - 0.2
    x_high = max([log(p.intensity) for p in points] + [log(max(peaks.values()) / bandwidth)]) + 0.6
    y_low = min([log(p.rate) for p in points] + [top - 4]) - 0.3

    def draw(width: int, height: int) -> str:
        frame = PlotArea(62, 20, width - 12, height - 40, (x_low, y_low), (x_high, top))
        parts = [_y_mark(frame, d, f"{format_count(10.0**d)}") for d in range(math.ceil(y_low), math.floor(top) + 1)]
        for decade in range(math.ceil(x_low), math.floor(x_high) + 1):
            parts.append(_text(frame.x(decade), frame.bottom + 18, f"{10.0**decade:g}", "middle"))
        parts.append(_text(frame.right, frame.bottom + 34, "operations per byte of HBM", "end"))
        parts.append(_text(frame.left, frame.top - 4, "FLOP/s", "start"))
        for name, peak in peaks.items():
            knee = max(log(peak / bandwidth), x_low)
            parts.append(_path("roof", [(frame.x(knee), frame.y(log(peak))), (frame.right, frame.y(log(peak)))]))
            label = f"{name} {format_count(peak)}FLOP/s"
            parts.append(_text(frame.right, frame.y(log(peak)) - 6, label, "end"))
        parts.append(_bandwidth(frame, max(peaks.values()), bandwidth, x_low, y_low))
        parts += [_point(frame, number, point) for number, point in reversed(list(enumerate(points, 1)))]
        return "".join(parts)

    return draw


def scatter(points: Sequence[ScatterPoint], told_x: Callable[[float], str], told_y: Callable[[float], str]) -> Draw:
    """Points that a line joins in their order. Both axes are logarithmic."""
    xs, ys = ([math.log10(value) for value in values] for values in zip(*((p.x, p.y) for p in points)))
    room = [max((max(v) - min(v)) * 0.08, 0.02) for v in (xs, ys)]
    low, high = (min(xs) - room[0], min(ys) - room[1]), (max(xs) + room[0], max(ys) + room[1])

    def draw(width: int, height: int) -> str:
        frame = PlotArea(74, 12, width - 14, height - 34, low, high)
        parts = [_y_mark(frame, y, told_y(10**y)) for y in ticks(low[1], high[1], 4) if low[1] <= y <= high[1]]
        for x in ticks(low[0], high[0], 4 if width > 500 else 2):
            if low[0] <= x <= high[0]:
                parts.append(_text(frame.x(x), frame.bottom + 22, told_x(10**x), "middle"))
        places = [(frame.x(x), frame.y(y)) for x, y in zip(xs, ys)]
        parts.append(_path("curve", places, ' stroke="var(--accent)" stroke-opacity="0.5"'))
        for point, (x, y) in zip(points, places):
            fill = "var(--accent)" if point.filled else "var(--panel)"
            parts.append(
                f'<circle cx="{x}" cy="{y}" r="5" fill="{fill}" stroke="var(--accent)" stroke-width="2">'
                f"<title>{escape(point.name)}</title></circle>"
            )
        return "".join(parts)

    return draw


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers that cover low to high in about `count` steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _curve(frame: PlotArea, curve: Curve) -> str:
    """The line, in pieces where values are missing, thinned where there are more than a screen shows."""
    every = max(1, len(curve.values) // MOST_POINTS)
    pieces: list[list[tuple[float, float]]] = [[]]
    for i in range(0, len(curve.values), every):
        value = curve.values[i]
        if value is None or not math.isfinite(value):
            pieces.append([])
        else:
            pieces[-1].append((frame.x(i + 1), frame.y(value)))
    style = "curve broad" if curve.broad else "curve"
    return "".join(_path(style, piece, f' stroke="{curve.colour}"') for piece in pieces if piece)


def _area(frame: PlotArea, area: Area) -> str:
    """The area, closed along its upper edge; a single step is drawn as a bar of some width."""
    low, high = ([v if math.isfinite(v) else frame.low[1] for v in edge] for edge in (area.low, area.high))
    there = [(frame.x(i), frame.y(v)) for i, v in enumerate(low, 1)]
    back = [(frame.x(i), frame.y(v)) for i, v in enumerate(high, 1)]
    if len(there) == 1:
        (x, bottom), (_, top) = there[0], back[0]
        there, back = [(x - 4, bottom), (x + 4, bottom)], [(x - 4, top), (x + 4, top)]
    return _path("", [*there, *reversed(back)], f' fill="{area.colour}" fill-opacity="0.25" stroke="none"')


def _bandwidth(frame: PlotArea, peak: float, bandwidth: float, x_low: float, y_low: float) -> str:
    """The slope that HBM allows, with its label along it."""
    log = math.log10
    start = max(x_low, y_low - log(bandwidth))
    a = (frame.x(start), frame.y(start + log(bandwidth)))
    b = (frame.x(log(peak / bandwidth)), frame.y(log(peak)))
    angle = math.degrees(math.atan2(b[1] - a[1], b[0] - a[0]))
    x, y = (2 * a[0] + 3 * b[0]) / 5, (2 * a[1] + 3 * b[1]) / 5
    label = f"HBM {format_count(bandwidth)}B/s"
    along = f"translate({x:.1f} {y:.1f}) rotate({angle:.1f})"
    return _path("roof", [a, b]) + f'<text transform="{along}" dy="-6" text-anchor="middle">{label}</text>'


def _point(frame: PlotArea, number: int, point: RooflinePoint) -> str:
    x, y = frame.x(math.log10(point.intensity)), frame.y(math.log10(point.rate))
    radius = 6 + 16 * math.sqrt(point.share)
    title = f"{point.name}: {point.intensity:.3g} operations per byte, {format_count(point.rate)}FLOP/s"
    return (
        f'<g><title>{escape(title)}</title><circle cx="{x}" cy="{y}" r="{radius:.1f}" fill="{point.colour}" '
        f'fill-opacity="0.3" stroke="{point.colour}"/>'
        f'<text class="strong" x="{x}" y="{y}" text-anchor="middle" dominant-baseline="central">{number}</text></g>'
    )


def _y_mark(frame: PlotArea, value: float, label: str) -> str:
    y = frame.y(value)
    grid = f'<line class="grid" x1="{frame.left}" x2="{frame.right}" y1="{y}" y2="{y}"/>'
    return grid + _text(frame.left - 8, y + 4, label, "end")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _path(style: str, points: Sequence[tuple[float, float]], more: str = "") -> str:
    if len(points) == 1:  # a dot, by the round ends of a line without length
        points = [points[0], points[0]]
    return f'<path class="{style}" d="M{"L".join(f"{x:g} {y:g}" for x, y in points)}"{more}/>'
