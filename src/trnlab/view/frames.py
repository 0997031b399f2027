# SPDX-License-Identifier: Apache-2.0
"""What the processes of a view say to the one outside: objects in frames, read with no faith in who wrote them."""

from __future__ import annotations

import importlib
import io
import os
import pickle
import struct
from enum import Enum
from typing import Any

from trnlab.errors import TrnlabError

_LENGTH = struct.Struct("<Q")
_SHORT = 1 << 16  # bytes of a frame that are written with its length
_PLAIN = {
    ("builtins", name): None
    for name in (
        "set",
        "frozenset",
        "complex",
        "bytearray",
        "slice",
        "range",
        "OSError",
        "PermissionError",
        "FileNotFoundError",
        "FileExistsError",
        "IsADirectoryError",
        "NotADirectoryError",
    )
} | {
    ("collections", "Counter"): None,
    ("collections", "OrderedDict"): None,
    ("collections", "defaultdict"): None,
    ("pathlib", "PosixPath"): None,
    ("pathlib", "PurePosixPath"): None,
    ("fractions", "Fraction"): None,
    ("numpy", "dtype"): None,
    ("numpy", "ndarray"): None,
    ("numpy._core.multiarray", "_reconstruct"): None,
    ("numpy._core.multiarray", "scalar"): None,
    ("numpy._core.numeric", "_frombuffer"): None,
    ("argparse", "Namespace"): None,
    ("trnlab.numerics.dtypes", "dtype"): None,
}


class _Reader(pickle.Unpickler):
    """Makes plain values, and objects of classes of ours: what a script could smuggle in calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        found = importlib.import_module(module) if module.partition(".")[0] in ("trnlab", "ml_dtypes") else None
        if found is not None and "." not in name:
            kind = getattr(found, name, None)
            if isinstance(kind, type) and (module == "ml_dtypes" or _plain(kind)):
                return kind
        if (module, name) not in _PLAIN:
            raise pickle.UnpicklingError(f"{module}.{name} is none of the classes that a result may have")
        return super().find_class(module, name)


def _plain(kind: type) -> bool:
    """Whether it is a class of ours that only holds what it is given."""
    plain = hasattr(kind, "__dataclass_fields__") or issubclass(kind, tuple | TrnlabError | Enum)
    return plain and kind.__module__.partition(".")[0] == "trnlab"


def send(handle: int, *words: Any) -> None:
    """Write a frame, whole. Raises OSError."""
    content = pickle.dumps(words, pickle.HIGHEST_PROTOCOL)
    begin = _LENGTH.pack(len(content)) + content[:_SHORT]
    for left in (memoryview(begin), memoryview(content)[_SHORT:]):  # what is long is not copied once more
        while left:
            left = left[os.write(handle, left) :]


def receive(handle: int, most: int | None = None) -> tuple[Any, ...] | None:
    """The next frame; None where there are no more. most: bytes that it may have. Raises OSError, and ValueError for
    what nobody of us wrote, or is longer."""
    head = _exactly(handle, _LENGTH.size)
    size = _LENGTH.unpack(head)[0] if head is not None else 0
    if most is not None and size > most:
        raise ValueError(f"{size:,} bytes in one piece, at most {most:,}")
    content = _exactly(handle, size) if head is not None else None
    if content is None:
        return None
    try:
        words = _Reader(io.BytesIO(content)).load()
    except Exception as error:
        raise ValueError(str(error)) from error
    return words if isinstance(words, tuple) else (words,)


def _exactly(handle: int, size: int) -> bytes | None:
    parts, left = [], size
    while left:
        part = os.read(handle, min(left, 1 << 20))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
