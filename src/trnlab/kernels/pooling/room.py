# SPDX-License-Identifier: Apache-2.0
"""What pooling says where SBUF has no room for it."""

from __future__ import annotations

from trnlab.errors import CapacityError
from trnlab.program.builder import Builder


def no_room(b: Builder, needed: str, remedy: str) -> CapacityError:
    """The refusal of windows that do not fit what is free of SBUF. needed: how much, and for what."""
    return CapacityError(
        "windows to pool over have no room",
        code="TRN504",
        limit=f"{b.sbuf_free} bytes per partition left",
        got=needed,
        chip=b.chip.name,
        remedy=remedy,
    )
