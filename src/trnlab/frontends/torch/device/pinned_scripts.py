# SPDX-License-Identifier: Apache-2.0
"""Which scripts make pinned tensors of the host, see `pinned`: those whose own text says so, or that of a module that
lies beside them, before any of it runs. `import torch` loads this for scripts alone, whose imports it then looks at:
what it imports itself, sysconfig among it, must be there before.
"""

from __future__ import annotations

import ast
import importlib.abc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from trnlab.frontends.torch.device import pinned
from trnlab.guards.installed import package_of

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


class _Beside(importlib.abc.MetaPathFinder):
    """Looks at each module that lies in the script's folder before it is imported; finds nothing itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Nothing."""
        last = name.rpartition(".")[2]
        for place in map(Path, [self.folder] if path is None else path):
            if place.is_relative_to(self.folder):
                look_at(place / f"{last}.py", place / last / "__init__.py")


def look_at(*files: Path) -> None:
    """Allow pinned tensors if one of the files makes any; those of installed packages, whose folder may lie beside
    the script, are none of its own."""
    for file in files:
        if package_of(str(file)) is not None:
            continue
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if makes_pinned(text):
            pinned.allow()
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Beside)]


def look_at_script(file: Path) -> None:
    """Look at a script that is about to run, and at what it has imported of its folder or will import."""
    script = file.absolute()
    folder = script.parent
    if not any(isinstance(finder, _Beside) and finder.folder == folder for finder in sys.meta_path):
        sys.meta_path.insert(0, _Beside(folder))
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    look_at(script, *(Path(file) for file in files if file and file.startswith(f"{folder}{os.sep}")))
