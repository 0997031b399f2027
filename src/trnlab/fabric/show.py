# SPDX-License-Identifier: Apache-2.0
"""A cluster's network as text: chips and wires as a picture, links, rings and rails as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from trnlab.chips.spec import Figure
from trnlab.fabric.cycles import cycles
from trnlab.fabric.network import Network


def text(network: Network) -> str:
    """Everything about the network."""
    cluster, wires = network.cluster, network.cluster.interconnect
    each = cluster.target.chips
    lines = [
        f"{cluster.name}: {cluster.instances} x {each} chips of {cluster.target.chip.title}, "
        f"{cluster.ranks_per_chip} ranks a chip, {cluster.ranks} ranks",
        "",
    ]
    lines += [*_picture(network), "", *_links(network)]
    if wires.kind in ("torus", "ring") and len(wires.shape) < 3:
        ways = cycles(tuple(range(each)), network.neighbours())
        lines += ["", f"rings through an instance that share no wire ({len(ways)}, found by search):"]
        lines += ["  " + " ".join(map(str, way)) for way in ways]
    if wires.cards:
        lines += ["", *_rails(network)]
    return "\n".join(lines)


def _picture(network: Network) -> Iterator[str]:
    """The chips of one instance where they lie; `*` marks wires that go round."""
    wires, each = network.cluster.interconnect, network.cluster.target.chips
    if wires.kind == "torus":
        rows, columns = wires.shape[-2:]
        yield "     " + "    ".join("*" * columns)
        for row in range(rows):
            yield "  *--" + "--".join(f"[{row * columns + column:2d}]" for column in range(columns)) + "--*"
            if row + 1 < rows:
                yield "     " + "     ".join(" |"[:1] + "|" for _ in range(columns))
        yield "     " + "    ".join("*" * columns)
        if len(wires.shape) == 3:
            yield f"  {wires.shape[0]} such planes; equal chips of all planes form a ring"
    elif wires.kind == "ring":
        yield "  *--" + "--".join(f"[{chip}]" for chip in range(each)) + "--*"
    elif wires.kind == "switched":
        yield f"  {wires.shape[0]} groups of {wires.shape[1]} chips behind switches"
    else:
        yield "  [0]   a chip by itself"


def _links(network: Network) -> Iterator[str]:
    """How many links of each kind, and how fast."""
    names = {
        "wire": "wires between chips",
        "far": "wires between instances or racks",
        "sled": "ways within a sled",
        "card": "EFA cards, each side",
        "hbm": "HBM of a chip",
        "dma": "DMA engines of a chip",
    }
    kinds = Counter((network.kind(number), float(rate)) for number, rate in enumerate(network.rates))
    yield f"{'resource':34}{'count':>8}{'GB/s each':>12}"
    for (kind, rate), count in sorted(kinds.items()):
        yield f"{names[kind]:34}{count:8d}{rate / 1e9:12.1f}"
    yield "as collectives use them: " + ", ".join(
        f"{figure.value:.0%} of {what} ({figure.confidence})"
        for what, figure in (("wires", network.costs.link_efficiency), ("cards", network.costs.card_efficiency))
    )
    yield f"wires: {_known(network.cluster.interconnect.near)}"
    steps = (("within an instance", network.costs.step), ("between instances", network.costs.network_step))
    yield "a step costs " + ", ".join(f"{f.value / 1e3:g} us {what} ({f.confidence})" for what, f in steps)


def _rails(network: Network) -> Iterator[str]:
    """Which chips of an instance share a card."""
    each = network.cluster.target.chips
    cards = network.cluster.interconnect.cards
    yield "rails (EFA cards) of an instance, and the chips that use them:"
    for card in range(cards):
        chips = [chip for chip in range(each) if chip * cards // each == card]
        yield f"  efa:node0.rail{card:<10} {' '.join(map(str, chips))}"


def _known(figure: Figure) -> str:
    return f"{figure.confidence}: {figure.source}" if figure.value else "none"
