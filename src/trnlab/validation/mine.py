# SPDX-License-Identifier: Apache-2.0
"""A user's own measured training runs: how far the model is off for them, and what later plans' bands are made of.

[[run]]
name = "our 8B, March"
model = "llama3-8b"            # a name, or a config.json
target = "trn2.48xlarge"
instances = 4
batch = 1024                   # sequences of a step
sequence = 8192                # tokens of each; left out: the model's own
layout = "tp=8,pp=1,mb=1"      # what is known of it, as `trnlab plan --layout` has it
step_s = 12.3                  # measured
release = "2.27"               # of the vendor's SDK; library = "axlearn" under JAX
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trnlab.chips.catalog import TARGETS
from trnlab.errors import UsageError
from trnlab.fleet.comparison.contenders import PlanAccuracy
from trnlab.fleet.planning.question import FORMS
from trnlab.stacks import LIBRARIES, NEWEST, OWN
from trnlab.storage.content import ContentStore
from trnlab.validation import planned
from trnlab.validation.planned import PlannedRow, step_of

FOLDER, FILE = "validation", "mine.json"  # in the cache
MOST = 1e12  # of any number in a file
NEEDED: dict[str, type] = {"model": str, "target": str, "instances": int, "batch": int, "step_s": float}
FURTHER: dict[str, tuple[type, Any]] = {
    "name": (str, ""),
    "sequence": (int, 0),
    "layout": (str, ""),
    "precision": (str, "bf16"),
    "release": (str, NEWEST),
    "library": (str, LIBRARIES[0]),
}


def read(file: Path) -> list[PlannedRow]:
    """The runs of a file. Raises UsageError (TRN588) for what cannot be read, or lacks something."""
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8")).get("run", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _unreadable(file, str(error)) from error
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise _unreadable(file, "no [[run]]")
    return [_row(file, number, entry) for number, entry in enumerate(entries, 1)]


def _row(file: Path, number: int, entry: dict[str, Any]) -> PlannedRow:
    kinds = NEEDED | {name: kind for name, (kind, _) in FURTHER.items()}
    for name in (*NEEDED, *entry):
        kind = kinds.get(name)
        if kind is None:
            raise _unreadable(file, f"run {number} has {name!r}, which is nothing of a run")
        value = entry.get(name)
        fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
        if not fits or (isinstance(value, int | float) and not 0 < value < MOST):
            raise _unreadable(file, f"run {number}: {name} = {value!r}")
    known = {name: entry.get(name, default) for name, (_, default) in FURTHER.items()} | entry
    if known["target"] not in TARGETS or known["precision"] not in FORMS:
        raise _unreadable(file, f"run {number}: {known['target']} in {known['precision']}")
    rate = known["batch"] / known.pop("step_s")
    title = known["name"] or f"{known['model']} on {known['instances']} {known['target']}"
    row = PlannedRow(**known | {"name": title}, measured=rate, split="yours")
    row.stack  # noqa: B018  (says at once that there is no such release or library)
    return row


def compared(rows: Sequence[PlannedRow], folder: Path | None, said: Callable[[str], None]) -> list[PlannedRow]:
    """The runs with their planned steps under both stacks. folder: of costs that are kept. Raises UsageError as a
    plan does."""
    found = []
    for row in rows:
        said(f"{row.name}: planned as {row.stack.title} has it, and by trnlab's compiler")
        found.append(replace(row, step_s=step_of(row, OWN, folder), vendor_s=step_of(row, row.stack, folder)))
    return found


def keep(rows: Sequence[PlannedRow], folder: Path) -> None:
    """Keep runs for the bands of later plans, in the place of those that were kept before."""
    ContentStore(folder).write_record(folder / FILE, {"runs": [asdict(row) for row in rows]})


def kept(folder: Path | None) -> list[PlannedRow]:
    """The runs that were kept last; none where there are none."""
    if folder is None:
        return []
    found = ContentStore(folder).record(folder / FILE) or {}
    try:
        return [PlannedRow(**entry) for entry in found.get("runs", ())]
    except TypeError:  # of another version
        return []


def held(target: str, precision: str, stack: str, cache: Path | None) -> PlanAccuracy:
    """How far plans for an instance type are off under OURS or VENDOR, in the runs that a cache keeps where there are
    enough of them, else in published ones (`planned.held`). cache: None where nothing is kept."""
    return planned.held(target, precision, stack, kept(None if cache is None else cache / FOLDER))


def _unreadable(file: Path, got: str) -> UsageError:
    return UsageError(
        f"{str(file)!r} cannot be read as measured runs",
        code="TRN588",
        limit=f"[[run]] with {', '.join(NEEDED)}, and {', '.join(FURTHER)} where they are known",
        got=got,
        remedy="see docs/stacks.md for an example",
    )
