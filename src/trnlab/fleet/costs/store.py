# SPDX-License-Identifier: Apache-2.0
"""What was compiled and timed for plans, kept in one file for each target and state of the package."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trnlab import chips
from trnlab.chips.catalog import Target
from trnlab.sources import TOP, source_digest
from trnlab.stacks import OWN, Stack
from trnlab.storage.content import ContentStore

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
    "estimate",
    "fleet",
)


@dataclass
class CostStore:
    """Costs of programs and times of collectives, by what was asked. file: None where nothing is kept."""

    file: Path | None = None
    programs: MutableMapping[str, Any] = field(default_factory=dict)
    exchange: MutableMapping[str, list[list[float]]] = field(default_factory=dict)
    _saved: int = 0

    def save(self) -> None:
        """Write what was added since; what another process wrote in between is kept.

        A folder that cannot be written to keeps nothing.
        """
        if self.file is None or self._saved == len(self.programs) + len(self.exchange):
            return
        kept = ContentStore(self.file.parent)
        other = kept.record(self.file) or {}
        for mine, theirs in ((self.programs, other.get("programs", {})), (self.exchange, other.get("exchange", {}))):
            for key, value in theirs.items():
                mine.setdefault(key, value)
        kept.write_record(self.file, {"programs": dict(self.programs), "exchange": dict(self.exchange)})
        self._saved = len(self.programs) + len(self.exchange)


def _decisive(stack: Stack) -> tuple[dict[str, str], str]:
    """What of a stack the program of a graph depends on; which graphs there are stands in the keys of programs."""
    return stack.compile_options(), stack.products


def opened(folder: Path | None, target: Target, precision: str, stack: Stack = OWN) -> CostStore:
    """The store of a target under a stack; stacks whose programs are alike have one. folder: of all stores; None for
    one that is forgotten."""
    if folder is None:
        return CostStore()
    store = ContentStore(folder)
    made_from = [chips.to_toml(target.chip), precision, repr(_decisive(stack)), source_digest(*_SOURCES)]
    file = store.file(made_from, prefix=f"{target.name}-")
    kept = store.record(file) or {}
    programs, exchange = dict(kept.get("programs", {})), dict(kept.get("exchange", {}))
    return CostStore(file, programs, exchange, len(programs) + len(exchange))
