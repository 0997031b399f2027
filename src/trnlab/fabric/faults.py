# SPDX-License-Identifier: Apache-2.0
"""Sick networks: links that are down or slow, by the names that `trnlab fabric show` prints.

`efa:node1.rail3=down`, `link:0-4=half`, `link:node1.0-4=0.25`: a wire in both directions, both sides of a card.
`link:0-4=around`: the wire is down, and what went over it takes the shortest way that is left within the instance.
What the vendor's runtime does is not published; its health checks report such a link, and its node is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

from trnlab.errors import UsageError, did_you_mean
from trnlab.fabric.network import Network

FACTORS = {"down": 0.0, "around": 0.0, "half": 0.5, "quarter": 0.25}


def applied(network: Network, faults: Sequence[str]) -> Network:
    """The network with these faults. Raises UsageError (TRN184) for a link that it does not have."""
    factors: dict[int, float] = {}
    avoided: set[int] = set()
    for fault in faults:
        name, _, change = fault.partition("=")
        factor = _factor(fault, change)
        for number in _links(network, name):
            if change == "around" and number % len(network.template) not in network.wires.values():
                raise UsageError(
                    f"nothing goes around {name}",
                    code="TRN184",
                    limit="wires between chips of an instance",
                    got=fault,
                    remedy="say down, half or a share of its rate",
                )
            factors[number] = factor
            avoided |= {number} if change == "around" else set()
    return network.with_rates(factors, frozenset(avoided))


def _factor(fault: str, change: str) -> float:
    try:
        factor = FACTORS[change] if change in FACTORS else float(change)
    except ValueError:
        factor = -1
    if not 0 <= factor <= 1:
        raise UsageError(
            f"{fault!r} is no fault",
            code="TRN184",
            limit="LINK=down, around, half, quarter or a share from 0 to 1",
            got=fault,
            remedy="for example efa:node0.rail0=down or link:0-1=half",
        )
    return factor


def _links(network: Network, name: str) -> list[int]:
    """The numbers of a wire's two directions, or of a card's two sides."""
    kind, _, rest = name.partition(":")
    if kind == "link":
        head, dot, ends = rest.rpartition(".") if ".node" not in rest else ("", "", rest)
        names = {name, f"link:{head}{dot}{'-'.join(reversed(ends.split('-')))}"}
    else:
        names = {name, f"{name}.out", f"{name}.in"}
    found = [number for number in range(len(network.rates)) if network.name(number) in names]
    if not found:
        known = [
            network.name(number).removesuffix(".out")
            for number in range(len(network.rates))
            if network.kind(number) not in ("hbm", "dma")
        ]
        raise UsageError(
            f"{network.cluster.name} has no link {name!r}",
            code="TRN184",
            limit=f"{len(known)} links, e.g. {', '.join(known[:2])}" if known else "no links at all",
            got=name,
            remedy=did_you_mean(name, known, "`trnlab fabric show` lists them"),
        )
    return found
