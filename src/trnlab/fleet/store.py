# SPDX-License-Identifier: Apache-2.0
"""What was compiled and timed for plans, kept in one file for each target and state of the package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trnlab import chips
from trnlab.chips.catalog import Target
from trnlab.files import json_of, write_atomic
from trnlab.sources import TOP, source_digest

# What programs, their times and those of collectives depend on.
_SOURCES = (
    TOP,
    "numerics",
    "chips",
    "isa",
    "graph",
    "fabric",
    "loops",
    "profile",
    "program",
    "lang",
    "sim",
    "kernels",
    "compiler",
    "runtime",
    "porting",
    "fleet",
)


@dataclass
class Store:
    """Costs of programs and times of collectives, by what was asked. file: None where nothing is kept."""

    file: Path | None = None
    programs: MutableMapping[str, Any] = field(default_factory=dict)
    exchange: MutableMapping[str, float] = field(default_factory=dict)
    _saved: int = 0

    def save(self) -> None:
        """Write what was added since; what another process wrote in between is kept."""
        if self.file is None or self._saved == len(self.programs) + len(self.exchange):
            return
        other = _read(self.file)
        for mine, theirs in ((self.programs, other.get("programs", {})), (self.exchange, other.get("exchange", {}))):
            for key, value in theirs.items():
                mine.setdefault(key, value)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.file, json.dumps({"programs": self.programs, "exchange": self.exchange}).encode())
        self._saved = len(self.programs) + len(self.exchange)


def opened(folder: Path | None, target: Target, precision: str) -> Store:
    """The store of a target. folder: of all stores; None for one that is forgotten."""
    if folder is None:
        return Store()
    figures = hashlib.sha256(
        f"{chips.to_toml(target.chip)} {precision} {source_digest(*_SOURCES)}".encode()
    ).hexdigest()
    file = folder / f"{target.name}-{figures[:16]}.json"
    kept = _read(file)
    programs, exchange = dict(kept.get("programs", {})), dict(kept.get("exchange", {}))
    return Store(file, programs, exchange, len(programs) + len(exchange))


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json_of(file.read_bytes())
    except (OSError, ValueError):
        return {}
    parts = found.values() if isinstance(found, dict) else [None]
    return found if all(isinstance(part, dict) for part in parts) else {}
