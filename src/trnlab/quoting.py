# SPDX-License-Identifier: Apache-2.0
"""Text that others chose, in each medium that trnlab writes: one function for each, and nobody quotes by hand.

Names of models, files, runs and ranks come from files and folders that others write. A newline ends a comment of a
shell, an escape sequence moves a terminal's cursor or sets its title, a formula runs in a spreadsheet, and a
character that turns the direction of writing shows another text than there is. In YAML and JSON `json.dumps` quotes.
"""

from __future__ import annotations

import html
import re
import shlex

_KEPT = "\n\t"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")  # with which a cell is more than its text


def one_line(text: object) -> str:
    """A name as a terminal or a comment can have it: what is no character to see is a `?`."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def visible(text: object) -> str:
    """The same of text that has lines of its own."""
    told = str(text)
    if told.isprintable():
        return told
    return "".join(c if c.isprintable() or c in _KEPT else "?" for c in told)


def markup(text: object) -> str:
    """Text of a page, and of an attribute between quotes."""
    return html.escape(visible(text))


def shell_comment(text: object) -> str:
    """A line that no shell acts on."""
    return f"# {one_line(text)}"


def shell_value(text: object) -> str:
    """A value of a shell, which expands nothing of it."""
    return shlex.quote(one_line(text))


def csv_cell(value: object) -> object:
    """A cell of a table that a spreadsheet takes for text; numbers stay numbers."""
    if value is None or isinstance(value, bool | int | float):
        return value
    told = one_line(value)
    return f"'{told}" if told.startswith(_FORMULA) or str(value).startswith(_FORMULA) else told


def metric_label(value: object) -> str:
    """The value of a label in Prometheus' text format, between double quotes."""
    return re.sub(r'(["\\])', r"\\\1", one_line(value))
