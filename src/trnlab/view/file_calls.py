# SPDX-License-Identifier: Apache-2.0
"""Calls that read or change files: which they are, and what of theirs is a path."""

from __future__ import annotations

import os
from typing import Any

FREE = frozenset(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "stdout", "stderr", "tty"))
CHANGING = {  # events, and how many paths they begin with
    "os.remove": 1,
    "os.rmdir": 1,
    "os.mkdir": 1,
    "os.truncate": 1,
    "os.chmod": 1,
    "os.chown": 1,
    "os.utime": 1,
    "os.setxattr": 1,
    "os.removexattr": 1,
    "os.link": 2,
    "os.rename": 2,
    "os.symlink": 2,
    "os.chflags": 1,
}
NATIVE = frozenset(
    (
        "open",
        "open64",
        "openat",
        "creat",
        "fopen",
        "fopen64",
        "freopen",
        "unlink",
        "unlinkat",
        "remove",
        "rename",
        "renameat",
        "renameat2",
        "rmdir",
        "truncate",
        "truncate64",
        "mkdir",
        "mkdirat",
        "link",
        "symlink",
        "chmod",
        "fchmod",
        "chown",
        "lchown",
        "utime",
        "utimes",
        "utimensat",
        "mknod",
        "syscall",
        "connect",
        "sendto",
        "sendmsg",
        "kill",
    )
)
READING = ("stat", "access", "readlink", "chdir", "statvfs", "getxattr", "listxattr")
ATTRIBUTES = ("truncate", "chmod", "chown", "lchown", "utime", "setxattr", "removexattr")
LINKS = 40  # that a path may lead through
ATTACH = 24  # what SQLite calls the opening of another database
WITH_FOLDER = ("os.remove", "os.rmdir", "os.mkdir")


def no_other_database(action: int, first: Any, *_: Any) -> int:
    """What SQLite asks before it does something: 1 refuses, which is the opening of another database's file."""
    return 1 if action == ATTACH and first not in ("", ":memory:", None) else 0


def opens_to_write(flags: int) -> bool:
    """Whether a file that is opened with these flags may change."""
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


def as_function(bound: Any) -> Any:
    """A plain function, which may have a name."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return bound(*args, **kwargs)

    return function
