# SPDX-License-Identifier: Apache-2.0
"""How much is drawn: all of it, or a part where tests that are marked `slow` are left out (`make test`)."""

from __future__ import annotations

ALL = True  # conftest.py says otherwise


def examples(count: int) -> int:
    """Of the examples that a property is tried with: all, or the first third."""
    return count if ALL else -(-count // 3)
