# SPDX-License-Identifier: Apache-2.0
"""The user's own line behind an operator: found while tracing, carried as FX's stack trace, read as a Location."""

from __future__ import annotations

import bisect
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx
from torch.fx import traceback as fx_traceback
from torch.overrides import TorchFunctionMode

import trnlab
from trnlab.errors import Location, UnsupportedOpError
from trnlab.frontends.torch.findings import survey
from trnlab.frontends.torch.pytorch.tensors import CALL_OF_MODULES, backward_number

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[^\n]*)(?:\n +(?P<text>[^\n]*))?')
_PACKAGES = tuple(str(Path(str(module.__file__)).parent) + os.sep for module in (torch, trnlab))
_INDEX = re.compile(r"\['?(\w+)'?\]")
_LAYER, _BACK = "layer ", "gradient"
_GRADIENT = f", {_BACK}"
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep


@lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether a file is neither of PyTorch, nor of trnlab, nor of the standard library."""
    if file.startswith(("<", *_PACKAGES)):
        return False
    return f"{os.sep}site-packages{os.sep}" in file or not file.startswith(_STANDARD_LIBRARY)


@lru_cache(maxsize=4096)
def parse(stack_trace: str) -> Location | None:
    """The innermost frame of a formatted stack that is neither PyTorch's, nor ours, nor the standard library's."""
    frames = [m for m in _FRAME.finditer(stack_trace) if is_users(m["file"])]
    if not frames:
        return None
    last = frames[-1]
    function, *about = (part.strip() for part in last["function"].split(","))
    layer = next((part.removeprefix(_LAYER) for part in about if part.startswith(_LAYER)), "")
    phase = "backward" if _BACK in about else ""
    return Location(last["file"], int(last["line"]), function, (last["text"] or "").strip(), layer, phase)


def location_of(node: fx.Node) -> Location | None:
    """The user's line behind an FX node, with the layer that PyTorch's own tracers note beside it."""
    where = parse(node.meta.get("stack_trace") or "")
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if where is None or where.layer or not stack:
        return where
    path, _ = list(stack.values())[-1]
    path = _INDEX.sub(r".\1", re.sub(r"^L\['\w+'\]", "model", str(path)).replace("._modules", ""))
    return replace(where, layer=path)


def is_gradient(stack_trace: str) -> bool:
    """Whether `RecordLines` met the operator on the way back through the model."""
    return _GRADIENT in stack_trace


def here(start: Any) -> str | None:
    """The user's line that is executing, as one entry of a formatted stack; `start` is the innermost frame."""
    frame: Any = start
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    file, line = frame.f_code.co_filename, frame.f_lineno
    layer = layer_of(start)
    about = frame.f_code.co_name + (f", {_LAYER}{layer}" if layer else "")
    return f'File "{file}", line {line}, in {about}\n    {linecache.getline(file, line).strip()}'


def layer_of(frame: Any) -> str:
    """Path of the innermost module of the model that is being called, "" outside of one."""
    calls = []
    while frame is not None:
        if frame.f_code is CALL_OF_MODULES:
            calls.append(frame.f_locals["self"])
        frame = frame.f_back
    if not calls:
        return ""
    name = _path(calls[-1], calls[0])
    return f"model.{name}" if name else "model"


_kept: list[torch.nn.Module] | None = None


@contextmanager
def models_kept() -> Iterator[None]:
    """Within the block models whose operators are noted are kept: a script may give its model up before the last of
    them is computed."""
    global _kept
    was, _kept = _kept, []
    try:
        yield
    finally:
        _kept = was


_PATHS: WeakKeyDictionary[torch.nn.Module, dict[int, str]] = WeakKeyDictionary()  # by model, then by `id` of a module


def _path(model: torch.nn.Module, module: torch.nn.Module) -> str:
    """Where a module lies in a model, or its class. Asked for every operator, so that the paths are kept."""
    known = _PATHS.get(model, {})
    if id(module) not in known:
        known = _PATHS[model] = {id(m): name for name, m in model.named_modules()}
        if _kept is not None:
            _kept.append(model)
    return known.get(id(module), type(module).__name__)


