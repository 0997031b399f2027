# SPDX-License-Identifier: Apache-2.0
"""What the upper layers of a view hold against the lower ones: what was written, made, deleted, changed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trnlab.view.namespaces import OverlayLayer

_OPAQUE = "user.overlay.opaque"
_COMPARED = 1 << 24  # bytes up to which files that have their size and time are compared
_CACHES = ("__pycache__", "trnlab-loops", "numba_cache")
_CACHED = (".pyc", ".nbi", ".nbc")


@dataclass(frozen=True)
class FileChange:
    """A change that a script made to a file of its view."""

    kind: str  # written, deleted or changed (its rights or times alone)
    path: str
    size: int = 0  # in bytes
    new: bool = False  # nothing was there


def changes(layers: Iterable[OverlayLayer]) -> list[FileChange]:
    """Changes of all layers, by path."""
    return sorted((change for layer in layers for change in _in_layer(layer)), key=lambda change: change.path)


def is_cache(path: str) -> bool:
    """Whether a file is one that Python, Numba and PyTorch keep for themselves."""
    words = path.split("/")
    return path.endswith(_CACHED) or any(w in _CACHES or w.startswith("torchinductor_") for w in words)


def _in_layer(layer: OverlayLayer) -> Iterator[FileChange]:
    if not layer.divided:
        yield from _in_folder(layer, "")
        return
    now, before = set(os.listdir(layer.upper)), set(os.listdir(layer.lower))
    for name in (now - before) | now.intersection(layer.copies):
        yield from _entry(layer, name)
    for name in set(layer.copies) - now:
        yield FileChange("deleted", f"{layer.point.rstrip('/')}/{name}")


def _in_folder(layer: OverlayLayer, inside: str) -> Iterator[FileChange]:
    with contextlib.suppress(OSError):
        for name in os.listdir(f"{layer.upper}/{inside}"):
            yield from _entry(layer, f"{inside}/{name}".lstrip("/"))


def _entry(layer: OverlayLayer, inside: str) -> Iterator[FileChange]:
    path, upper, lower = f"{layer.point.rstrip('/')}/{inside}", f"{layer.upper}/{inside}", f"{layer.lower}/{inside}"
    if is_cache(path):
        return
    now, before = os.lstat(upper), _state(lower)
    if stat.S_ISCHR(now.st_mode) and now.st_rdev == 0:
        if before is not None:
            yield FileChange("deleted", path, before.st_size)
    elif stat.S_ISDIR(now.st_mode):
        yield from _folder(layer, inside, path, now, before)
    elif before is None:
        yield FileChange("written", path, now.st_size, new=True)
    elif _differs(upper, lower, now, before):
        yield FileChange("written", path, now.st_size)
    elif _attributes(now) != _attributes(before):
        yield FileChange("changed", path, now.st_size)


def _folder(
    layer: OverlayLayer, inside: str, path: str, now: os.stat_result, before: os.stat_result | None
) -> Iterator[FileChange]:
    found = list(_in_folder(layer, inside))
    if before is None or not stat.S_ISDIR(before.st_mode):
        if not found and (
            before is not None or not any(is_cache(f"{path}/{n}") for n in os.listdir(f"{layer.upper}/{inside}"))
        ):
            yield FileChange("written", path + "/", 0, new=before is None)
        yield from found
        return
    if _is_opaque(f"{layer.upper}/{inside}"):
        gone = set(os.listdir(f"{layer.lower}/{inside}")) - set(os.listdir(f"{layer.upper}/{inside}"))
        found += [FileChange("deleted", f"{path}/{name}") for name in gone if not is_cache(f"{path}/{name}")]
    elif now.st_uid == before.st_uid and stat.S_IMODE(now.st_mode) != stat.S_IMODE(before.st_mode):
        found.append(FileChange("changed", path + "/"))
    yield from found


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, _OPAQUE) == b"y"
    except OSError:
        return False


def _state(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _attributes(state: os.stat_result) -> tuple[int, ...]:
    return stat.S_IMODE(state.st_mode), state.st_mtime_ns, state.st_uid, state.st_gid


def _differs(upper: str, lower: str, now: os.stat_result, before: os.stat_result) -> bool:
    """Whether the content is another. What was opened for writing and not written is a copy, with the time of old."""
    if stat.S_IFMT(now.st_mode) != stat.S_IFMT(before.st_mode) or now.st_size != before.st_size:
        return True
    if stat.S_ISLNK(now.st_mode):
        return os.readlink(upper) != os.readlink(lower)
    if not stat.S_ISREG(now.st_mode):
        return False
    if now.st_size > _COMPARED:
        return now.st_mtime_ns != before.st_mtime_ns
    return Path(upper).read_bytes() != Path(lower).read_bytes()
