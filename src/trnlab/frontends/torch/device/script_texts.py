# SPDX-License-Identifier: Apache-2.0
"""What scripts ask for by their own text, or that of a module of the user's own, before any of it runs.

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


class _Looker(importlib.abc.MetaPathFinder):
    """Looks at each module of the user's own before it is imported; finds nothing itself."""

    def __init__(self, folder: Path, looks: list[Looks]) -> None:
        self.folder, self.looks, self.seen = folder, looks, set[str]()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Nothing."""
        last = name.rpartition(".")[2]
        for place in [str(self.folder), *sys.path] if path is None else path:
            self.look_at(f"{place}{os.sep}{last}.py", f"{place}{os.sep}{last}{os.sep}__init__.py")

    def look_at(self, *files: str) -> None:
        """Look at files; those of installed packages, whose folder may lie beside the script, are none of its own."""
        for file in files:
            if package_of(file) is not None or file in self.seen:
                continue
            self.seen.add(file)
            try:
                text = Path(file).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            self.looks[:] = [look for look in self.looks if not look(file, text)]
        if not self.looks:
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]


def look_at_script(file: Path, looks: Sequence[Looks]) -> None:
    """Look at a script that is about to run, at what was imported of its folder, and at all that it will import."""
    script = file.absolute()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Looker)]
    finder = _Looker(script.parent, list(looks))
    sys.meta_path.insert(0, finder)
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    finder.look_at(str(script), *(found for found in files if found and found.startswith(f"{script.parent}{os.sep}")))
