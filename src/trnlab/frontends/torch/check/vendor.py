# SPDX-License-Identifier: Apache-2.0
"""What is published of compiling such a model on the vendor's stack."""

from __future__ import annotations

from typing import Any


def vendor_minutes(parameters: int) -> dict[str, Any]:
    """Minutes that compiling a step of a model of so many parameters takes on the vendor's stack, as published; empty
    where there are none."""
    from trnlab.fleet.bills import compilation  # a planner takes a while

    if not parameters:
        return {}
    found = compilation.minutes(parameters)
    return {"low_min": found.low, "high_min": found.high, "tag": found.tag, "source": found.source}
