# SPDX-License-Identifier: Apache-2.0
"""Something to do once a script has imported a module, so that nobody else pays for the import."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Action = Callable[[Any], object]


def when_imported(name: str, call: Action) -> Callable[[], None]:
    """Call `call(module)` once module `name` is imported, at once where it is; returns what forgets about it."""
    if name in sys.modules:
        call(sys.modules[name])
        return lambda: None
    finder = _Once(name, call)
    sys.meta_path.insert(0, finder)
    return finder.forget


class _Once(importlib.abc.MetaPathFinder):
    """Waits for an import of the module. Who only asks where it lies changes nothing: TensorFlow asks so of Keras."""

    def __init__(self, name: str, call: Action) -> None:
        self.name, self.call, self._asking = name, call, False

    def forget(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """That of whoever else finds the module, with `call` behind what it executes."""
        if fullname != self.name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            run = loader.exec_module

            def loaded(module: ModuleType) -> None:
                run(module)
                if self in sys.meta_path:
                    self.forget()
                    self.call(module)

            loader.exec_module = loaded
        return spec
