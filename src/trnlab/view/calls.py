# SPDX-License-Identifier: Apache-2.0
"""System calls that Python has no functions for, through the C library; each raises OSError as Python's do."""

from __future__ import annotations

import ctypes
import importlib
import os
import socket
import struct
from typing import Any

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, BIND, REC, PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
_DETACH, _MOUNT_SETATTR, _AT_RECURSIVE, _AT_FDCWD = 2, 442, 0x8000, -100
_SET_DUMPABLE, _BOUNDING_DROP, _SUBREAPER = 4, 24, 36
_CAPABILITIES_3, _UP, _SET_FLAGS, _GET_FLAGS = 0x20080522, 1, 0x8914, 0x8913
# Of those of root, what concerns files that it owns, its processes and its ports: none changes what is mounted.
_HARMLESS = (0, 1, 3, 4, 5, 6, 7, 10, 23, 24)


def _library() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _checked(_library().unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    """As mount(2)."""
    words = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _checked(_library().mount(*words[:3], ctypes.c_ulong(flags), words[3]), target)


def read_only(target: str) -> None:
    """Make what is mounted at a place, and below it, read-only."""
    attributes = struct.pack("QQQQ", RDONLY, 0, 0, 0)
    arguments = (ctypes.c_int(_AT_FDCWD), os.fsencode(target), ctypes.c_uint(_AT_RECURSIVE), attributes)
    _checked(_library().syscall(_MOUNT_SETATTR, *arguments, ctypes.c_size_t(len(attributes))), target)


def enter_root(new: str) -> None:
    """Make a mounted folder the root of this process, and let go of the old one."""
    os.chdir(new)
    _checked(_library().pivot_root(b".", b"."), new)
    _checked(_library().umount2(b".", _DETACH), "the old root")
    os.chdir("/")


def adopt_orphans() -> None:
    """Become the parent of descendants whose parents end."""
    _checked(_library().prctl(_SUBREAPER, 1, 0, 0, 0), "prctl")


def hide() -> None:
    """Keep the memory and the files of this process from others of its user."""
    _checked(_library().prctl(_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def let_go_of_powers() -> None:
    """Keep of root's powers within a namespace those over files that it owns; others have none left."""
    library = _library()
    kept = _HARMLESS if os.getuid() == 0 else ()
    for number in range(64):
        if number not in kept:
            library.prctl(_BOUNDING_DROP, number, 0, 0, 0)  # fails for those that the kernel does not know
    word = sum(1 << number for number in kept)
    header, data = struct.pack("Ii", _CAPABILITIES_3, 0), struct.pack("IIIIII", word, word, 0, 0, 0, 0)
    _checked(library.capset(header, data), "capset")


def raise_loopback() -> None:
    """Switch on the loopback of a new network namespace."""
    fcntl = importlib.import_module("fcntl")  # Linux has it, as it has namespaces
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(handle, _GET_FLAGS, request))[1]
        fcntl.ioctl(handle, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))
