# SPDX-License-Identifier: Apache-2.0
"""Hardware as data: what a chip description is made of. Every figure says how it is known and where from."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Confidence(enum.StrEnum):
    """How a figure is known."""

    DOCUMENTED = "documented"  # the vendor says so
    MEASURED = "measured"  # somebody's run of a real chip shows it
    DERIVED = "derived"  # arithmetic from documented or measured figures
    ASSUMED = "assumed"  # nothing published: our choice, with a reason


class Figure(NamedTuple):
    """One figure of the hardware with its unit, how it is known, and the source (or, when assumed, the reason)."""

    value: float
    unit: str
    confidence: Confidence
    source: str


@dataclass(frozen=True)
class Sbuf:
    """The state buffer: 128 partitions of on-chip memory."""

    bytes_per_partition: Figure
    reserved_bytes_per_partition: Figure  # kept by the compiler

    @property
    def usable_bytes_per_partition(self) -> int:
        return int(self.bytes_per_partition.value - self.reserved_bytes_per_partition.value)


@dataclass(frozen=True)
class Psum:
    """The accumulation buffer of the PE array."""

    banks: Figure
    bank_bytes: Figure  # per partition

    @property
    def num_banks(self) -> int:
        return int(self.banks.value)

    @property
    def bank_bytes_per_partition(self) -> int:
        return int(self.bank_bytes.value)
