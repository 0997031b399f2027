# SPDX-License-Identifier: Apache-2.0
"""What to say of a name that a stand-in does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def refusing(module: str, remedy: str) -> Callable[[str], Any]:
    """A module's __getattr__: AttributeError for a name that is not there, with what to do instead."""

    def missing(name: str) -> Any:
        raise AttributeError(f"{module}.{name} has no counterpart in trnlab: {remedy}")

    return missing
