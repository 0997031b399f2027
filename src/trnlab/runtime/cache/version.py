# SPDX-License-Identifier: Apache-2.0
"""The compiler's own version: a digest of the source that decides what a graph compiles to."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import trnlab

# Everything from which a program is made; the simulators and viewers that only read one are not in it.
PACKAGES = ("numerics", "chips", "isa", "graph", "program", "kernels", "compiler")


@functools.cache
def compiler_version() -> str:
    """Hexadecimal digest over the source files of PACKAGES, by path relative to the package; 16 digits."""
    root = Path(trnlab.__file__).parent
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            source = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(source)}\n".encode())
            digest.update(source)
    return digest.hexdigest()[:16]
