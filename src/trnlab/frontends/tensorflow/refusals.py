# SPDX-License-Identifier: Apache-2.0
"""What of TensorFlow cannot become a program of the chip, said so that the user knows what to change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trnlab.errors import Location, UnsupportedOpError
from trnlab.frontends.tensorflow.locations import Lines

_NODE = re.compile(r"\{\{node ([^}]+)\}\}|node `([^`]+)`")
_KIND = re.compile(r"No registered '(\w+)'|Op type not registered '(\w+)'")
_CONSTANT = re.compile(r"must be a compile-time constant|compile-time constant")
_SEARCHED = re.compile(r'loc\("([^"]+)"')


def not_lowered(error: Exception | None, name: str, lines: Lines | None, tensor: Any = None) -> UnsupportedOpError:
    """What TensorFlow's bridge said, or, without an error, a resource (`tensor`) that is no variable."""
    if error is None:
        return UnsupportedOpError(
            f"{name!r} uses a resource that is no variable: a lookup table, a queue or an iterator",
            code="TRN240",
            got=getattr(tensor, "name", None),
            remedy="use it before the step, and hand over the resulting tensor",
        )
    text = str(error)
    kinds = list(dict.fromkeys(a or b for a, b in _KIND.findall(text)))
    where = _place([a or b for a, b in _NODE.findall(text)], kinds, lines)
    if _CONSTANT.search(text):
        return UnsupportedOpError(
            f"a tensor decides a shape of {name!r}, which must be known before it runs",
            code="TRN241",
            where=where,
            got=_short(text),
            remedy="pass the number as a Python int, or take it from the shape of a tensor",
        )
    return UnsupportedOpError(
        f"{name!r} has operators that exist on the host only",
        code="TRN240",
        where=where,
        got=", ".join(kinds) or _short(text),
        remedy="keep strings, Python functions and files out of the step: do that in tf.data, or before it",
    )


def not_static(text: str, pattern: re.Pattern[str], name: str, lines: Lines) -> UnsupportedOpError:
    """The first op of the module whose result has a shape that depends on values, as `pattern` finds it."""
    made = [line.strip() for line in text.splitlines() if line.lstrip().startswith("%") and pattern.search(line)]
    line = made[0] if made else ""
    return UnsupportedOpError(
        f"{name!r} has a tensor whose shape depends on values",
        code="TRN242",
        where=location(line, text, lines),
        got=re.sub(r"\s*loc\(.*", "", line)[:160] or None,
        remedy="keep the shape: tf.where(mask, x, 0) in place of tf.boolean_mask, or select before the step",
    )


def sparse(what: str, name: str) -> UnsupportedOpError:
    """A sparse or ragged tensor among the arguments."""
    return UnsupportedOpError(
        f"{name!r} is given {what}, whose shape depends on its values",
        code="TRN243",
        remedy="pass a dense tensor: tf.sparse.to_dense, .to_tensor(shape=...), or indices for an embedding",
    )


def written_under_tape(name: str, variable: str) -> UnsupportedOpError:
    """Gradients are asked of a call that changed variables, which going back would do again."""
    return UnsupportedOpError(
        f"a gradient of {name!r}, which writes the variable {variable!r}, is asked for from outside of it",
        code="TRN244",
        remedy="put the tf.GradientTape into the function, or take the whole step: compile_step",
    )


def location(line: str, text: str, lines: Lines) -> Location | None:
    """The user's line behind a line of the module, through its table of locations."""
    todo, seen = re.findall(r"(#loc\d+)", line), set()
    while todo:
        alias = todo.pop(0)
        if alias in seen:
            continue
        seen.add(alias)
        found = re.search(rf"^{alias} = (.*)$", text, re.MULTILINE)
        if found is None:
            continue
        for op in _SEARCHED.findall(found[1]):
            if (where := lines.find(op)) is not None:
                return where
        todo += re.findall(r"(#loc\d+)", found[1])
    return None


def _place(nodes: Sequence[str], kinds: Sequence[str], lines: Lines | None) -> Location | None:
    """The user's line of the first of these ops, by name or by type."""
    if lines is None:
        return None
    found = [lines.find(node) for node in nodes] + [lines.named(kind) for kind in kinds]
    return next((where for where in found if where is not None), None)


def _short(text: str) -> str:
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first if len(first) <= 200 else first[:197] + "..."
