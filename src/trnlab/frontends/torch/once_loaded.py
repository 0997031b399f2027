# SPDX-License-Identifier: Apache-2.0
"""What is to be done with a module once it is imported, by whoever imports it and whenever that is."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Action = Callable[[Any], None]


def once_loaded(name: str, action: Action) -> None:
    """Call action(module) now, or right after the module of that name is executed."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _OnceLoaded(name, action))


class _OnceLoaded(importlib.abc.MetaPathFinder):
    """Waits for a module to be imported."""

    def __init__(self, name: str, action: Action) -> None:
        self.name, self.action = name, action

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            run = loader.exec_module

            def loaded(module: ModuleType) -> None:
                run(module)
                self.action(module)

            loader.exec_module = loaded
        return spec
