# SPDX-License-Identifier: Apache-2.0
"""Predictions of the kernels in `catalogue` as they were recorded last, as data of the package.

The sources belong to others, and timing all of them takes minutes. `trnlab validate --sources DIR --record` writes
what came out to `validation/data/results.json`: one row a kernel, with the date and the version of the model that
made it. `trnlab validate` shows the rows without the sources, and `docs/validation.md` is made of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from trnlab.files import write_atomic
from trnlab.units import PS_PER_US
from trnlab.validation.sources.catalogue import SourceKernel, load
from trnlab.validation.sources.observed import Quantity

SCHEMA, VERSION = "trnlab.validation", 1


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A kernel with what came out: picoseconds, or why it was refused."""

    kernel: SourceKernel
    predicted: float | None
    refusal: str = ""
    instructions: int = 0
    seconds: float = 0.0  # what recording and timing took
    # measured and predicted, by name, of kernels that have a profile; see `observed`
    quantities: tuple[Quantity, ...] = ()

    @property
    def error(self) -> float | None:
        """Relative to what was measured; positive when the prediction is too long; None for a refusal."""
        return None if self.predicted is None else self.predicted / self.kernel.measured - 1


@dataclass(frozen=True, slots=True)
class KernelRow:
    """What came out for one kernel: when (a date), by which version of the model, and under which policy.

    alternatives: names of policies that the evidence does not exclude either, and the time under each in picoseconds;
    empty where they were not asked for.
    """

    timed: TimedKernel
    made: str
    model: str
    policy: str
    alternatives: tuple[tuple[str, int], ...] = ()

    @property
    def band(self) -> tuple[float, float] | None:
        """The shortest and the longest time in picoseconds, the prediction among them; None without alternatives."""
        if self.timed.predicted is None or not self.alternatives:
            return None
        times = [self.timed.predicted, *(ps for _, ps in self.alternatives)]
        return min(times), max(times)


def recorded(kernels: Iterable[SourceKernel] | None = None, path: Path | None = None) -> list[KernelRow]:
    """What was recorded last, of all kernels of the catalogue or of some, in their order."""
    text = (data_file() if path is None else path).read_text(encoding="utf-8")
    rows = {row["id"]: row for row in json.loads(text)["rows"]}
    wanted = load() if kernels is None else kernels
    return [from_plain(kernel, rows[kernel.id]) for kernel in wanted if kernel.id in rows]


def record(new: Sequence[KernelRow], path: Path | None = None) -> None:
    """Put rows into the data of the package, or of `path`; rows of other kernels stay as they are."""
    target = data_file() if path is None else path
    rows = {row.timed.kernel.id: row for row in recorded(path=target)} if target.exists() else {}
    rows |= {row.timed.kernel.id: row for row in new}
    ordered = [json.dumps(to_plain(rows[kernel.id])) for kernel in load() if kernel.id in rows]
    text = json.dumps({"schema": SCHEMA, "version": VERSION})[:-1] + ', "rows": [\n' + ",\n".join(ordered) + "\n]}\n"
    write_atomic(target, text.encode())


def data_file() -> Path:
    """Where the package keeps the rows."""
    return Path(str(files("trnlab.validation").joinpath("data", "results.json")))


def to_plain(row: KernelRow) -> dict[str, Any]:
    """A row as JSON data."""
    t = row.timed
    return {
        "id": t.kernel.id,
        "measured_us": t.kernel.measured / PS_PER_US,
        "predicted_us": None if t.predicted is None else t.predicted / PS_PER_US,
        "error": None if t.error is None else round(t.error, 4),
        "refusal": t.refusal,
        "instructions": t.instructions,
        "seconds": round(t.seconds, 1),
        "made": row.made,
        "model": row.model,
        "policy": row.policy,
        "alternatives_us": [[name, ps / PS_PER_US] for name, ps in row.alternatives],
        "quantities": [[q.name, q.measured, q.predicted, q.unit] for q in t.quantities],
    }


def from_plain(kernel: SourceKernel, row: Mapping[str, Any]) -> KernelRow:
    """What `to_plain` made of a row of `kernel`. Raises KeyError and TypeError for anything else."""
    predicted = None if row["predicted_us"] is None else round(row["predicted_us"] * PS_PER_US)
    quantities = tuple(Quantity(*q) for q in row["quantities"])
    timed = TimedKernel(kernel, predicted, row["refusal"], row["instructions"], row["seconds"], quantities)
    others = tuple((name, round(us * PS_PER_US)) for name, us in row.get("alternatives_us", ()))
    return KernelRow(timed, row["made"], row["model"], row["policy"], others)
