# SPDX-License-Identifier: Apache-2.0
"""What ranks do together, for a page: `communication` of docs/summary.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trnlab.documents import Bar, Bars, Key, Note, Part, Section, Slice, Table
from trnlab.profile.communication import NAMES, warning
from trnlab.profile.names import nice_time
from trnlab.units import PS_PER_S, format_bytes

Found = Mapping[str, Any]


def panel(found: Found, step_s: float) -> Section:
    """The section of a page."""
    most = max((use["time_s"] for use in found["purposes"].values()), default=0.0) or 1.0
    rows = [_purpose(purpose, use, most) for purpose, use in found["purposes"].items()]
    colours = Key(
        (
            ("exposed: no engine computes", "var(--scalar)", _time(found["exposed_s"])),
            ("hidden behind computation", "var(--edge)", _time(found["hidden_s"])),
        )
    )
    flagged: list[Part] = [Note(warning(found).removeprefix("warning: "), loud=True)] if found["flagged"] else []
    say = (
        f"What ranks send each other takes {_time(found['time_s'])} of a step of {_time(step_s)}"
        + ("" if found["ratio"] is None else f", {found['ratio']:.2f} of what computation takes")
        + ". By what it carries:"
    )
    helps = [_helps(found["remedies"])] if "remedies" in found else []
    return Section(heading="Communication", say=say, parts=[*flagged, Bars(rows), colours, _links(found), *helps])


def _purpose(purpose: str, use: Found, most: float) -> Bar:
    """What is exposed and hidden of what carries one thing."""
    parts = (("exposed", "var(--scalar)", use["exposed_s"]), ("hidden", "var(--edge)", use["hidden_s"]))
    slices = [Slice(name, time / most, _time(time), colour) for name, colour, time in parts if time > 0]
    return Bar(NAMES[purpose], [_time(use["time_s"]), f"{_time(use['exposed_s'])} exposed"], slices)


def _links(found: Found) -> Section:
    rows = [
        (name, format_bytes(round(use["class_bytes"])), use["link"], _time(use["busy_s"]), f"{use['share']:.0%}")
        for name, use in found["links"].items()
    ]
    head = ("links", "bytes, an instance", "the busiest", "busy", "of the step")
    return Section(heading="On the links", parts=[Table(rows, head, (1, 3, 4))])


def _helps(remedies: Sequence[Found]) -> Section:
    rows = [
        (
            row["what"],
            "-" if row["step_s"] is None else _time(row["step_s"]),
            "-" if row["step_s"] is None else f"{row['gain']:+.1%}",
            row["costs"] if row["step_s"] else row["why"],
        )
        for row in remedies
    ]
    say = "Each is the same step timed again with one thing changed. Gains do not add up."
    table = Table(rows, ("change", "step", "gain", "what it costs"), (1, 2))
    return Section(heading="What would help", say=say, parts=[table])


def _time(seconds: float) -> str:
    return nice_time(seconds * PS_PER_S)
