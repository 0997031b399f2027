# SPDX-License-Identifier: Apache-2.0
"""The package's own source code as a version: what other code computed is not taken for what this code computes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent
TOP = "."  # the modules that lie in no package
_MADE = {".pyc", ".loops", ".nbi", ".nbc"}  # suffixes of files that are made of sources


@functools.cache
def source_digest(*places: str) -> str:
    """A SHA-256 digest, 64 hexadecimal digits, of the content of source files and of their places below the package.

    places: packages such as "sim/timing", single modules such as "units.py", or `TOP`. The files are read when a
    digest is first asked for, not at import.
    """
    digest = hashlib.sha256()
    for place in places:
        for path in _files(place):
            source = path.read_bytes()
            digest.update(f"{path.relative_to(ROOT).as_posix()} {len(source)}\n".encode())
            digest.update(source)
    return digest.hexdigest()


@functools.cache
def package_digest() -> str:
    """The same of all files of the package, figures and tables among them, but not of what Python and Numba make of
    its sources."""
    digest = hashlib.sha256()
    for path in sorted(path for path in ROOT.rglob("*") if path.suffix not in _MADE and path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _files(place: str) -> Iterator[Path]:
    """The source files of one place, in an order that is the same on every machine."""
    if place.endswith(".py"):
        yield ROOT / place
    elif place == TOP:
        yield from sorted(ROOT.glob("*.py"))
    else:
        yield from sorted((ROOT / place).rglob("*.py"))
