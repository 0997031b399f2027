# SPDX-License-Identifier: Apache-2.0
"""From the name of an op in a trace to the user's line and the layer that made it."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import trnlab
from trnlab.errors import Location

_PACKAGES = tuple(str(Path(str(module.__file__)).parent) + os.sep for module in (tf, keras, trnlab))
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep


@lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether code of this file is neither TensorFlow's, nor Keras', nor ours, nor the standard library's."""
    if file.startswith(("<", *_PACKAGES)):
        return False
    return f"{os.sep}site-packages{os.sep}" in file or not file.startswith(_STANDARD_LIBRARY)


_known: ContextVar[frozenset[str]] = ContextVar("names of the layers that are traced", default=frozenset())


@contextmanager
def layers_of(model: Any) -> Iterator[None]:
    """Within the block traces are of this model: scopes are its layers', by the names that they have in the model.
    TensorFlow numbers scopes that are opened again, `dense_1` for `dense`."""
    names = {layer.name for layer in model._flatten_layers(include_self=True, recursive=True)}
    token = _known.set(frozenset(names))
    try:
        yield
    finally:
        _known.reset(token)


def _path(scopes: list[str], known: frozenset[str]) -> str:
    """The path of layers that scopes are of; all scopes where no layers are known."""
    if not known:
        return ".".join(scopes)
    named = [s if s in known else s.rpartition("_")[0] if s.rpartition("_")[2].isdigit() else "" for s in scopes]
    return ".".join(name for name in named if name in known)


class Lines:
    """The user's lines behind the ops of a trace, its inner functions (branches, bodies of loops) included."""

    def __init__(self, graph: Any) -> None:
        self._ops: dict[str, Any] = {}
        self._known = _known.get()
        self._collect(graph, set())

    def _collect(self, graph: Any, seen: set[int]) -> None:
        if id(graph) in seen:
            return
        seen.add(id(graph))
        for op in graph.get_operations():
            self._ops.setdefault(op.name, op)
        for function in getattr(graph, "_functions", {}).values():
            inner = getattr(function, "graph", None)
            if inner is not None:
                self._collect(inner, seen)

    def find(self, name: str) -> Location | None:
        """Where the op was made; None for a name that is not of this trace. Bodies of loops prefix their ops."""
        parts = name.split("/")
        for start in range(len(parts)):
            op = self._ops.get("/".join(parts[start:]))
            if op is not None:
                return self._of(op, "/".join(parts[:-1]))
        return None

    def resolved(self, where: Location | None) -> Location | None:
        """The place that a module gives for an op (which has the op's name for its function), in full."""
        return (self.find(where.function) or where) if where is not None else None

    def named(self, op_type: str) -> Location | None:
        """The first op of a type."""
        op = next((op for op in self._ops.values() if op.type == op_type), None)
        return self._of(op, "/".join(op.name.split("/")[:-1])) if op is not None else None

    def _of(self, op: Any, layer: str) -> Location | None:
        frames = [f for f in (op.traceback or ()) if is_users(f.filename)]
        if not frames:
            return None
        last = frames[-1]
        path = _path(layer.removeprefix("gradient_tape/").split("/"), self._known)
        phase = "backward" if layer.startswith("gradient_tape/") else "forward" if path else ""
        return Location(last.filename, last.lineno, last.name, (last.line or "").strip(), path, phase)