def _learns(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()


def _learns_through_mask(_: Any, indices: Any, values: Any = None, *args: Any, **kwargs: Any) -> bool:
    masks = indices if isinstance(indices, (tuple, list)) else (indices,)
    kinds = [i.dtype for i in masks if isinstance(i, torch.Tensor)]
    return _learns(values) and any(kind in (torch.bool, torch.uint8) for kind in kinds)


def _learns_its_filling(_: Any, dim: Any, index: Any, value: Any = None, *args: Any, **kwargs: Any) -> bool:
    return _learns(value)


# The derivatives of these ask for values within autograd's own code, from where an exception ends the process.
_WRITES: dict[Any, tuple[Any, str, str]] = {
    **dict.fromkeys(
        (
            torch.Tensor.__setitem__,
            torch.Tensor.index_put,
            torch.Tensor.index_put_,
            torch.index_put,
            torch.index_put_,
        ),
        (_learns_through_mask, "where a mask is true needs the mask's values", "use torch.where(mask, values, x)"),
    ),
    **dict.fromkeys(
        (torch.Tensor.index_fill, torch.Tensor.index_fill_, torch.index_fill),
        (
            _learns_its_filling,
            "at indices needs the indices' values",
            "use x.index_copy(dim, index, value.expand(...))",
        ),
    ),
}


class RecordLines(TorchFunctionMode):
    """While active, every operator that is traced carries the user's line; `watch` extends that to the backward pass.

    Autograd numbers the nodes it makes. The numbers made during one call of the user belong to that line, so a node's
    number leads back to it when the node runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._starts: list[int] = []
        self._lines: list[str | None] = []
        self._failed: str | None = None

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        line = here(sys._getframe(1))
        self._starts.append(backward_number())
        self._lines.append(line)
        set_line(line)
        needs, why, remedy = _WRITES.get(function, (None, "", ""))
        if needs is not None and needs(*args, **(kwargs or {})):
            refusal = UnsupportedOpError(
                f"writing values that require a gradient {why}", code="TRN204", where=parse(line or ""), remedy=remedy
            )
            gathered = survey.active()
            if gathered is None:
                raise refusal
            gathered.raised(refusal)
        try:
            return function(*args, **(kwargs or {}))
        except Exception:
            self._failed = self._failed or line
            raise

    def here(self) -> Location | None:
        """The user's line that is executing."""
        return parse(here(sys._getframe(1)) or "")

    def failed(self) -> Location | None:
        """The line of the first operator that raised an exception."""
        return parse(self._failed or "")

    def _line_of(self, number: int) -> str | None:
        place = bisect.bisect_right(self._starts, number) - 1
        return self._lines[place] if place >= 0 else None

    def watch(self, loss: torch.Tensor) -> list[torch.Tensor]:
        """Before each node that computes the gradient of `loss`, set the line that the node came from.

        Returns the tensors at which the gradients arrive.
        """
        leaves: list[torch.Tensor] = []
        seen, waiting = set(), [loss.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            node.register_prehook(self._entering(node))
            waiting.extend(parent for parent, _ in node.next_functions)
            if hasattr(node, "variable"):
                leaves.append(node.variable)
        return leaves

    def _entering(self, node: Any) -> Any:
        line = self._line_of(node._sequence_nr())
        line = of_gradient(line)
        return lambda grads: set_line(line)


@contextmanager
def user_line_noted() -> Iterator[None]:
    """Within the block operators that are traced carry the user's line that is executing."""
    before = fx_traceback.current_meta.get("stack_trace")
    set_line(here(sys._getframe(2)))
    try:
        yield
    finally:
        set_line(before)


def of_gradient(line: str | None) -> str | None:
    """An entry of a formatted stack, marked for what belongs to the way back."""
    return line and line.replace("\n", f"{_GRADIENT}\n", 1)


def set_line(line: str | None) -> None:
    """Operators that are traced from here on carry this line."""
    if line is None:
        fx_traceback.current_meta.pop("stack_trace", None)
    else:
        fx_traceback.current_meta["stack_trace"] = line
