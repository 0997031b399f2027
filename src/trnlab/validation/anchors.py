# SPDX-License-Identifier: Apache-2.0
"""Measurements of real chips that no kernel from a public source is timed for, as data, and the lines that say so.

`data/not_covered.toml` holds one `[[measurement]]` for each kernel that somebody ran: chip, source, why it is not
covered, and what was measured. Each measured quantity is an anchor and says what it may be used for:

    calibration       figures of the chip may be read from it
    check             no figure has seen it

Kernels that are timed lie in `sources`.
"""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from trnlab.documents import Section, Table
from trnlab.units import PS_PER_S, format_time


class Split(enum.StrEnum):
    """What an anchor may be used for."""

    CALIBRATION = "calibration"
    CHECK = "check"


class Uncovered(enum.StrEnum):
    """Why a measurement is not covered."""

    NO_SOURCE = "no source"
    ONLY_TOTAL = "only total"


MEANING = {
    Uncovered.NO_SOURCE: "no kernel of these sizes is timed from a public source",
    Uncovered.ONLY_TOTAL: "the kernel is timed from its source; this quantity of it is not compared",
}


@dataclass(frozen=True, slots=True)
class Anchor:
    """One measured quantity."""

    # "total" and "span" (from the first trigger or instruction to the last result) of a run; "active ENGINE"; of
    # an instruction "duration", "interval" (start to start), and of a transfer "trigger", "lead" (trigger to
    # first byte), "transfer" (first to last byte), "tail" (last byte to semaphore), "arrival" (trigger to
    # semaphore). An instruction is named by its cost class, elements a partition and format, "@i" being the i-th
    # and else the median.
    quantity: str
    value: float  # in picoseconds, or a share of the total time when `unit` is "%"
    unit: str
    split: Split
    note: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One kernel that was run, with what no prediction is held against."""

    name: str
    chip: str
    source: str
    why: Uncovered
    anchors: tuple[Anchor, ...]


PS = {"ns": 1e3, "us": 1e6, "ms": 1e9, "%": 0.01}


def load() -> tuple[Measurement, ...]:
    """All measurements of the package that are not covered, in file order."""
    return parse(files(__package__).joinpath("data", "not_covered.toml").read_text(encoding="utf-8"))


def parse(text: str) -> tuple[Measurement, ...]:
    """The measurements of one file. Raises ValueError, KeyError or TypeError for one that is not well formed."""
    return tuple(_measurement(entry) for entry in tomllib.loads(text)["measurement"])


def _measurement(entry: dict[str, Any]) -> Measurement:
    split = entry.pop("split", None)
    anchors = tuple(_anchor(anchor, split) for anchor in entry.pop("anchors"))
    return Measurement(why=Uncovered(entry.pop("why")), anchors=anchors, **entry)


def _anchor(entry: dict[str, str], split: str | None) -> Anchor:
    number, unit = entry["value"].split()
    return Anchor(
        quantity=entry["quantity"],
        value=float(number) * PS[unit],
        unit=unit,
        split=Split(entry.get("split", split or "missing")),
        note=entry.get("note", ""),
    )


def sections(measurements: Sequence[Measurement]) -> Iterator[Section]:
    """A line for each measured quantity, by why nothing is held against it; nothing where there is none."""
    parts = []
    for why in Uncovered:
        rows = [row for m in measurements if m.why is why for row in _rows(m)]
        if rows:
            parts.append(Section(f"{why.value}: {MEANING[why]}", [Table(rows, numbers=[1])]))
    if parts:
        yield Section(f"not covered: {len(measurements)} measurements", parts)


def _rows(m: Measurement) -> Iterator[tuple[str, ...]]:
    yield (f"{m.name} ({m.chip})",)
    for a in m.anchors:
        yield f"  {a.quantity}", _shown(a), a.split.value, f"({a.note})" if a.note else ""


def _shown(anchor: Anchor) -> str:
    return f"{anchor.value:.2%}" if anchor.unit == "%" else format_time(anchor.value)


def to_json(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """The same as JSON data, one entry a quantity: times in seconds, shares as numbers between 0 and 1."""
    return [
        {
            "measurement": m.name,
            "chip": m.chip,
            "source": m.source,
            "why": m.why.value,
            "quantity": a.quantity,
            "unit": "share" if a.unit == "%" else "s",
            "measured": a.value if a.unit == "%" else a.value / PS_PER_S,
            "used_for": a.split.value,
            "note": a.note,
        }
        for m in measurements
        for a in m.anchors
    ]
