# SPDX-License-Identifier: Apache-2.0
"""`import nki` and its relatives resolve to trnlab in this process."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

MODULES = {
    "nki": "trnlab.nki",
    "nki.isa": "trnlab.nki.isa",
    "nki.language": "trnlab.nki.language",
    "nki.typing": "trnlab.nki.typing",
    "neuron_dtypes": "trnlab.nki.neuron_dtypes",
    "neuronxcc": "trnlab.nki.neuronxcc.root",
    "neuronxcc.nki": "trnlab.nki.neuronxcc",
    "neuronxcc.nki.isa": "trnlab.nki.neuronxcc.isa",
    "neuronxcc.nki.isa.constants": "trnlab.nki.enums",
    "neuronxcc.nki.language": "trnlab.nki.neuronxcc.language",
    "neuronxcc.nki.compiler": "trnlab.nki.neuronxcc.compiler",
    "neuronxcc.nki.typing": "trnlab.nki.neuronxcc.typing",
}


def install_imports(*, override: bool = False) -> tuple[str, ...]:
    """Make kernels' imports find trnlab; returns the names it took.

    A vendor's package that is installed wins unless `override`.
    """
    taken: list[str] = []
    for root in dict.fromkeys(name.split(".")[0] for name in MODULES):
        if not override and _elsewhere(root):
            continue
        for alias, real in MODULES.items():
            if alias.split(".")[0] == root:
                sys.modules[alias] = _module(real)
                taken.append(alias)
    return tuple(taken)


def _elsewhere(root: str) -> bool:
    known = sys.modules.get(root)
    if known is not None:
        return not known.__name__.startswith("trnlab.")
    spec = importlib.util.find_spec(root)
    return spec is not None and spec.origin is not None  # a folder that is called nki is no package


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)
