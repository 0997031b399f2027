# SPDX-License-Identifier: Apache-2.0
"""Loops that were compiled ahead of time: where they are, whether they are of these sources, and calls of them.

One file holds them: a line of JSON, then objects as a linker takes them, which llvmlite puts into memory. They belong
to no version of Python or Numba. A file is used only if it was made of the sources that are installed, for a
processor that has no more than this one, and if it lies beside these sources, in the installation, or in a folder
that the user alone can write to. Everything else is left to Numba.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import stat
import threading
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trnlab.loops import kinds
from trnlab.loops.places import INSTALLED, file_name, own_folder
from trnlab.sources import source_digest

Function = Callable[..., Any]
SETTING = "TRNLAB_LOOPS"  # "numba": leave everything to Numba
PROCESSOR = "TRNLAB_LOOPS_PROCESSOR"  # for the processes that make loops for another one
FORMAT = 2
# What the levels of x86-64 that wheels are made for need, by LLVM's names (System V ABI, x86-64 psABI, 3.1.1).
_V2 = ("cx16", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2", "sahf")
OF_PROCESSORS = {"x86-64-v3": (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")}
# Whatever loops are made of lies here: a change to any of it makes what was compiled stale.
_SOURCES = (
    "loops",
    "sim",
    "program",
    "profile",
    "isa",
    "numerics",
    "runtime/analysis/usage.py",
    "kernels/blocking/pipeline.py",
    "compiler/placement.py",
    "timeline.py",
    "units.py",
)
_CALL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_LOCK = threading.RLock()


@functools.cache
def stamp() -> str:
    """Digest of the sources that loops are made of."""
    return hashlib.sha256(f"{FORMAT} {source_digest(*_SOURCES)}".encode()).hexdigest()


class LoopLibrary:
    """A file of loops, as it was read. header: its first line. Objects enter memory when they are called for."""

    def __init__(self, header: dict[str, Any], content: bytes) -> None:
        self.header, self._content = header, content
        self._engine: Any = None
        self._loaded: set[str] = set()

    def address(self, symbol: str, part: str = "") -> int:
        """Address of the loop `symbol`, or of what belongs to it."""
        with _LOCK:
            if self._engine is None:
                self._engine = _engine()
            self._load(symbol)
            self._engine.finalize_object()
            return int(self._engine.get_function_address(symbol + part))

    def _load(self, symbol: str) -> None:
        """Bring the object of a symbol into memory, and those that it calls."""
        if symbol in self._loaded:
            return
        import llvmlite.binding as llvm

        self._loaded.add(symbol)
        about = self.header["objects"][symbol]
        code = self._content[about["begin"] : about["end"]]
        if hashlib.sha256(code).hexdigest() != about["sha256"]:
            raise ValueError(f"the object of {symbol} is damaged")
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        for needed in about["needs"]:
            self._load(needed)


def _engine() -> Any:
    """Where objects are put into memory."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def _candidates() -> Iterator[Path]:
    yield INSTALLED / file_name()
    with contextlib.suppress(RuntimeError):  # there is no home
        yield own_folder() / f"made-{stamp()[:32]}" / file_name()


def _mine(path: Path) -> bool:
    """Whether code there may be run: beside the sources, which are run as well, or where nobody else can write."""
    if path.parent == INSTALLED:
        return True
    if not hasattr(os, "getuid"):
        return False
    states = [place.lstat() for place in (path, path.parent, path.parent.parent)]
    return all(s.st_uid == os.getuid() and not s.st_mode & 0o022 and not stat.S_ISLNK(s.st_mode) for s in states)


def read(path: Path) -> LoopLibrary | None:
    """What a file holds; None where there is none, or not of these sources, or for another processor."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if not _mine(path):
            return None
        content = path.read_bytes()
        first, _, rest = content.partition(b"\n")
        header = json.loads(first)
        if (
            header["format"] == FORMAT
            and header["stamp"] == stamp()
            and _serves(header["triple"], header["features"])
        ):
            return LoopLibrary(header, rest)
    return None


def _serves(triple: str, features: list[str]) -> bool:
    import llvmlite.binding as llvm

    have = llvm.get_host_cpu_features()
    return bool(triple == llvm.get_default_triple() and all(have.get(feature) for feature in features))


@functools.cache
def made() -> LoopLibrary | None:
    """What this process uses."""
    with _LOCK:
        if os.environ.get(SETTING) == "numba" or not kinds.numpy_is_known():
            return None
        return next(filter(None, map(read, _candidates())), None)


def features_of(processor: str | None) -> dict[str, bool]:
    """What a processor has, by LLVM's names of both; this one by default."""
    import llvmlite.binding as llvm

    return dict(llvm.get_host_cpu_features()) if processor is None else dict.fromkeys(OF_PROCESSORS[processor], True)


def vectors() -> dict[str, int] | None:
    """What the loops that this process uses assume of vector registers; None where Numba makes them."""
    found = made()
    return None if found is None else found.header["vectors"]


def entry(name: str, arguments: str) -> Function | None:
    """A loop for arguments of these names, or None."""
    found = made()
    return None if found is None else entry_of(found, name, arguments)


def entry_of(found: LoopLibrary, name: str, arguments: str) -> Function | None:
    """As `entry`, of a file."""
    about = found.header["entries"].get(name + arguments)
    try:
        return None if about is None else _entry(found, name, about)
    except (RuntimeError, ValueError, OSError):
        return None


def _entry(found: LoopLibrary, name: str, about: dict[str, str]) -> Function:
    symbol, (returns,) = about["symbol"], kinds.parse(f"({about['returns']})")
    call, count = _CALL(found.address(symbol)), kinds.count_of(returns)
    release = _RELEASE(found.address(symbol, "_release"))

    room = ctypes.c_int64 * count

    def entry(*args: Any) -> Any:
        given: list[int] = []
        kinds.words(args, given)
        taken, out = array("q", given), room()
        if status := call(taken.buffer_info()[0], ctypes.addressof(out)):
            raise RuntimeError(f"{name} failed with status {status}")
        return kinds.value_of(returns, iter(out), release)

    return entry


def exported(symbol: str, signature: kinds.Signature) -> tuple[int, Function] | None:
    """Address of a loop that compiled code calls by its symbol, and the loop as a Python function; or None."""
    found = made()
    if found is None or symbol not in found.header["objects"]:
        return None
    ctype: dict[kinds.LoopType, Any] = {kinds.i64: ctypes.c_int64, kinds.float32: ctypes.c_float, kinds.void: None}
    try:
        address = found.address(symbol)
    except (RuntimeError, ValueError, OSError):
        return None
    kind = ctypes.CFUNCTYPE(ctype[signature.returns], *(ctype[argument] for argument in signature.arguments))
    return address, kind(address)
