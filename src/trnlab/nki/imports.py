# SPDX-License-Identifier: Apache-2.0
"""`import nki` and its relatives resolve to trnlab in this process."""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {
    "nki": "trnlab.nki",
    "nki.collectives": "trnlab.nki.collectives",
    "nki.isa": "trnlab.nki.isa",
    "nki.isa.constants": "trnlab.nki.enums",
    "nki.dtype": "trnlab.nki.dtype",
    "nki.language": "trnlab.nki.language",
    "nki.typing": "trnlab.nki.typing",
    "neuron_dtypes": "trnlab.nki.neuron_dtypes",
    "neuronxcc": "trnlab.nki.neuronxcc.root",
    "neuronxcc.nki": "trnlab.nki.neuronxcc",
    "neuronxcc.nki.isa": "trnlab.nki.neuronxcc.isa",
    "neuronxcc.nki.isa.constants": "trnlab.nki.enums",
    "neuronxcc.nki.isa.neuron_isa": "trnlab.nki.neuronxcc.isa",
    "neuronxcc.nki.language": "trnlab.nki.neuronxcc.language",
    "neuronxcc.nki.language.constants": "trnlab.nki.neuronxcc.constants",
    "neuronxcc.nki.compiler": "trnlab.nki.neuronxcc.compiler",
    "neuronxcc.nki.typing": "trnlab.nki.neuronxcc.typing",
}


ROOTS = tuple(dict.fromkeys(name.split(".")[0] for name in MODULES))


def install_imports(*, override: bool = False) -> tuple[str, ...]:
    """Make kernels' imports find trnlab in this process; returns the top-level names it took.

    A vendor's package that is installed wins unless `override`. Names that MODULES does not list are refused as
    modules that are not there.
    """
    taken = tuple(root for root in ROOTS if override or not _elsewhere(root))
    _remove()
    for name in [name for name in sys.modules if override and name.split(".")[0] in ROOTS]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(taken))
    return taken


def _remove() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


def _elsewhere(root: str) -> bool:
    """Whether a package of that name comes from somewhere else."""
    known = sys.modules.get(root)
    if known is not None:
        return not known.__name__.startswith("trnlab.")
    found = [f.find_spec(root, None) for f in sys.meta_path if not isinstance(f, _Finder)]
    return any(spec is not None and spec.origin is not None for spec in found)  # a mere folder is no package


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of MODULES under their vendor's names, and loads each when it is first asked for."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        self.roots = roots

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Of a module under one of the roots. Raises ModuleNotFoundError for one that trnlab does not have."""
        root = name.split(".")[0]
        if root not in self.roots:
            return None
        if name not in MODULES:
            known = ", ".join(known for known in MODULES if known.split(".")[0] == root)
            raise ModuleNotFoundError(f"No module named {name!r}; trnlab has {known}", name=name)
        package = any(known.startswith(f"{name}.") for known in MODULES)
        return ModuleSpec(name, self, origin=MODULES[name], is_package=package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module under its own name; the import system is about to give it a second spec."""
        module = importlib.import_module(MODULES[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed; it keeps its own spec."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state
