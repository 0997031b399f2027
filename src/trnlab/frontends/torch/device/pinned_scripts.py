# SPDX-License-Identifier: Apache-2.0
"""Which scripts make pinned tensors of the host, see `pinned`: those whose own text says so (`script_texts`)."""

from __future__ import annotations

import ast

from trnlab.frontends.torch.device import pinned

WORD = "pin_memory"
_COPIES = "Loader"  # PyTorch's own, and their kin: what they pin they copy, for which nothing is needed


def makes_pinned(text: str) -> bool:
    """Whether a call in a file of Python asks for pinned memory, and is not that of a loader."""
    if WORD not in text:
        return False
    try:
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError):  # Python says so itself, where it runs
        return False
    return any(_asks(call) and not _name(call.func).endswith(_COPIES) for call in calls)


def _asks(call: ast.Call) -> bool:
    values = [keyword.value for keyword in call.keywords if keyword.arg == WORD]
    return any(not (isinstance(value, ast.Constant) and not value.value) for value in values)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def look(file: str, text: str) -> bool:
    """Allow pinned tensors if a file makes any; returns whether that is done, and no more have to be looked at."""
    if makes_pinned(text):
        pinned.allow()
        return True
    return False
