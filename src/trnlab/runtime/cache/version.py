# SPDX-License-Identifier: Apache-2.0
"""The compiler's own version: a digest of the source that decides what a graph compiles to."""

from __future__ import annotations

from trnlab.sources import source_digest

# Everything from which a program is made; the simulators and viewers that only read one are not in it.
PACKAGES = ("numerics", "chips", "isa", "graph", "program", "kernels", "compiler")


def compiler_version() -> str:
    """A digest of the source files of `PACKAGES`, 16 hexadecimal digits."""
    return source_digest(*PACKAGES)[:16]
