# SPDX-License-Identifier: Apache-2.0
"""Where compiled loops are kept: in the installation, and in a folder of the user's."""

from __future__ import annotations

import os
import platform
from pathlib import Path

VERSIONED = "source_digest"  # the closure variable that a loop's digest is in, for Numba's own cache
INSTALLED = Path(__file__).parent / "made"


def own_folder() -> Path:
    """The folder of all loops of this user. Raises RuntimeError where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trnlab-loops"


def file_name() -> str:
    """File name of the loops for machines like this one."""
    return f"{platform.system().lower()}-{platform.machine().lower()}.loops"
