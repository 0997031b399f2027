# SPDX-License-Identifier: Apache-2.0
"""A step of all ranks, those that do the same in one lane, drawn by the page's script on a canvas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trnlab.documents import Drawing, Key, Section
from trnlab.profile.communication import NAMES
from trnlab.profile.names import nice_time
from trnlab.profile.summary import named
from trnlab.quoting import markup as escape

COLOURS = {
    "gradient": "var(--scalar)",
    "parameter": "var(--vector)",
    "tensor": "var(--gpsimd)",
    "sequence": "var(--cc)",
    "pipeline": "var(--dma)",
    "expert": "var(--sync)",
    "checkpoint": "var(--latency)",
    "other": "var(--latency)",
}
COMPUTES, WAITS = "var(--tensor)", "var(--edge)"
_LANES = """\
<div class="ranks"><div class="tools"><button data-do="in" aria-label="closer">+</button><button data-do="out"
 aria-label="farther">−</button><button data-do="all">Everything</button><output role="status"></output></div>
<div class="view" tabindex="0" role="application" aria-label="{label}"><canvas></canvas></div>
<script type="application/json">{data}</script></div>"""


def ranks(found: Mapping[str, Any]) -> Section:
    """The section: the drawing, what its colours mean, and the same in words."""
    lanes = found["lanes"]
    names = [named(lane["ranks"]) for lane in lanes]
    purposes = list(dict.fromkeys(bar[2] for lane in lanes for bar in lane["sent"]))
    drawn = {
        "total": found["total_ps"],
        "purposes": [[NAMES.get(p, p), COLOURS.get(p, WAITS)] for p in purposes],
        "links": found["links"],
        "lanes": [
            {
                "name": name,
                "busy": _flat(lane["busy"]),
                "waits": _flat(lane["waits"]),
                "sent": [[a, b, purposes.index(p), kind] for a, b, p, kind in lane["sent"]],
            }
            for name, lane in zip(names, lanes)
        ],
    }
    text = json.dumps(drawn, separators=(",", ":")).replace("<", "\\u003c")
    longest = max(lanes, key=lambda lane: int(lane["waits_ps"]), default=None)
    say = f"A step of all {sum(len(lane['ranks']) for lane in lanes)} ranks takes {nice_time(found['total_ps'])}. "
    if longest is not None and longest["waits_ps"]:
        say += f"Longest for others wait {named(longest['ranks'])}: {nice_time(longest['waits_ps'])}. "
    if found["unmatched"]:
        say += f"{found['unmatched']} exchanges are left out, since no partner was found for them. "
    say += "In each lane computation lies above what is exchanged; lines join what ranks do together, arrows lead "
    say += "from who sends to who receives. The wheel zooms, drag moves; so do + − ← → 0."
    colours = [("computes", COMPUTES, ""), ("waits for others", WAITS, "")]
    colours += [(NAMES.get(p, p), COLOURS.get(p, WAITS), "") for p in purposes]
    label = escape(f"{len(lanes)} lanes of ranks over {nice_time(found['total_ps'])}: {', '.join(names)}"[:400])
    picture = Drawing(_LANES.format(label=label, data=text))
    return Section(heading="Ranks side by side", say=say, parts=[picture, Key(colours)], style="broad")


def _flat(spans: list[list[int]]) -> list[int]:
    return [each for span in spans for each in span]
