# SPDX-License-Identifier: Apache-2.0
"""Predictions of the kernels recorded by hand as they came out last, as data of the package: `docs/validation.md` is
made of them. `trnlab validate --record` writes them to `validation/data/by_hand.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from trnlab.files import write_atomic
from trnlab.validation.anchors import load
from trnlab.validation.compare import Result
from trnlab.validation.sources.versions import MODEL, version

PARTS = (*MODEL, "validation/kernels")  # what these predictions depend on


@dataclass(frozen=True, slots=True)
class ByHand:
    """All results, when they were made (a date) and by which version of the model."""

    results: tuple[Result, ...]
    made: str
    model: str


def recorded(path: Path | None = None) -> ByHand:
    """What `record` wrote last, for anchors that are still there."""
    found = json.loads((data_file() if path is None else path).read_text(encoding="utf-8"))
    rows = {(name, quantity): predicted for name, quantity, predicted in found["rows"]}
    results = [
        Result(m, anchor, rows[m.name, anchor.quantity])
        for m in load()
        for anchor in m.anchors
        if (m.name, anchor.quantity) in rows
    ]
    return ByHand(tuple(results), found["made"], found["model"])


def record(results: Sequence[Result], path: Path | None = None) -> None:
    """Keep the results of all measurements."""
    rows = [json.dumps([r.measurement.name, r.anchor.quantity, r.predicted]) for r in results]
    head = {"made": datetime.now(UTC).date().isoformat(), "model": version(PARTS)}
    text = json.dumps(head)[:-1] + ', "rows": [\n' + ",\n".join(rows) + "\n]}\n"
    write_atomic(data_file() if path is None else path, text.encode())


def data_file() -> Path:
    """Where the package keeps them."""
    return Path(str(files("trnlab.validation").joinpath("data", "by_hand.json")))
