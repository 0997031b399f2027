# SPDX-License-Identifier: Apache-2.0
"""The releases of PyTorch that trnlab knows: the newest three. `make versions` tries them all."""

from __future__ import annotations

import os
import re

import torch

from trnlab.errors import UsageError

SUPPORTED = ((2, 13), (2, 14), (2, 15))
UNTRIED = "TRNLAB_UNTRIED_PYTORCH"


def found() -> tuple[int, int]:
    """Release of the PyTorch that is loaded, as (2, 15)."""
    return release_of(str(torch.__version__))


def release_of(version: str) -> tuple[int, int]:
    """(2, 15) of "2.15.0+cpu" and of "2.15.0a0+git1234567"."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def require() -> None:
    """Raises UsageError (TRN199) where the PyTorch that is loaded is none of the releases that were tried."""
    if found() in SUPPORTED or os.environ.get(UNTRIED) == "1":
        return
    oldest, newest = SUPPORTED[0], SUPPORTED[-1]
    way = f"pip install 'torch>={_text(oldest)},<{newest[0]}.{newest[1] + 1}'"
    if found() > newest:
        way += f"; or {UNTRIED}=1, to try it as it is"
    raise UsageError(
        "this release of PyTorch was not tried, and the device leans on what changes between releases: it has no "
        "device 'neuron'",
        code="TRN199",
        limit=f"PyTorch {_text(oldest)} to {_text(newest)}",
        got=f"PyTorch {torch.__version__}",
        remedy=way,
    )


def _text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
