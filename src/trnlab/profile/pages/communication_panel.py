# SPDX-License-Identifier: Apache-2.0
"""What ranks do together, for a page: `communication` of docs/summary.md."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from trnlab.documents.html import bars, key, section, stack, table
from trnlab.profile.communication import NAMES, warning
from trnlab.profile.names import nice_time
from trnlab.units import PS_PER_S, format_bytes

Found = Mapping[str, Any]


def panel(found: Found, step_s: float) -> str:
    """The section of a page."""
    rows = []
    most = max((use["time_s"] for use in found["purposes"].values()), default=0.0) or 1.0
    for purpose, use in found["purposes"].items():
        parts = (("exposed", "var(--scalar)", use["exposed_s"]), ("hidden", "var(--edge)", use["hidden_s"]))
        bar = stack((f"{name}: {_time(time)}", colour, time / most) for name, colour, time in parts if time > 0)
        rows.append((NAMES[purpose], bar, f"{_time(use['time_s'])}, {_time(use['exposed_s'])} exposed"))
    colours = key(
        (
            ("exposed: no engine computes", "var(--scalar)", _time(found["exposed_s"])),
            ("hidden behind computation", "var(--edge)", _time(found["hidden_s"])),
        )
    )
    notice = f'<p class="notice"><b>{escape(_sentence(warning(found)))}</b></p>' if found["flagged"] else ""
    say = (
        f"What ranks send each other takes {_time(found['time_s'])} of a step of {_time(step_s)}"
        + ("" if found["ratio"] is None else f", {found['ratio']:.2f} of what computation takes")
        + ". By what it carries:"
    )
    content = [notice, bars(rows, "slim"), colours, "<h3>On the links</h3>", _links(found), _helps(found)]
    return section("Communication", say, "".join(content))


def _links(found: Found) -> str:
    rows = [
        (name, format_bytes(round(use["class_bytes"])), use["link"], _time(use["busy_s"]), f"{use['share']:.0%}")
        for name, use in found["links"].items()
    ]
    return table(("links", "bytes, an instance", "the busiest", "busy", "of the step"), rows, (1, 3, 4))


def _helps(found: Found) -> str:
    if "remedies" not in found:
        return ""
    rows = [
        (
            row["what"],
            "-" if row["step_s"] is None else _time(row["step_s"]),
            "-" if row["step_s"] is None else f"{row['gain']:+.1%}",
            row["costs"] if row["step_s"] else row["why"],
        )
        for row in found["remedies"]
    ]
    say = '<p class="say">Each is the same step timed again with one thing changed. Gains do not add up.</p>'
    return f"<h3>What would help</h3>{say}" + table(("change", "step", "gain", "what it costs"), rows, (1, 2))


def _sentence(words: str) -> str:
    return words.removeprefix("warning: ")[:1].upper() + words.removeprefix("warning: ")[1:] + "."


def _time(seconds: float) -> str:
    return nice_time(seconds * PS_PER_S)
