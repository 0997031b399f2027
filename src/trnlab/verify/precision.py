# SPDX-License-Identifier: Apache-2.0
"""One script in several precisions, side by side: losses, time, memory, which layers suffer, and what to choose.

A mode suffers where its results differ from those of fp32: `error` is the root of the mean square of the difference
over that of the fp32 result; `overflowed` counts numbers that are none any more, `vanished` those that became zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trnlab.documents import PAGE, TERMINAL, Curve, CurveChart, Document, Key, Note, Part, Section, Table
from trnlab.documents.html import sentence
from trnlab.files import json_of
from trnlab.profile import data
from trnlab.profile.pages.pictures import number as _number
from trnlab.units import format_bytes, format_time

REFERENCE = "fp32"
ACCEPTED = 0.05  # of what fp32 learned: by how much a mode's losses may differ, on average over the last quarter
SHOWN = 5  # layers
BLOCKS = "▁▂▃▄▅▆▇█"
COLOURS = ("var(--reference)", "var(--accent)", "var(--tensor)", "var(--vector)", "var(--scalar)")


@dataclass(frozen=True)
class LayerPrecision:
    """How far the worst product of a layer, forward or on the way back, is from fp32's in the first step.

    ended: share of its FP8 operands that lie at the end of the format, in percent.
    """

    name: str
    gradient: bool
    error: float
    overflowed: int
    vanished: int
    ended: float


@dataclass
class Mode:
    """One run."""

    name: str
    losses: list[float] = field(default_factory=list)
    step_s: float | None = None  # on the chip
    memory: int | None = None  # most bytes in use
    layers: list[LayerPrecision] = field(default_factory=list)
    failed: str = ""  # what it said when it could not be run

    def gap(self, reference: Mode) -> float:
        """Mean difference of the losses in the last quarter of the steps; NaN where a loss is no number."""
        pairs = list(zip(self.losses, reference.losses))
        last = pairs[-max(1, len(pairs) // 4) :]
        return sum(abs(a - b) for a, b in last) / len(last) if last else math.nan


@dataclass
class Study:
    """All modes, fp32 among them."""

    script: str
    target: str
    steps: int
    modes: list[Mode]

    @property
    def reference(self) -> Mode:
        """The run in fp32."""
        return next(m for m in self.modes if m.name == REFERENCE)

    def recommendation(self) -> tuple[str, str]:
        """The mode to choose, and why."""
        reference = self.reference
        learned = abs(reference.losses[0] - reference.losses[-1]) if reference.losses else 0.0
        good = [m for m in self.modes if not m.failed and m.gap(reference) <= ACCEPTED * learned and m.step_s]
        if not good or not learned:
            return REFERENCE, f"no narrower mode stays near its losses in {self.steps} steps"
        best = min(good, key=lambda m: (m.step_s or math.inf, m.memory or 0))
        if best is reference:
            return REFERENCE, "no mode that stays near its losses is faster"
        rest = [m.name for m in self.modes if m not in good and not m.failed]
        left = f"; {', '.join(rest)} left its losses" if rest else ""
        faster = (reference.step_s or 0.0) / (best.step_s or 1.0)
        return best.name, (
            f"{faster:.2f} times as fast as fp32, the fastest whose losses stay within {ACCEPTED:.0%} of what fp32 "
            f"learned in {self.steps} steps ({best.gap(reference) / learned:.2%}){left}"
        )


def read_mode(name: str, folder: Path, reference: Path | None) -> Mode:
    """What a run left; its layers against those of the reference's folder."""
    summary = json_of((folder / data.FILE).read_bytes())
    found = json_of((folder / "layers.json").read_bytes())
    memory = summary.get("memory") or {}
    losses = [float(x) for x in found["losses"]]
    mode = Mode(name, losses, summary.get("step_time_s"), memory.get("peak_bytes"))
    if reference is not None:
        mode.layers = _layers(found["results"], folder, reference)
    return mode


def _layers(results: list[dict[str, Any]], folder: Path, reference: Path) -> list[LayerPrecision]:
    """The worst product of each layer and direction, those that suffer most first."""
    worst: dict[tuple[str, bool], LayerPrecision] = {}
    with np.load(folder / "layers.npz") as own, np.load(reference / "layers.npz") as exact:
        for entry in results:
            if entry["key"] not in exact or exact[entry["key"]].shape != own[entry["key"]].shape:
                continue
            layer = _compared(entry, own[entry["key"]], exact[entry["key"]])
            place = layer.name, layer.gradient
            if place not in worst or layer.error > worst[place].error:
                worst[place] = layer
    return sorted(worst.values(), key=lambda layer: (-layer.overflowed, -layer.error))


