# SPDX-License-Identifier: Apache-2.0
"""Names for people: of calls, source lines and times."""

from __future__ import annotations

import re
from functools import cache
from pathlib import PurePath

from trnlab.units import format_time

_PLACE = re.compile(r"^(?P<file>.*):(?P<line>\d+)(?P<rest>.*)$")
_OVERLOADS = re.compile(r"\.(default|Tensor|Scalar|dim_IntList|int|self|out|Tensor_Scalar|Scalar_Tensor)\b")


@cache
def short_label(label: str) -> str:
    """A call's label without the framework's prefixes: "rows: gelu, add" for "rows: aten.gelu aten.add.Tensor"."""
    kind, colon, ops = label.partition(": ")
    if not colon:
        return label
    plain = [re.sub(r"^(aten|trnlab|prims)\.", "", _OVERLOADS.sub("", op)) for op in ops.split()]
    merged = list(dict.fromkeys(name for name in plain if not name.startswith("(") and name != "..."))
    rest = [name for name in plain if name.startswith("(")]
    names = ", ".join(merged) + (", …" if "..." in plain else "")
    return " ".join([f"{kind}: {names}" if names != kind else kind, *rest])


@cache
def short_place(place: str, script: str) -> str:
    """A source line as seen from the script's folder; elsewhere the last two parts of its path."""
    match = _PLACE.match(place)
    if not match:
        return place
    path, folder = PurePath(match["file"]), PurePath(script).parent
    name = path.relative_to(folder) if path.is_relative_to(folder) else PurePath(*path.parts[-2:])
    return f"{name}:{match['line']}{match['rest']}"


def nice_time(ps: float) -> str:
    """A duration with the sign for micro."""
    return format_time(ps).replace(" us", " µs")
