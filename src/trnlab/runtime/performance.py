# SPDX-License-Identifier: Apache-2.0
"""What a run's steps would take and cost on the chip: the timed half of the summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trnlab.runtime.run import Run


def summarise(run: Run) -> dict[str, Any]:
    """The fields of the summary that come from the timelines of the executables of a typical step."""
    return {}
