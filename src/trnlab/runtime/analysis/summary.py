# SPDX-License-Identifier: Apache-2.0
"""Writes `summary.json`: what a run was and what it came to. Its schema is in `docs/summary.md`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_json(summary: Mapping[str, Any]) -> bytes:
    """As the file holds it. NaN and infinity, which JSON does not have, are written as null."""
    return (json.dumps(_finite(dict(summary)), indent=2, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
