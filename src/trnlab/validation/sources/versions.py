# SPDX-License-Identifier: Apache-2.0
"""Versions of the code that records kernels, and of that which decides their times, as digests of its source."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import trnlab

RECORDING = ("numerics", "chips", "isa", "program", "lang", "nki")  # what makes a routine of a kernel
# And what a predicted time depends on.
MODEL = (*RECORDING, "sim/timing", "validation/sources/run.py", "validation/sources/observed.py")


@functools.cache
def version(parts: tuple[str, ...]) -> str:
    """Hexadecimal digest over the source files of some packages, of single modules, and of the modules above all
    packages; 12 digits."""
    root = Path(trnlab.__file__).parent
    paths = sorted(root.glob("*.py"))
    for part in parts:
        paths += [root / part] if part.endswith(".py") else sorted((root / part).rglob("*.py"))
    digest = hashlib.sha256()
    for path in paths:
        source = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()[:12]
