# SPDX-License-Identifier: Apache-2.0
"""From a graph to a program: clean up, choose formats, fuse, lower each group to a routine, place tensors in HBM.

The compiler loads when something is compiled: a process whose programs are all in the cache starts without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trnlab.compiler.passes import PASSES
    from trnlab.compiler.pipeline import compile
    from trnlab.compiler.reused_routines import routines_of

__all__ = ["PASSES", "compile", "routines_of"]
_HOME = {"PASSES": "passes", "compile": "pipeline", "routines_of": "reused_routines"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
