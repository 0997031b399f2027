# SPDX-License-Identifier: Apache-2.0
"""Measurements of real chips, as data.

`data/*.toml` holds one `[[measurement]]` per kernel that somebody ran: chip, kernel (a function of `kernels`), its
sizes, the source, and what was measured. Each measured quantity is an anchor and says what it may be used for:

    calibration       figures of the chip were read from it or adjusted to it
    check             no figure has seen it
    fitted schedule   no figure has seen it, but the order of the kernel's instructions, recorded by hand, was chosen
                      with it in view: it says what the costs of instructions add up to, and nothing about a kernel
                      that somebody brings; it counts in no headline
"""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


class Split(enum.StrEnum):
    """What an anchor may be used for."""

    CALIBRATION = "calibration"
    CHECK = "check"
    FITTED = "fitted schedule"


@dataclass(frozen=True, slots=True)
class Anchor:
    """One measured quantity. value: in picoseconds, or a share of the total time when `unit` is "%".

    quantity: what it is, see `quantities`. note: what to know when it misses.
    """

    quantity: str
    value: float
    unit: str
    split: Split
    note: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One kernel that was run.

    alone: no other core used its stack of HBM. profiled: under the profiler, which makes the start of a program
    longer. window_phase: when a window of the PE array's clock control began, in ns from the start of the program;
    None where the array is taken to run at full rate.
    """

    name: str
    group: str
    chip: str
    kernel: str
    sizes: Mapping[str, Any]
    source: str
    anchors: tuple[Anchor, ...]
    alone: bool = True
    profiled: bool = True
    window_phase: float | None = None


PS = {"ns": 1e3, "us": 1e6, "ms": 1e9, "%": 0.01}


def load() -> tuple[Measurement, ...]:
    """All measurements of the package, by file name and then in file order."""
    folder = files(__package__).joinpath("data")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return tuple(m for name in names for m in parse(folder.joinpath(name).read_text(encoding="utf-8")))


def parse(text: str) -> tuple[Measurement, ...]:
    """The measurements of one file. Raises ValueError or KeyError for one that is not well formed."""
    data = tomllib.loads(text)
    shared = {key: value for key, value in data.items() if key != "measurement"}
    return tuple(_measurement({**shared, **entry}) for entry in data["measurement"])


def _measurement(entry: dict[str, Any]) -> Measurement:
    split = entry.pop("split", None)
    anchors = tuple(_anchor(anchor, split) for anchor in entry.pop("anchors"))
    return Measurement(**{"sizes": {}, **entry}, anchors=anchors)


def _anchor(entry: dict[str, str], split: str | None) -> Anchor:
    number, unit = entry["value"].split()
    return Anchor(
        quantity=entry["quantity"],
        value=float(number) * PS[unit],
        unit=unit,
        split=Split(entry.get("split", split or "missing")),
        note=entry.get("note", ""),
    )
