# SPDX-License-Identifier: Apache-2.0
"""Flows that share links: how long it takes until the last byte of a step has arrived.

All flows of a step begin at once. At any moment every flow has its max-min fair rate: rates grow together until a
link is full, whose flows then stay as they are while the others grow on. When flows end, the rest share anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trnlab.fabric.schedule import Ints

Floats = npt.NDArray[np.float64]
_CLOSE = 1e-9  # relative: what ends or fills up within it does so at once


@dataclass(frozen=True, eq=False)
class Flows:
    """`size[f]` bytes each. Row i of `flow`"""

    size: Floats
    flow: Ints
    # link, weight: flow f takes `weight` bytes of link l per byte
    link: Ints
    weight: Floats


def duration(flows: Flows, rates: Floats) -> float:
    """Seconds until all flows are through; infinite where one needs a link without a rate."""
    left = flows.size.astype(np.float64).copy()
    active = left > 0
    clock = 0.0
    while active.any():
        rate = fair(flows, rates, active)
        if (rate[active] <= 0).any():
            return float("inf")
        with np.errstate(divide="ignore"):
            until = np.where(active, left / np.where(rate > 0, rate, 1), np.inf)
        step = float(until.min())
        clock += step
        left = np.where(active, left - rate * step, 0)
        active &= until > step * (1 + _CLOSE)
    return clock


def fair(flows: Flows, rates: Floats, active: npt.NDArray[np.bool_]) -> Floats:
    """The max-min fair rate of each active flow, byte/s; zero for the others and over a link without rate."""
    rate = np.zeros(len(flows.size))
    growing = active.copy()
    room = rates.astype(np.float64).copy()
    while growing.any():
        rows = growing[flows.flow]
        wanted = np.bincount(flows.link, np.where(rows, flows.weight, 0), len(rates))
        level = np.divide(np.maximum(room, 0), wanted, out=np.full(len(rates), np.inf), where=wanted > 0)
        lowest = float(level.min())
        if not np.isfinite(lowest):  # these flows take no link at all
            rate[growing] = np.inf
            break
        full = level <= lowest * (1 + _CLOSE)
        stops = _touching(flows, rows, full, len(rate))
        rate[growing] += lowest
        room -= wanted * lowest
        growing &= ~stops
    return rate


def loads(flows: Flows, links: int) -> Floats:
    """Bytes over each link."""
    carried = flows.weight * flows.size[flows.flow]
    return np.bincount(flows.link, carried, links).astype(np.float64)


def _touching(flows: Flows, rows: npt.NDArray[Any], full: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.bool_]:
    """Which flows take a link that is full."""
    found = np.zeros(count, dtype=bool)
    found[flows.flow[rows & full[flows.link]]] = True
    return found
