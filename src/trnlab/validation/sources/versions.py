# SPDX-License-Identifier: Apache-2.0
"""Versions of the code that records kernels, and of that which decides their times, as digests of its source."""

from __future__ import annotations

from trnlab.sources import TOP, source_digest

RECORDING = ("numerics", "chips", "isa", "program", "lang", "nki")  # what makes a routine of a kernel
# And what a predicted time depends on.
MODEL = (*RECORDING, "sim/timing", "validation/sources/run.py", "validation/sources/observed.py")


def version(parts: tuple[str, ...]) -> str:
    """A digest of the source files of packages and modules and of the modules that lie in no package, 12 hexadecimal
    digits."""
    return source_digest(TOP, *parts)[:12]
