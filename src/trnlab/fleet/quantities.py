# SPDX-License-Identifier: Apache-2.0
"""Amounts as people write them, 2T tokens, 30d, $1M, 2GW; an amount of one kind is never read as another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trnlab.errors import UsageError
from trnlab.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, SECONDS_PER_MINUTE, SECONDS_PER_WEEK

_COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15}
DIGITS = 7  # of a number of instances: more than there are
_NUMBER = re.compile(r"\s*(\$?)\s*([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True)
class QuantityKind:
    """What is counted: its name, the factor of each suffix, and an example."""

    name: str
    units: Mapping[str, float]
    example: str
    dollar: bool = False
    most: float = 1e18  # that any can be: a limit of what is reckoned with, far beyond what there is


TOKENS = QuantityKind("tokens", _COUNTS, "2T")
COUNT = QuantityKind("count", _COUNTS, "500000 or 500k")
TIME = QuantityKind(
    "time",
    {
        "ms": 1e-3,
        "s": 1.0,
        "min": SECONDS_PER_MINUTE,
        "h": SECONDS_PER_HOUR,
        "d": SECONDS_PER_DAY,
        "w": SECONDS_PER_WEEK,
        "y": 365 * SECONDS_PER_DAY,
    },
    "30d or 12h",
    most=1e12,
)
POWER = QuantityKind("power", {"W": 1.0, "kW": 1e3, "MW": 1e6, "GW": 1e9}, "2GW", most=1e15)
MONEY = QuantityKind("money", _COUNTS, "$1M", dollar=True)


def parse(text: str, kind: QuantityKind, option: str) -> float:
    """The amount, in the kind's own unit: tokens, seconds, watts, US dollars. Raises UsageError (TRN173)."""
    found = _NUMBER.fullmatch(text)
    if found is None or found[3] not in kind.units or bool(found[1]) > kind.dollar:
        raise _wrong(text, kind, option)
    value = float(re.sub("[_,]", "", found[2])) * kind.units[found[3]]
    if not 0 < value <= kind.most:
        raise _wrong(text, kind, option)
    return value


def parse_range(text: str, option: str) -> tuple[int, int]:
    """`16..256`, or `16` alone: both ends. Raises UsageError (TRN173)."""
    found = re.fullmatch(r"([0-9]+)(?:\.\.([0-9]+))?", text.strip())
    ends = (found[1], found[2] or found[1]) if found else ()
    low, high = map(int, ends) if ends and max(map(len, ends)) <= DIGITS else (0, 0)
    if low < 1 or high < low:
        raise UsageError(
            f"{option} takes a number, or a range of them",
            code="TRN173",
            limit=f"whole numbers from 1 on, of at most {DIGITS} digits, the smaller one first",
            got=text,
            remedy="write it as 16..256, or 64",
        )
    return low, high


def _wrong(text: str, kind: QuantityKind, option: str) -> UsageError:
    units = ", ".join(unit for unit in kind.units if unit)
    return UsageError(
        f"{option} takes {'a count' if kind is COUNT else f'an amount of {kind.name}'}",
        code="TRN173",
        limit=f"a number above 0, of at most {kind.most:g}{f' with one of {units}' if units else ''}",
        got=text,
        remedy=f"write it as {kind.example}",
    )
