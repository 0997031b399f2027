# SPDX-License-Identifier: Apache-2.0
"""Where scripts ask for CUDA, by their own text and that of modules beside them (`device.script_texts`)."""

from __future__ import annotations

import ast
import os
import sys
from typing import TYPE_CHECKING

from trnlab.errors import Location, UsageError

if TYPE_CHECKING:
    from trnlab.frontends.torch.device.script_texts import Looks

VARIABLE = "TRNLAB_CUDA"
_NAMES = ("cuda", "nccl")  # of devices, attributes and backends
_WORDS = (*_NAMES, '"gpu"', "'gpu'")  # without which no code is looked at


def begin() -> list[Looks]:
    """A script is about to run: what looks at its files, where the chip stands in for CUDA, as it does under trnlab's
    commands and where the environment chooses a target.

    Raises UsageError (TRN284) for what TRNLAB_CUDA cannot be.
    """
    stand_in = sys.modules.get("trnlab.frontends.torch.cuda.stand_in")
    if stand_in is not None:
        stand_in.uninstall()  # of the script before, in a process that follows several
    session = sys.modules.get("trnlab.runtime.session")
    chosen = os.environ.get("TRNLAB_TARGET") or (session is not None and session.active() is not None)
    return [look] if chosen and told() == "chip" else []


def told() -> str:
    """What TRNLAB_CUDA says. Raises UsageError (TRN284) for what it cannot be."""
    said = os.environ.get(VARIABLE) or "chip"
    if said not in ("chip", "none"):
        raise UsageError(
            f"{VARIABLE} says nothing of what scripts find that ask for CUDA",
            code="TRN284",
            limit="chip, none",
            got=said,
            remedy="unset it: the chip; none: nothing, as on an instance",
        )
    return said


def look(file: str, text: str) -> bool:
    """Let the chip answer if a file asks for CUDA. All files are looked at."""
    found = asking(file, text)
    if found:
        from trnlab.frontends.torch.cuda import stand_in

        stand_in.install()
        stand_in.asked += [place for place in found if place not in stand_in.asked]
    return False


def asking(file: str, text: str) -> list[Location]:
    """The lines of a file of Python that name CUDA in code: `torch.cuda`, `x.cuda()`, "cuda:0", "nccl", and
    Lightning's accelerator="gpu"."""
    if not any(word in text for word in _WORDS):
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # Python says so itself, where it runs
        return []
    lines = text.splitlines()
    numbers = sorted({node.lineno for node in ast.walk(tree) if isinstance(node, ast.expr) and _names(node)})
    near = os.path.relpath(file)
    return [Location(file if near.startswith("..") else near, n, "", lines[n - 1].strip()) for n in numbers]


def _names(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):  # but settings of libraries, `torch.backends.cuda`
        return node.attr == "cuda" and not (isinstance(node.value, ast.Attribute) and node.value.attr == "backends")
    if isinstance(node, ast.Call):
        given = {keyword.arg: keyword.value for keyword in node.keywords}.get("accelerator")
        return isinstance(given, ast.Constant) and given.value == "gpu"
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.partition(":")[0] in _NAMES