def _compared(entry: dict[str, Any], own: Any, exact: Any) -> LayerPrecision:
    number, finite = np.isfinite(own), np.isfinite(exact)
    both = number & finite
    difference = own[both].astype(np.float64) - exact[both]
    scale = float(np.sqrt(np.mean(np.square(exact[both], dtype=np.float64)))) if both.any() else 0.0
    error = float(np.sqrt(np.mean(difference**2))) / scale if scale else 0.0
    ended = 100 * entry["ended"] / entry["quantized"] if entry["quantized"] else 0.0
    vanished = int(((own == 0) & (exact != 0) & both).sum())
    return LayerPrecision(entry["layer"], entry["gradient"], error, int((finite & ~number).sum()), vanished, ended)


# -- for people ----------------------------------------------------------------------------------------------------


def sparkline(losses: list[float], low: float, high: float) -> str:
    """A curve in a line of text; `!` where a loss is no number."""
    span = (high - low) or 1.0
    return "".join(BLOCKS[min(7, max(0, int((x - low) / span * 7.999)))] if math.isfinite(x) else "!" for x in losses)


def document(study: Study) -> Document:
    """The study for the terminal, as a page and as JSON."""
    chosen, why = study.recommendation()
    ran = [m for m in study.modes if m.losses]
    curves = [Curve(m.name, c, [x if math.isfinite(x) else None for x in m.losses]) for m, c in zip(ran, COLOURS)]
    sections: list[Part] = [
        Note(f"{study.script} on {study.target}, {study.steps} steps in each mode", on=TERMINAL),
        Section(
            heading="Loss",
            parts=[
                CurveChart(curves, "loss by step"),
                Key([(c.name, c.colour, _number(c.values[-1])) for c in curves]),
            ],
            on=PAGE,
        ),
        Section(parts=[_modes(study)], heading="Side by side"),
        Section(parts=list(_suffering(study)), heading="Layers that suffer first"),
        Section(parts=[Note(f"take  {chosen}: {why}")], on=TERMINAL),
    ]
    return Document(
        chosen, sections, lede=sentence(why), name=f"precision {study.script}", record=lambda: to_json(study)
    )


def _modes(study: Study) -> Table:
    """What each mode came to; a curve of its losses in blocks."""
    numbers = [x for m in study.modes for x in m.losses if math.isfinite(x)] or [0.0]
    every = max(1, -(-max(len(m.losses) for m in study.modes) // 40))
    rows: list[tuple[str, ...]] = []
    for m in study.modes:
        if m.failed:
            rows.append((m.name, m.failed))
            continue
        curve = sparkline(m.losses[::every], min(numbers), max(numbers))
        ends = f"{_number(m.losses[0])} -> {_number(m.losses[-1])}" if m.losses else "none"
        gap = "" if m is study.reference else _number(m.gap(study.reference))
        step = format_time(m.step_s * 1e12) if m.step_s else "?"
        rows.append((m.name, f"{curve} {ends}", gap, step, format_bytes(m.memory) if m.memory else "?"))
    return Table(rows, ("", "loss", "gap to fp32", "a step", "memory"), (2, 3, 4))


def _suffering(study: Study) -> Iterator[Section]:
    for m in study.modes:
        if m.layers:
            title = f"{m.name}: layers that suffer first (error of products in the first step, over fp32's)"
            rows = [_layer(layer) for layer in m.layers[: 2 * SHOWN]]
            tables = [Table(rows[:SHOWN], numbers=[2], on=TERMINAL), Table(rows, numbers=[2], on=PAGE)]
            yield Section(title, tables)


def _layer(layer: LayerPrecision) -> tuple[str, ...]:
    more = [f"{layer.overflowed} overflowed"] if layer.overflowed else []
    more += [f"{layer.vanished} became zero"] if layer.vanished else []
    more += [f"{layer.ended:.2g}% of its operands at the format's end"] if layer.ended else []
    return layer.name, "gradient" if layer.gradient else "forward", f"{layer.error:.2e}", ", ".join(more)


def to_json(study: Study) -> dict[str, Any]:
    """Everything."""
    chosen, why = study.recommendation()
    modes = [{**asdict(m), "gap": m.gap(study.reference)} for m in study.modes]
    for mode in modes:
        mode["losses"] = [x if math.isfinite(x) else None for x in mode["losses"]]
        mode["gap"] = mode["gap"] if math.isfinite(mode["gap"]) else None
    return {
        "schema": "trnlab.precision",
        "version": 1,
        "script": study.script,
        "target": study.target,
        "steps": study.steps,
        "modes": modes,
        "recommendation": {"mode": chosen, "reason": why},
    }
