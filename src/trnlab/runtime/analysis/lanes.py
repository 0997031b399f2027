# SPDX-License-Identifier: Apache-2.0
"""One step of a job, its ranks side by side: each rank writes down its own, and who merges them says when each waits.

A rank's step is a list of items in order:

    {"work": ps, "label": name, "busy": [[start, end], ...], "sent": [[start, end, purpose, kind], ...], "all": bool}
    {"meet": [ranks], "ps": duration, "purpose": purpose, "kind": kind, "pair": bool}

work: a program, with the spans in which an engine computes and those of its collectives, from its start; all: every
rank of the job executes it at the same time. meet: a collective outside of programs; of a pair the first sends to the
second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trnlab.program.communication import collective_of
from trnlab.runtime.communication import UncapturedCollective
from trnlab.units import PS_PER_S

if TYPE_CHECKING:  # it takes a while
    from trnlab.runtime.executable import Executable

FILE = "lane.json"  # a rank's step, in its folder
SPANS = 400  # of a program that are told apart
Item = dict[str, Any]


def items(step: Sequence[str | UncapturedCollective], executables: Mapping[str, Executable], rank: int) -> list[Item]:
    """The step of a rank: keys of executables, and what it did together with others between them."""
    known: dict[str, Item] = {}
    found = []
    for each in step:
        if isinstance(each, str):
            if each not in known:
                known[each] = _work(executables[each])
            found.append(known[each])
        else:
            asked = each.request
            who = asked.pairs[0] if asked.pairs else asked.group_of(rank)
            found.append(
                {
                    "meet": list(who),
                    "ps": round(each.cost.seconds * PS_PER_S),
                    "purpose": each.purpose,
                    "kind": asked.kind,
                    "pair": bool(asked.pairs),
                }
            )
    return found


def slowed(found: list[Item], factor: float) -> list[Item]:
    """The step of a rank whose device takes so many times as long; what it does with others is theirs, too."""
    if factor == 1.0:
        return found
    return [
        {
            **item,
            "work": round(item["work"] * factor),
            "busy": [[round(t * factor) for t in b] for b in item["busy"]],
            "sent": [[round(start * factor), round(end * factor), *rest] for start, end, *rest in item["sent"]],
        }
        if "work" in item
        else item
        for item in found
    ]


def _work(executable: Executable) -> Item:
    outline, program = executable.outline, executable.program
    busy = outline.computing
    if len(busy) > SPANS:  # close the narrowest gaps
        gaps = busy[1:, 0] - busy[:-1, 1]
        wide = gaps >= np.partition(gaps, len(gaps) - SPANS)[len(gaps) - SPANS]
        busy = np.stack([busy[np.append(True, wide), 0], busy[np.append(wide, True), 1]], axis=1)
    sent = []
    for number, (start, end) in outline.collectives.items():
        call = program.calls[number]
        asked = collective_of(program.routines[call.routine])
        assert asked is not None
        sent.append([start, end, call.purpose or "other", asked.kind])
    return {
        "work": outline.total,
        "label": executable.name,
        "busy": busy.tolist(),
        "sent": sent,
        "all": program.ranks > 1,
    }


@dataclass
class _Rank:
    """A rank on its way through its step. window: meetings that it waits for at the same time."""

    items: list[tuple[Item, Any]]
    clock: int = 0
    at: int = 0
    window: dict[Any, Item] = field(default_factory=dict)
    bars: list[list[Any]] = field(default_factory=list)


def together(steps: Sequence[Sequence[Item]]) -> dict[str, Any]:
    """The step of all ranks: `total_ps`; for each class of ranks that do the same at the same time a lane; and links
    between lanes.

    lanes: `ranks`, `busy` [[start, end]], `sent` [[start, end, purpose, kind]], `waits_ps`. links: [start, end, from
    lane, to lane, whether it is an arrow]. unmatched: meetings whose partners were not found, which are left out.
    """
    ranks = [_Rank(list(_numbered(step))) for step in steps]
    links: list[tuple[int, int, list[int], bool]] = []
    unmatched = 0
    while any(rank.at < len(rank.items) or rank.window for rank in ranks):
        for rank in ranks:
            _proceed(rank)
        ready = _ready(ranks)
        if ready is not None:
            _meet(ranks, ready, links)
        elif any(rank.window for rank in ranks):
            late = min((rank for rank in ranks if rank.window), key=lambda rank: rank.clock)
            late.window.pop(next(iter(late.window)))
            unmatched += 1
    return _picture(ranks, links, unmatched)


def _numbered(step: Sequence[Item]) -> list[tuple[Item, Any]]:
    """The items, each meeting with a name that all of its ranks give it."""
    counts: Counter[Any] = Counter()
    found = []
    for item in step:
        name = None
        if "meet" in item or item["all"]:
            who = (item["kind"], *item["meet"]) if "meet" in item else ("all", item["label"])
            counts[who] += 1
            name = (*who, counts[who])
        found.append((item, name))
    return found


def _proceed(rank: _Rank) -> None:
    """Compute until the rank meets others; meetings that follow each other may take place in any order."""
    while rank.at < len(rank.items) and (not rank.window or "meet" in rank.items[rank.at][0]):
        item, name = rank.items[rank.at]
        if name is not None and "work" in item and rank.window:
            return
        rank.at += 1
        if name is not None:
            rank.window[name] = item
            if "work" in item:
                return
        else:
            _work_bars(rank, item)


def _work_bars(rank: _Rank, item: Item) -> None:
    rank.bars += [["busy", rank.clock + a, rank.clock + b, "", item["label"]] for a, b in item["busy"]]
    rank.bars += [["sent", rank.clock + a, rank.clock + b, purpose, kind] for a, b, purpose, kind in item["sent"]]
    rank.clock += item["work"]


def _ready(ranks: list[_Rank]) -> tuple[Any, list[int]] | None:
    """The meeting that can begin first, and its ranks."""
    best: tuple[int, Any, list[int]] | None = None
    seen = set()
    for rank in ranks:
        for name, item in rank.window.items():
            if name in seen:
                continue
            seen.add(name)
            who = [r for r in item["meet"] if r < len(ranks)] if "meet" in item else list(range(len(ranks)))
            if all(name in ranks[r].window for r in who):
                start = max(ranks[r].clock for r in who)
                if best is None or start < best[0]:
                    best = start, name, who
    return None if best is None else best[1:]


def _meet(ranks: list[_Rank], ready: tuple[Any, list[int]], links: list[tuple[int, int, list[int], bool]]) -> None:
    name, who = ready
    start = max(ranks[r].clock for r in who)
    end = start
    for r in who:
        item = ranks[r].window.pop(name)
        if ranks[r].clock < start:
            ranks[r].bars.append(["waits", ranks[r].clock, start, "", ""])
        ranks[r].clock = start
        if "work" in item:
            links += [(start + a, start + b, who, False) for a, b, *_ in item["sent"]] if r == who[0] else []
            _work_bars(ranks[r], item)
            continue
        end = start + item["ps"]
        ranks[r].bars.append(["sent", start, end, item["purpose"], item["kind"]])
        ranks[r].clock = end
    if end > start:
        pair = "collective_permute" in name[:1]
        links.append((start, end, list(name[1:3]) if pair else who, pair))


def _picture(ranks: list[_Rank], links: list[tuple[int, int, list[int], bool]], unmatched: int) -> dict[str, Any]:
    """Ranks with equal bars are one lane."""
    lanes: dict[str, dict[str, Any]] = {}
    lane_of = []
    for number, rank in enumerate(ranks):
        key = repr(rank.bars)
        if key not in lanes:
            lanes[key] = {
                "ranks": [],
                "busy": [bar[1:3] for bar in rank.bars if bar[0] == "busy"],
                "sent": [bar[1:] for bar in rank.bars if bar[0] == "sent"],
                "waits": [bar[1:3] for bar in rank.bars if bar[0] == "waits"],
                "waits_ps": sum(bar[2] - bar[1] for bar in rank.bars if bar[0] == "waits"),
                "end_ps": rank.clock,
            }
        lanes[key]["ranks"].append(number)
        lane_of.append(list(lanes).index(key))
    drawn = dict.fromkeys(
        (start, end, lane_of[who[0]], lane_of[who[-1]], arrow)
        if arrow
        else (start, end, min(lane_of[r] for r in who), max(lane_of[r] for r in who), arrow)
        for start, end, who, arrow in links
    )
    return {
        "total_ps": max((rank.clock for rank in ranks), default=0),
        "lanes": list(lanes.values()),
        "links": [list(link) for link in drawn if link[2] != link[3]],
        "unmatched": unmatched,
    }
