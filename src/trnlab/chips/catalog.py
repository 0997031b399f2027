# SPDX-License-Identifier: Apache-2.0
"""Chips and instances by name."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files

from trnlab.chips.prices import Price, chosen
from trnlab.chips.spec import Chip
from trnlab.chips.trn1 import INF2, TRN1
from trnlab.chips.trn2 import TRN2
from trnlab.chips.trn3 import TRN3
from trnlab.errors import UsageError, did_you_mean

_CHIPS = {chip.name: chip for chip in (TRN1, TRN2, INF2, TRN3)}
NAMES = tuple(_CHIPS)


@dataclass(frozen=True)
class Target:
    """An instance type that can be rented: so many chips of a kind. source: of its figures; prices have their own."""

    name: str
    chip: Chip
    chips: int
    vcpus: int
    host_memory_gib: int
    source: str
    note: str
    told: Price | None = None  # what somebody pays, in the place of what is published

    @property
    def cores(self) -> int:
        """NeuronCores of the instance."""
        return self.chips * int(self.chip.cores.value)

    @property
    def price(self) -> Price | None:
        """The price to reckon with; None where none is public, nor told."""
        return self.told or chosen(self.name)


def get(name: str) -> Chip:
    """The chip called `name`. Raises UsageError with the names that exist."""
    if name not in _CHIPS:
        raise _unknown("chip", name, NAMES)
    return _CHIPS[name]


def target(name: str) -> Target:
    """The instance type called `name`, or one chip of that name, which has no price. Raises UsageError with the names
    that exist."""
    if name in _CHIPS:
        return _bare(_CHIPS[name])
    if name not in TARGETS:
        raise _unknown("target", name, TARGETS)
    return TARGETS[name]


def _bare(chip: Chip) -> Target:
    """One chip by itself, which nobody rents out."""
    return Target(name=chip.name, chip=chip, chips=1, vcpus=0, host_memory_gib=0, source="", note="")


def _unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    names = list(known)
    remedy = did_you_mean(name, names, f"choose one of the {kind}s above")
    return UsageError(f"unknown {kind} {name!r}", code="TRN101", limit=", ".join(names), got=name, remedy=remedy)


def _load() -> dict[str, Target]:
    with files(__package__).joinpath("instances.csv").open(encoding="utf-8") as file:
        return {row["name"]: _target(row) for row in csv.DictReader(file)}


def _target(row: dict[str, str]) -> Target:
    return Target(
        name=row["name"],
        chip=_CHIPS[row["chip"]],
        chips=int(row["chips"]),
        vcpus=int(row["vcpus"]),
        host_memory_gib=int(row["host_memory_gib"]),
        source=row["source"],
        note=row["note"],
    )


TARGETS = _load()
