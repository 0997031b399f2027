# SPDX-License-Identifier: Apache-2.0
"""The record of a verification, and its form as JSON: see docs/verify.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA, VERSION = "trnlab-verify", 1
SAME, ROUNDING, DIFFERS, SKIPPED = "same", "rounding", "differs", "not compared"


@dataclass(frozen=True)
class OpLocation:
    """Where in the user's code an op comes from."""

    file: str = ""
    line: int = 0
    function: str = ""
    text: str = ""
    layer: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "unknown"


@dataclass(frozen=True)
class OpResult:
    """One result of one op in one step (counted from one)."""

    step: int
    order: int  # position among the step's ops
    op: str
    gradient: bool  # of the way back
    place: OpLocation
    shape: tuple[int, ...]
    format: str
    kind: str
    status: str
    ratio: float = 0.0  # the worst element's error in units of its bound
    wrong: int = 0
    index: tuple[int, ...] = ()
    chip: float = 0.0
    reference: float = 0.0
    bound: float = 0.0
    # of the result as a vector, against the reference run, relative; None where that was not computed
    error: float | None = None
    condition: str = ""
    remedy: str = ""
    why: str = ""
    other: OpLocation | None = None  # with --against: where the other script computes it


@dataclass
class Curves:
    """Losses by step: the chip's, the reference's, and those of the reference with rounding's errors thrown in."""

    chip: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    perturbed: list[list[float]] = field(default_factory=list)

    def band(self) -> list[tuple[float, float]]:
        """Least and largest loss that rounding alone gives, at each step: the perturbed ones and as much again."""
        found = []
        for step, value in enumerate(self.reference):
            spread = max((abs(run[step] - value) for run in self.perturbed if step < len(run)), default=0.0)
            room = SAFETY * spread + FLOOR * abs(value)
            found.append((value - room, value + room))
        return found

    def outside(self) -> int | None:
        """The first step (counted from one) whose loss on the chip lies outside of the band."""
        for step, (value, (low, high)) in enumerate(zip(self.chip, self.band()), 1):
            if not (low <= value <= high or (math.isnan(value) and math.isnan(low))):
                return step
        return None


SAFETY, FLOOR = 4.0, 2.0**-20  # of a band: times the largest spread seen, and float32's own sums


@dataclass
class Verdict:
    """All that was found. `first` is what the verification is about; `around` its neighbours in graph order."""

    script: str
    target: str
    precision: str
    reference: str
    steps: int
    against: str = ""
    first: OpResult | None = None
    around: list[OpResult] = field(default_factory=list)
    differing: list[OpResult] = field(default_factory=list)
    results: list[OpResult] = field(default_factory=list)
    skipped: list[OpResult] = field(default_factory=list)
    curves: Curves = field(default_factory=Curves)
    notes: list[str] = field(default_factory=list)
    compared: int = 0
    elements: int = 0
    same_program: bool = True
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether there is no difference beyond rounding."""
        return self.first is None and self.curves.outside() is None

    def add(self, results: Sequence[OpResult]) -> None:
        """Take in the results of ops, in graph order."""
        for result in results:
            if result.status == SKIPPED:
                self.skipped.append(result)
                continue
            self.compared += 1
            self.elements += math.prod(result.shape)
            if result.status == DIFFERS:
                self.differing.append(result)
                self.first = self.first or result
            self.results.append(result)

    def neighbours(self, before: int = 4, after: int = 3) -> list[OpResult]:
        """The results around the first that differs."""
        if self.first is None or self.first not in self.results:
            return []
        at = self.results.index(self.first)
        return self.results[max(0, at - before) : at + after + 1]


def to_json(verdict: Verdict) -> dict[str, Any]:
    """As docs/verify.md says. Numbers that JSON lacks are strings: "nan", "inf", "-inf"."""
    curves = verdict.curves
    record = {
        "schema": SCHEMA,
        "version": VERSION,
        "script": verdict.script,
        "against": verdict.against or None,
        "target": verdict.target,
        "precision": verdict.precision,
        "reference": verdict.reference,
        "steps": verdict.steps,
        "clean": verdict.clean,
        "same_program": verdict.same_program,
        "compared": {"results": verdict.compared, "elements": verdict.elements, "skipped": len(verdict.skipped)},
        "first": asdict(verdict.first) if verdict.first else None,
        "around": [asdict(r) for r in verdict.neighbours()],
        "differing": [asdict(r) for r in verdict.differing],
        "not_compared": [asdict(r) for r in verdict.skipped],
        "worst": worst_by_kind(verdict),
        "loss": {
            "chip": curves.chip,
            "reference": curves.reference,
            "perturbed": curves.perturbed,
            "band": curves.band(),
            "outside_at_step": curves.outside(),
        },
        "notes": verdict.notes,
        "seconds": verdict.seconds,
    }
    return {key: _plain(value) for key, value in record.items()}


def worst_by_kind(verdict: Verdict) -> dict[str, float]:
    """The largest ratio of error to bound among results that did not differ, by kind of op."""
    found: dict[str, float] = {}
    for result in verdict.results:
        if result.status != DIFFERS:
            found[result.kind] = max(found.get(result.kind, 0.0), result.ratio)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
