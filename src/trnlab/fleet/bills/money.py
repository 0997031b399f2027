# SPDX-License-Identifier: Apache-2.0
"""What a run takes: days, device hours, dollars by kind of price, and what failures and checkpoints add."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trnlab.chips.catalog import Target
from trnlab.units import SECONDS_PER_DAY, SECONDS_PER_HOUR


@dataclass(frozen=True)
class Bill:
    """Bill of a run on so many instances. usd: None where the instance has no public price; `price` says which it
    is."""

    days: float
    device_hours: float
    usd: float | None
    usd_per_million: float | None
    price: str


def spelled(usd: float) -> str:
    """Whole dollars, with the sign before the unit."""
    return f"-${-usd:,.0f}" if usd < 0 else f"${usd:,.0f}"


def bill(tokens: float, tokens_per_s: float, goodput: float, target: Target, instances: int) -> Bill:
    """Bill of training on so many tokens."""
    seconds = tokens / (tokens_per_s * goodput) if goodput > 0 else math.inf
    hours = seconds / SECONDS_PER_HOUR * instances
    price = target.price
    usd = price.usd(hours) if price is not None else None
    return Bill(
        seconds / SECONDS_PER_DAY,
        hours * target.chips,
        usd,
        usd / tokens * 1e6 if usd is not None else None,
        price.origin if price is not None else "no public price",
    )
