# SPDX-License-Identifier: Apache-2.0
"""What ranks do together, in words: `communication` of docs/summary.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trnlab.units import PS_PER_S, format_bytes, format_time

Found = Mapping[str, Any]
NAMES = {
    "gradient": "gradients",
    "parameter": "parameters gathered",
    "tensor": "tensor parallel",
    "sequence": "sequence parallel",
    "pipeline": "pipeline",
    "expert": "experts",
    "checkpoint": "checkpoints",
    "other": "other",
}


def lines(found: Found, step_s: float) -> Iterator[str]:
    """Its time, what of it nothing hides, by purpose; what it puts on links; a warning where gradients take long."""
    share = found["time_s"] / step_s if step_s else 0.0
    computing = "" if found["ratio"] is None else f"; {found['ratio']:.2f} of computation"
    yield (
        f"{_time(found['time_s'])}, {share:.0%} of the step{computing}; hidden {_time(found['hidden_s'])}, "
        f"exposed {_time(found['exposed_s'])} ({found['share']:.0%} of the step)"
    )
    for purpose, use in found["purposes"].items():
        yield (
            f"{NAMES[purpose]}: {_time(use['time_s'])}, {_time(use['exposed_s'])} exposed ({use['count']}, "
            f"{format_bytes(use['bytes'])})"
        )
    yield "as " + ", ".join(f"{use['count']} {kind}" for kind, use in found["kinds"].items())
    for name, use in found["links"].items():
        yield (
            f"{name}: {format_bytes(round(use['class_bytes']))} an instance; {use['link']} busy "
            f"{_time(use['busy_s'])}, {use['share']:.0%} of the step"
        )
    if found["flagged"]:
        yield warning(found)


def warning(found: Found) -> str:
    """What to say of a job that is flagged."""
    return (
        f"warning: the exchange of gradients takes {found['gradient_share']:.0%} of the step, more than "
        f"{found['threshold']:.0%}"
    )


def remedies(found: Found) -> Iterator[str]:
    """What would help, the most first; what would not; what was not timed, and why."""
    rows = found.get("remedies", ())
    timed = [row for row in rows if row["step_s"] is not None]
    for row in timed:
        if row["gain"] > 0:
            yield f"{row['gain']:>6.1%}  {_time(row['step_s']):>9}  {row['what']}; {row['costs']}"
    worse = [f"{row['what']} ({-row['gain']:+.1%})" for row in timed if row["gain"] <= 0]
    if worse:
        yield f"slower: {', '.join(worse)}"
    for row in rows:
        if row["step_s"] is None:
            yield f"not timed: {row['what']}: {row['why']}"


def _time(seconds: float) -> str:
    return format_time(seconds * PS_PER_S)
