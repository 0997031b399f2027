# SPDX-License-Identifier: Apache-2.0
"""Published step times on GPUs against the roofline that Trainium is compared with: checks alone."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from statistics import mean
from typing import Any

from trnlab.documents import Note, Part, Section, Table
from trnlab.documents.html import first_up
from trnlab.fleet.gpus import catalogue
from trnlab.fleet.gpus.costs import Software, TrainingWork
from trnlab.fleet.gpus.roofline import Roofline, step
from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.configurations import from_config
from trnlab.fleet.models.configurations import model as catalogued
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.search.layout import Layout

_TITLE = "steps on GPUs, as published, and the roofline that Trainium is compared with (no figure was fitted)"


@dataclass(frozen=True)
class GpuRow:
    """One published step."""

    table: str
    name: str
    job: TrainingWork
    measured: float  # seconds
    independent: bool  # whether no figure of the roofline comes from somebody who compared with this row
    source: str

    @cached_property
    def roofline(self) -> Roofline:
        """What the roofline makes of it."""
        return step(self.job)

    @property
    def predicted(self) -> float:
        """Seconds."""
        return self.roofline.total

    @property
    def error(self) -> float:
        """Relative to what was measured; positive when the prediction is too slow."""
        return self.predicted / self.measured - 1


def load() -> tuple[GpuRow, ...]:
    """All published rows."""
    text = files(__package__).joinpath("data", "gpus", "published.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    own = {name: from_config(fields, name) for name, fields in data["models"].items()}
    found = [_row(table, row) for table in data["table"] for row in table.get("rows", ())]
    return tuple(found + [_run(table, run, own) for table in data["table"] for run in table.get("runs", ())])


def _row(table: dict[str, Any], row: list[Any]) -> GpuRow:
    name, hidden, layers, heads, t, p, v, d, batch, microbatch, recompute, parallel, measured = row
    instance = replace(
        catalogue.instance(table["instance"]), scaleout=table["scaleout_gb_per_s"] * 1e9, provider=table["name"]
    )
    layout = Layout(t, p, d, microbatch, v, zero=int(d > 1), recompute=recompute)
    software = Software(fused=False, overlap=False, sequence_parallel=parallel, network=table["network"])
    model = _gpt(name, hidden, layers, heads, table["vocabulary"], table["sequence"])
    job = TrainingWork(model, layout, instance, batch, table["sequence"], "bf16", software)
    return GpuRow(table["name"], name, job, measured, table["independent"], table["source"])


def _gpt(name: str, hidden: int, layers: int, heads: int, vocabulary: int, sequence: int) -> Model:
    size = hidden // heads
    attention = Attention(heads, heads, size, size, rope=False, bias="all")
    block = Block(hidden, attention, Dense(4 * hidden, gated=False, bias=True), "layer")
    return Model(name, hidden, ((layers, block),), sequence, vocabulary, sequence, tied=True)


def _run(table: dict[str, Any], run: list[Any], own: dict[str, Model]) -> GpuRow:
    name, known, instance, form, ranks, t, p, v, e, batch, microbatch, sequence, rate = run
    here = catalogue.instance(instance)
    here = replace(here, scaleout=here.count * table["scaleout_gb_per_s_each"] * 1e9)
    layout = Layout(t, p, ranks // (t * p), microbatch, v, zero=1, expert=e)
    trained = own[known] if known in own else catalogued(known)
    job = TrainingWork(trained, layout, here, batch, sequence, form, Software(network=table["network"]))
    return GpuRow(table["name"], name, job, batch * sequence / ranks / rate, table["independent"], table["source"])


def to_json(rows: Sequence[GpuRow]) -> list[dict[str, Any]]:
    """Every row, times in seconds."""
    return [
        {
            "run": f"{r.table} {r.name}",
            "layout": str(r.job.layout),
            "recompute": r.job.layout.recompute,
            "accelerators": r.job.accelerators,
            "measured": r.measured,
            "predicted": r.predicted,
            "error": r.error,
            "mfu": r.roofline.mfu,
            "used_for": "check",
            "independent": r.independent,
            "source": r.source,
        }
        for r in rows
    ]


def sections(rows: Sequence[GpuRow]) -> Iterator[Section]:
    """Every row with its error, and mean and worst of each table; nothing where there is none."""
    tables = [_section([r for r in rows if r.table == name]) for name in dict.fromkeys(r.table for r in rows)]
    if tables:
        yield Section(_TITLE, tables, heading="Steps on GPUs", say=f"{first_up(_TITLE)}.")


def _section(rows: Sequence[GpuRow]) -> Section:
    """The rows of one published table."""
    lines = [_line(r) for r in rows]
    errors = [abs(r.error) for r in rows]
    checks = f"{len(rows)} of {len(rows)} are checks: mean {mean(errors):.1%}, worst {max(errors):.1%}"
    parts: list[Part] = [Table(lines, numbers=(1, 2, 3)), Note(checks)]
    if not rows[0].independent:
        parts.append(Note("which costs count was settled with this table in view, and so were Calculon's curves"))
    return Section(f"{rows[0].table}: {rows[0].source}", parts)


def _line(r: GpuRow) -> tuple[str, ...]:
    how = f"{r.job.accelerators} accelerators, {r.job.layout}, recomputes {r.job.layout.recompute}"
    return r.name, f"{r.measured:.5g} s", f"{r.predicted:.5g} s", f"{r.error:+.1%}", how
