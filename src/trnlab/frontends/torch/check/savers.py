# SPDX-License-Identifier: Apache-2.0
"""Weights that are saved while a script is followed have no values: of large ones only the room is written, as a hole
in the file, so that what was saved has its size and can be loaded again without taking the memory of a model.

What native code writes goes where the view has it written. Where a script is followed in no view, functions that
save do nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import serialization

from trnlab.frontends.torch.pytorch.tensors import SAVING, WRITERS
from trnlab.view.line import inside, place_to_read, place_to_write

Aside = Callable[[], AbstractContextManager[None]]
LARGE = 1 << 18  # bytes from which on a tensor has no values
_SAVERS = (
    ("torch", "save"),
    ("torch.distributed.checkpoint", "save"),
    ("safetensors.torch", "save_file"),
    ("safetensors.torch", "save_model"),
)
_TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


@contextmanager
def saved_with_holes(aside: Aside) -> Iterator[None]:
    """Within the block large tensors are saved as holes. aside: a block in which operators are not the script's."""
    with ExitStack() as stack:
        enter = stack.enter_context
        if not inside():
            for module, name in _SAVERS:
                if importlib.util.find_spec(module.partition(".")[0]) is not None:
                    enter(patch.object(import_module(module), name, _nothing))
            yield
            return
        enter(patch.object(*SAVING, _sparing(getattr(*SAVING), aside)))
        enter(patch.object(serialization, "location_tag", _noting(serialization.location_tag)))
        enter(patch.object(*WRITERS, _writer(getattr(*WRITERS))))
        enter(patch.object(torch.jit, "save", _led(torch.jit.save, 1, place_to_write)))
        enter(patch.object(torch.jit, "load", _led(torch.jit.load, 0, place_to_read)))
        if importlib.util.find_spec("safetensors") is not None:
            for module, function in (("safetensors", _opening), ("safetensors.torch", _opening)):
                enter(patch.object(import_module(module), "safe_open", function(import_module(module).safe_open)))
            found = import_module("safetensors.torch")
            enter(patch.object(found, "save_file", _safetensors(found.save_file)))
        if dist.is_available():
            enter(_alone(import_module("torch.distributed.checkpoint"), aside))
        yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for a function that saves."""


# -- torch.save ---------------------------------------------------------------------------------------------------
class _Now(threading.local):
    """The storages of what this thread saves, by their number in the file."""

    storages: dict[int, tuple[str, Any]] | None = None


_now = _Now()


class _Sparing:
    """Writes an archive in which large storages are holes."""

    def __init__(self, archive: Any, storages: dict[int, tuple[str, Any]]) -> None:
        self._archive, self._storages = archive, storages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    def write_record_metadata(self, name: str, size: int) -> None:
        """Write the metadata of a storage."""
        known = {f"data/{number}": storage for number, storage in self._storages.values()}
        if size >= LARGE or name not in known:
            self._archive.write_record_metadata(name, size)
        else:
            self._archive.write_record(name, known[name].cpu(), size)


def _sparing(original: Callable[..., Any], aside: Aside) -> Callable[..., Any]:
    def save(obj: Any, archive: Any, *args: Any, **kwargs: Any) -> Any:
        before, _now.storages = _now.storages, {}
        try:
            with aside(), serialization.skip_data():
                return original(obj, _Sparing(archive, _now.storages), *args, **kwargs)
        finally:
            _now.storages = before

    return save


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    def location(storage: Any) -> Any:
        known = _now.storages
        if known is not None:
            known.setdefault(storage._cdata, (str(len(known)), storage))
        return original(storage)

    return location


# -- native writers -----------------------------------------------------------------------------------------------
def _writer(original: Any) -> Any:
    class Writer(original):  # type: ignore[misc]
        def __init__(self, name: Any, *args: Any) -> None:
            super().__init__(place_to_write(name) if isinstance(name, str) else _Stream(name), *args)

    return Writer


class _Stream:
    """What an archive is written into, with holes where it can be sought in, and zeros where not."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, content: Any) -> Any:
        """As the stream's."""
        return self._stream.write(content)

    def seek(self, size: int, whence: int) -> None:
        """Leave out so many bytes."""
        streams: tuple[Any, ...] = (self._stream, getattr(self._stream, "raw", None))
        for stream in streams:
            try:
                stream.seek(size, whence)
                return
            except (AttributeError, OSError, ValueError):
                continue
        while size:
            part = min(size, 1 << 20)
            self._stream.write(bytes(part))
            size -= part


def _led(original: Callable[..., Any], where: int, place: Callable[[str], str]) -> Callable[..., Any]:
    """A function whose argument `where` may be a path."""

    def function(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        if len(given) > where and isinstance(given[where], str | os.PathLike):
            given[where] = place(os.fspath(given[where]))
        elif isinstance(kwargs.get("f"), str | os.PathLike):
            kwargs["f"] = place(os.fspath(kwargs["f"]))
        return original(*given, **kwargs)

    return function


def _opening(original: Any) -> Callable[..., Any]:
    def function(filename: Any, *args: Any, **kwargs: Any) -> Any:
        return original(place_to_read(os.fspath(filename)), *args, **kwargs)

    return function


def _safetensors(original: Callable[..., Any]) -> Callable[..., Any]:
    def save(tensors: Any, filename: Any, metadata: Any = None) -> None:
        sizes = {name: t.numel() * t.element_size() for name, t in tensors.items()}
        kinds = {name: _TYPES.get(str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()}
        if sum(sizes.values()) < LARGE or None in kinds.values():
            original(tensors, place_to_write(os.fspath(filename)), metadata)
            return
        head: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        end = 0
        for name in sorted(tensors, key=lambda n: (-tensors[n].element_size(), n)):
            span = [end, end + sizes[name]]
            head[name] = {"dtype": kinds[name], "shape": list(tensors[name].shape), "data_offsets": span}
            end = span[1]
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        with open(filename, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)

    return save


# -- checkpoints of several ranks ---------------------------------------------------------------------------------
@contextmanager
def _alone(checkpoint: Any, aside: Aside) -> Iterator[None]:
    """Within the block a rank that is followed saves and loads its own part, since the others say nothing."""
    save, load, later = checkpoint.save, checkpoint.load, checkpoint.async_save

    def alone(original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            if dist.is_initialized():
                kwargs = {**kwargs, "no_dist": True, "process_group": None}
            with aside():
                return original(*args, **kwargs)

        return function

    def at_once(*args: Any, **kwargs: Any) -> Any:
        if not dist.is_initialized():
            with aside():
                return later(*args, **kwargs)
        known = ("checkpoint_id", "storage_writer", "planner", "no_dist", "process_group")
        done: Future[Any] = Future()
        done.set_result(alone(save)(*args, **{name: value for name, value in kwargs.items() if name in known}))
        return done

    with (
        patch.object(checkpoint, "save", alone(save)),
        patch.object(checkpoint, "load", alone(load)),
        patch.object(checkpoint, "async_save", at_once),
    ):
        yield
