# SPDX-License-Identifier: Apache-2.0
"""What scripts ask for by their own text, or that of a module that lies beside them, before any of it runs.

`import torch` loads this for scripts alone, whose imports it then looks at: what it imports itself, sysconfig among
it, must be there before.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from trnlab.guards.installed import package_of

Looks = Callable[[str, str], bool]  # of a file and its text; returns whether it need not look at more files


class _Beside(importlib.abc.MetaPathFinder):
    """Looks at each module that lies in the script's folder before it is imported; finds nothing itself."""

    def __init__(self, folder: Path, looks: list[Looks]) -> None:
        self.folder, self.looks = folder, looks

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Nothing."""
        last = name.rpartition(".")[2]
        for place in map(Path, [self.folder] if path is None else path):
            if place.is_relative_to(self.folder):
                self.look_at(place / f"{last}.py", place / last / "__init__.py")

    def look_at(self, *files: Path) -> None:
        """Look at files; those of installed packages, whose folder may lie beside the script, are none of its own."""
        for file in files:
            if package_of(str(file)) is not None:
                continue
            try:
                text = file.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            self.looks[:] = [look for look in self.looks if not look(str(file), text)]
        if not self.looks:
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]


def look_at_script(file: Path, looks: Sequence[Looks]) -> None:
    """Look at a script that is about to run, and at what it has imported of its folder or will import."""
    script = file.absolute()
    folder = script.parent
    sys.meta_path[:] = [f for f in sys.meta_path if not (isinstance(f, _Beside) and f.folder == folder)]
    finder = _Beside(folder, list(looks))
    sys.meta_path.insert(0, finder)
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    finder.look_at(script, *(Path(file) for file in files if file and file.startswith(f"{folder}{os.sep}")))
