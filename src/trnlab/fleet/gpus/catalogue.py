# SPDX-License-Identifier: Apache-2.0
"""Accelerators and instance types of other vendors, from `accelerators.csv` and `instances.csv`.

Peaks are dense. Every row says how it is known: documented (the vendor or an API), press (analysts, one engineer),
derived (arithmetic), recalled (from memory, not verified), assumed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from trnlab.errors import UsageError, did_you_mean
from trnlab.fleet.ranges import PublishedRange

TAGS = ("documented", "press", "derived", "recalled", "assumed")
LINK_DIRECTIONS = 2  # links are written down with both directions added up


@dataclass(frozen=True)
class Accelerator:
    """One GPU or TPU chip."""

    name: str
    vendor: str
    peaks: dict[str, float]  # operations a second by format
    memory: float
    bandwidth: float  # of HBM, byte/s
    link: float  # of what joins the accelerators of a domain, byte/s in one direction
    tag: str
    source: str
    watts: PublishedRange  # at full load

    def peak(self, form: str) -> float:
        """Operations a second in a format. Raises UsageError (TRN155) for one that it has not."""
        if form not in self.peaks:
            raise UsageError(
                f"{self.name} has no {form}",
                code="TRN155",
                limit=", ".join(self.peaks),
                got=form,
                remedy="compare in a format that both sides have",
            )
        return self.peaks[form]


@dataclass(frozen=True)
class Instance:
    """So many accelerators that are rented together."""

    name: str
    provider: str
    accelerator: Accelerator
    count: int
    domain: int  # how many the fast links join
    topology: str
    scaleout: float  # byte/s of the whole instance to others, in one direction
    source: str
    note: str


def _rows(name: str) -> Iterator[dict[str, str]]:
    with files(__package__).joinpath(name).open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


@cache
def accelerators() -> dict[str, Accelerator]:
    """All by name."""
    return {row["name"]: _accelerator(row) for row in _rows("accelerators.csv")}


@cache
def instances() -> dict[str, Instance]:
    """All by name."""
    return {row["name"]: _instance(row) for row in _rows("instances.csv")}


def instance(name: str) -> Instance:
    """The instance type of this name. Raises UsageError (TRN156)."""
    known = instances()
    if name not in known:
        raise UsageError(
            f"unknown instance type {name!r}",
            code="TRN156",
            limit=", ".join(known),
            got=name,
            remedy=did_you_mean(name, known, "`trnlab chips` lists those of Neuron"),
        )
    return known[name]


def _accelerator(row: dict[str, str]) -> Accelerator:
    forms = {"bf16": "bf16_tflops", "fp8": "fp8_tflops", "tf32": "tf32_tflops", "fp32": "fp32_tflops"}
    return Accelerator(
        row["name"],
        row["vendor"],
        {form: float(row[c]) * 1e12 for form, c in forms.items() if row[c]},
        float(row["hbm_gib"]) * 2**30,
        float(row["hbm_gb_per_s"]) * 1e9,
        float(row["link_gb_per_s"]) * 1e9 / LINK_DIRECTIONS,
        row["spec_tag"],
        row["spec_source"],
        PublishedRange(
            float(row["watts"]),
            float(row["watts_low"]),
            float(row["watts_high"]),
            row["watts_tag"],
            row["watts_source"],
        ),
    )


def _instance(row: dict[str, str]) -> Instance:
    return Instance(
        row["name"],
        row["provider"],
        accelerators()[row["accelerator"]],
        int(row["accelerators"]),
        int(row["domain"]),
        row["topology"],
        float(row["scaleout_gbit_per_s"]) * 1e9 / 8,
        row["source"],
        row["note"],
    )
