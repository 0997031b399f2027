# SPDX-License-Identifier: Apache-2.0
"""Docstrings are plain text with names in backquotes and indented examples; here they become reStructuredText."""

from __future__ import annotations

import re
import textwrap
from typing import Any

_QUOTED = re.compile(r"(`[^`]+`)")
_MARKS = re.compile(r"[\\*|]|(?<=\w)_(?!\w)|(?<=\w):(?=\w)")  # the last would be a link to NAME:VALUE
_MADE = re.compile(r"<[\w. ]+>")
_ITEM = re.compile(r"^(?:-|\d+\.) ")


def rewritten(lines: list[str]) -> list[str]:
    """A docstring's lines: paragraphs with their marks escaped, examples as code."""
    found: list[str] = []
    code = False  # whether the paragraph before was an example, which goes on
    for paragraph in textwrap.dedent("\n".join(lines)).strip("\n").split("\n\n"):
        rows = [row for row in paragraph.split("\n") if row.strip()]
        if rows and all(row.startswith("    ") for row in rows):
            found += [*([] if code else ["::", ""]), *rows, ""]
            code = True
        else:
            code = False
            flush = rows if rows and _ITEM.match(rows[0]) else [row.strip() for row in rows]
            found += [*_inline("\n".join(flush)).split("\n"), ""]
    return found


def _inline(text: str) -> str:
    """Names in backquotes as code, and what reStructuredText would take for a mark as it is."""
    parts = _QUOTED.split(text)
    return "".join(f"`{part}`" if _QUOTED.fullmatch(part) else _MARKS.sub(r"\\\g<0>", part) for part in parts)


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls."""

    def process(*given: Any) -> None:
        lines = given[-1]
        lines[:] = rewritten(lines)

    def defaults(*given: Any) -> tuple[str | None, str | None]:
        """Values that are made anew for each object have no expression that could be shown."""
        signature, returned = given[-2:]
        return signature and _MADE.sub("...", signature), returned

    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", defaults)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
