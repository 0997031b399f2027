# SPDX-License-Identifier: Apache-2.0
"""Which assumptions a run's time leans on: what its summary says, as a document with a band, and a tornado picture.

A run times its step again with half and with twice of every figure that nobody has published. The band takes all
of them at once, as if each were off by a factor of two in either direction and independent of the others: the square
root of the sum of the squares, on each side. Figures that are published count as exact; `trnlab validate` says how
well the model as a whole meets real chips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnlab import profile
from trnlab.documents import TERMINAL, Document, Note, Part, Table
from trnlab.errors import RunError
from trnlab.profile.band import band
from trnlab.quoting import markup as escape
from trnlab.units import PS_PER_S, format_time

PICTURE = "sensitivity.svg"
WIDTH, ROW, TOP, LABELS, NUMBERS = 900, 26, 56, 300, 90  # pixels of the picture
MOST_BARS = 20
_HEAD = ("figure", "value", "half", "twice", "why this value")

Assumption = Mapping[str, Any]  # an entry of "assumptions" in a run's summary


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """A step's time in seconds, and the assumed figures that move it, the most important first."""

    step_s: float
    assumptions: tuple[Assumption, ...]
    choices: tuple[Assumption, ...] = ()

    @property
    def band(self) -> tuple[float, float]:
        """The step's time in seconds with the assumptions off to the fast side and to the slow side."""
        return band(self.step_s, self.assumptions, self.choices)


def sensitivity(folder: Path) -> Sensitivity:
    """What the summary of a run says. Raises RunError when there is none, or nothing in the run was timed."""
    summary = profile.read_summary(folder)
    if "step_time_s" not in summary:
        raise RunError(
            f"nothing was timed in {str(folder)!r}",
            code="TRN814",
            got=f"a run that is {summary.get('status')}",
            remedy="let the script run at least one step to its end",
        )
    return Sensitivity(summary["step_time_s"], tuple(summary["assumptions"]), tuple(summary.get("choices", ())))


def document(found: Sensitivity) -> Document:
    """The step's time with its band, and a line per assumption."""
    low, high = (_time(value) for value in found.band)
    between = f", between {low} and {high}" if found.assumptions or low != high else ""
    off = " if the figures below are off by a factor of two" if found.assumptions else ""
    said = f"step {_time(found.step_s)}{between}{off}"
    parts: list[Part] = [Note("it depends on no assumed figure")]
    if found.assumptions:
        parts = [Note("", on=TERMINAL), Table(list(map(_row, found.assumptions)), _HEAD, (1, 2, 3))]
    others = [f"{c['change']:+.2%} if the compiler's {c['option']} is {c['value']}" for c in found.choices]
    return Document(
        "What a step's time leans on", [Note(said), *parts, *map(Note, others)], over="trnlab sensitivity"
    )


def _row(a: Assumption) -> tuple[str, ...]:
    return a["figure"], f"{a['value']:g} {a['unit']}", f"{a['halved']:+.2%}", f"{a['doubled']:+.2%}", a["reason"]


def tornado(found: Sensitivity) -> str:
    """The same as an SVG: a pair of bars per assumption, to the left what makes the step faster."""
    shown = found.assumptions[:MOST_BARS]
    largest = max((abs(a[side]) for a in shown for side in ("halved", "doubled")), default=0.0) or 1.0
    height = TOP + ROW * len(shown) + 16
    low, high = found.band
    title = f"step {_time(found.step_s)}, between {_time(low)} and {_time(high)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="16" y="24">{title}</text>',
        '<text class="half" x="16" y="43">with half of the figure</text>'
        '<text class="twice" x="190" y="43">with twice the figure</text>',
        *(_bars(i, a, largest) for i, a in enumerate(shown)),
        f'<line class="axis" x1="{_x(0, largest)}" y1="{TOP - 4}" x2="{_x(0, largest)}" y2="{height - 12}"/>',
        "</svg>",
    ]
    return "\n".join(parts)


def _bars(index: int, a: Assumption, largest: float) -> str:
    y = TOP + ROW * index
    bars: Sequence[str] = [
        f'<rect class="{name}" x="{min(_x(0, largest), _x(a[side], largest)):.1f}" y="{y + offset}"'
        f' width="{abs(_x(a[side], largest) - _x(0, largest)):.1f}" height="8"/>'
        for side, name, offset in (("halved", "half", 4), ("doubled", "twice", 13))
    ]
    low, high = sorted((a["halved"], a["doubled"]))
    value = f"{a['value']:g} {a['unit']}"
    return "\n".join(
        (
            f"<g><title>{escape(a['reason'])}</title>",
            f'<text x="16" y="{y + 17}">{escape(a["figure"])} <tspan class="value">{escape(value)}</tspan></text>',
            *bars,
            f'<text class="value" x="{WIDTH - NUMBERS}" y="{y + 17}">{low:+.1%} {high:+.1%}</text></g>',
        )
    )


def _x(change: float, largest: float) -> float:
    """Where a relative change lies."""
    half = (WIDTH - LABELS - NUMBERS - 24) / 2
    return LABELS + half + change / largest * half


def _time(seconds: float) -> str:
    return format_time(seconds * PS_PER_S)


_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2933}.title{font-weight:600;font-size:15px}.value{fill:#66727f}"
    ".page{fill:#fff}.half{fill:#2f6fb2}.twice{fill:#c2622d}.axis{stroke:#66727f}"
    "@media(prefers-color-scheme:dark){text{fill:#e6e9ed}.value{fill:#9aa5b1}.page{fill:#15191e}"
    ".half{fill:#6aa5e3}.twice{fill:#e8935f}.axis{stroke:#9aa5b1}}"
)
