# SPDX-License-Identifier: Apache-2.0
"""Tensors of the host that are made pinned: for scripts that ask, and the reducer of DistributedDataParallel.

With `find_unused_parameters` or `static_graph` the reducer, which is C++, makes a pinned tensor of the host and
insists that it is pinned. An outside backend would answer for that in C++; here the operators that make tensors of
the host are Python's from the first such model on. They cost every tensor of the host some microseconds, so scripts
that make tensors with `pin_memory=True`, as those written for CUDA do, have them if their own text says so, or that
of a module which lies beside them, before any of it runs.
"""

from __future__ import annotations

import ast
import importlib.abc
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.device import generic
from trnlab.frontends.torch.device.dispatch import implement
from trnlab.guards.installed import package_of

WORD = "pin_memory"
_COPIES = "Loader"  # PyTorch's own, and their kin: what they pin they copy, for which nothing is needed
_headers: dict[torch.dtype, Tensor] = {}  # empty tensors
_LIBRARIES: list[torch.library.Library] = []


def _empty(
    size: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    chosen = memory_format or torch.contiguous_format
    return _made(torch.empty(size, dtype=dtype, device="meta", memory_format=chosen), bool(pin_memory))


def _empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    return _made(torch.empty_strided(size, stride, dtype=dtype, device="meta"), bool(pin_memory))


def _made(like: Tensor, pin_memory: bool) -> Tensor:
    """New memory of the host, without the operators that would make it, which are these here."""
    storage = torch.UntypedStorage(like.untyped_storage().nbytes())
    if pin_memory:
        generic.remember_pinned(storage)
    header = torch.ops.aten.alias.default(_headers[like.dtype])
    return torch.ops.aten.set_.source_Storage_storage_offset(header, storage, 0, like.shape, like.stride())


def _of_all_formats() -> dict[torch.dtype, Tensor]:
    """An empty tensor of each; of quantized ones there is none without a scale."""
    kinds = {value for name, value in vars(torch).items() if isinstance(value, torch.dtype) and name[:1] != "q"}
    return {kind: torch.empty(0, dtype=kind) for kind in kinds}


def allow() -> None:
    """From now on pinned tensors of the host can be made. They lie in ordinary memory."""
    if not _LIBRARIES and not torch.cuda.is_available():
        aten = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            warnings.filterwarnings("ignore", "ComplexHalf")
            _headers.update(_of_all_formats())
            implement(aten, "empty.memory_format", _empty, "CPU")
            implement(aten, "empty_strided", _empty_strided, "CPU")
        _LIBRARIES.append(aten)


def install() -> None:
    """Allow it as soon as a model needs it."""
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__
    if hasattr(original, "allows_pinned"):
        return

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.device_type == "neuron" and (self.find_unused_parameters or self.static_graph):
            allow()

    init.allows_pinned = True  # type: ignore[attr-defined]
    DistributedDataParallel.__init__ = init


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
            allow()
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Beside)]


def look_at_script(file: Path) -> None:
    """Look at a script that is about to run, and at what it has imported of its folder or will import."""
    script = file.absolute()
    if script.suffix != ".py" or not script.is_file():
        return
    folder = script.parent
    if not any(isinstance(finder, _Beside) and finder.folder == folder for finder in sys.meta_path):
        sys.meta_path.insert(0, _Beside(folder))
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    look_at(script, *(Path(file) for file in files if file and file.startswith(f"{folder}{os.sep}")))
