# SPDX-License-Identifier: Apache-2.0
"""Published inference beside the same forward passes as trnlab compiles them, under both stacks.

`data/inference/published.toml` holds the rows and what came out; `tools/inference_rows.py` makes it anew.
Convolutional networks (S00123, S00125, S00153) have none: the planner's graphs of them are of training, whose norms
are of the batch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from trnlab import chips
from trnlab.documents import Section
from trnlab.fleet.comparison.contenders import PlanAccuracy
from trnlab.fleet.costs.timed import TimedPrograms
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.layers.training import TrainingLayers
from trnlab.fleet.models.configurations import model
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.serving.costs import ServingCosts
from trnlab.fleet.serving.layers import ServingProgram
from trnlab.graph.ir import Graph
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.runtime.session import Session
from trnlab.stacks import NAMES, NEWEST, OURS, VENDOR, Stack, parse
from trnlab.units import PS_PER_S
from trnlab.validation import planned

GIVEN = "given"  # what names of inputs begin with that are no weights
FORM = "float32"  # of encoders' weights and activations; their products are rounded to bfloat16


@dataclass(frozen=True, slots=True)
class InferenceRow:
    """A published forward pass: `batch` sequences or images of `places` tokens by an encoder, or a token of each of
    `batch` sequences by a decoder with a cache of `places`."""

    name: str
    model: str
    target: str
    batch: int
    places: int
    measured: float  # inferences or tokens a second of all copies
    copies: int = 1
    ranks: int = 1  # that share a copy
    layers: int = 0  # of the model, where it has fewer than that of its name
    release: str = NEWEST
    split: str = "check"
    # step_s, vendor_s: by trnlab's compiler and by the vendor's stack of the row's release
    step_s: float = 0.0
    vendor_s: float = 0.0

    @property
    def stack(self) -> Stack:
        """The vendor's that the row was published with."""
        return parse(f"{VENDOR},release={self.release}")

    @property
    def known(self) -> Model:
        """The model."""
        found = model(self.model)
        if not self.layers:
            return found
        ((_, block),) = found.stacks
        return replace(found, stacks=((self.layers, block),), types=0)

    @property
    def decodes(self) -> bool:
        """Whether it generates."""
        return any(block.attention.causal for _, block in self.known.stacks)

    def rate(self, stack: str) -> float:
        """What comes out a second. stack: OURS or VENDOR."""
        return self.batch * self.copies / (self.step_s if stack == OURS else self.vendor_s)

    def error(self, stack: str) -> float:
        """Error of the rate, relative to what was measured; positive when it is too fast."""
        return self.rate(stack) / self.measured - 1


@cache
def load() -> tuple[InferenceRow, ...]:
    """All rows."""
    text = files(__package__).joinpath("data", "inference", "published.toml").read_text(encoding="utf-8")
    return tuple(InferenceRow(**entry) for entry in tomllib.loads(text)["row"])


def step_of(row: InferenceRow, stack: Stack, folder: Path | None = None) -> float:
    """Seconds of one forward pass or decoding step under a stack. folder: of costs that are kept."""
    session = Session(chips.target(row.target), stack=stack)  # bf16, of products
    known = row.known
    if row.decodes:
        share = ServingProgram(row.batch, row.places, row.ranks)
        return ServingCosts(session, folder).of("decode", known, share).seconds
    graph = forward(known, row.batch, row.places)
    made = TimedPrograms(session).executable(graph, "forward", frozen=weights_of(graph), more=stack.inference_options)
    return float(made.total_ps / PS_PER_S)


def forward(known: Model, batch: int, length: int, form: str = FORM) -> Graph:
    """An encoder's forward pass up to what leaves its last block, [batch, length, hidden]."""
    layers = TrainingLayers(f"{known.name}_forward", ShardSpec(batch, length, form=form))
    x = known.embedding(layers)
    blocks = [block for count, block in known.stacks for _ in range(count)]
    for i, block in enumerate(blocks):
        x = block.forward(layers, f"block_{i}", x)
    layers.b.output(x)
    graph = layers.b.build()
    remove_dead_ops(graph)
    return graph


def weights_of(graph: Graph) -> list[int]:
    """The inputs of a forward pass, by number, that are the same in each run."""
    return [i for i, value in enumerate(graph.inputs) if not value.name.startswith(GIVEN)]


def held(decodes: bool, stack: str) -> PlanAccuracy:
    """How far encoders' forward passes, or decoders' steps, are off under OURS or VENDOR."""
    rows = [row for row in load() if row.decodes == decodes]
    what = "decoding steps" if decodes else "forward passes of encoders"
    return PlanAccuracy(tuple(row.error(stack) for row in rows), f"{len(rows)} published {what} of Inferentia2")


def sections(rows: Sequence[InferenceRow]) -> Iterator[Section]:
    """Rates as published, and as programs of both stacks have them."""
    say = "Encoders on a core each, decoders on all ranks of an instance; the vendor's stack in the run's release."
    counted = "run, inferences or tokens a second"
    yield from planned.sections(rows, "inference, as published, and as compiled", counted, say)


def to_json(rows: Sequence[InferenceRow]) -> list[dict[str, Any]]:
    """Every row, rates a second."""
    return [
        {
            "run": row.name,
            "target": row.target,
            "ranks": row.ranks,
            "batch": row.batch,
            "places": row.places,
            "split": row.split,
            "release": row.release,
            "measured": row.measured,
            "predicted": {stack: row.rate(stack) for stack in NAMES},
            "error": {stack: row.error(stack) for stack in NAMES},
        }
        for row in rows
    ]
