# SPDX-License-Identifier: Apache-2.0
"""Training steps of many layouts at once: seconds by cause and bytes by class, from compiled stages and the fabric.

N in shapes counts layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from trnlab.estimate.job import room
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.arrays import Bools, Floats, Ints
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.costs.programs import MicrobatchCost, OfParts, Programs
from trnlab.fleet.costs.updates import rounding, sharded
from trnlab.fleet.layers.shares import AGAIN, ONCE, ShardSpec
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.search.communication import hidden
from trnlab.fleet.search.layout import NAMED, RECOMPUTE, Layout, Layouts, columns_of, divided, layers_of
from trnlab.fleet.search.layout_terms import LayoutTerms, terms_of
from trnlab.fleet.search.overlap import (
    BEHIND_BACKWARD,
    BEHIND_FORWARD,
    MicrobatchPasses,
    shares_layers,
    streamed,
)
from trnlab.fleet.search.pipeline_times import PipelineTimes, held_of, parameters_of
from trnlab.fleet.search.shard_costs import NOTHING, PartsOf, ShardCosts, ShardKey, Training, shard_keys_of
from trnlab.precision import MODES
from trnlab.runtime.analysis.performance import MILLION
from trnlab.stacks import KERNEL, SOFTMAX, WRITTEN

CAUSES = (
    "compute",
    "recompute",
    "tensor parallel",
    "context parallel",
    "experts",
    "pipeline",
    "gradients",
    "weights",
    "optimizer",
    "lookups",
    "rows",
    "host",
)
CLASSES = ("weights", "gradients", "optimizer", "activations", "working", "tables")


@dataclass(frozen=True)
class PlannedStep:
    """A step of all ranks."""

    layout: Layout
    total: float
    seconds: dict[str, float]  # by cause, which add up to `total`
    bytes: dict[str, int]  # by class, of the rank with most
    room: int
    flops: float  # of the model's products, all ranks together
    peak: float  # FLOP/s of all chips
    tokens: int
    exact: bool = True  # whether its stages were compiled as they are, and not reckoned from others

    @property
    def fits(self) -> bool:
        """Whether every rank has room for its part."""
        return sum(self.bytes.values()) <= self.room

    @property
    def mfu(self) -> float:
        """Share of what the chips' matrix engines could do."""
        return self.flops / (self.total * self.peak)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all ranks."""
        return self.tokens / self.total


@dataclass(frozen=True)
class PlannedSteps:
    """Steps of N layouts; each array [N]."""

    layouts: Layouts
    seconds: Mapping[str, Floats]
    bytes: Mapping[str, Floats]
    flops: Floats
    exact: Bools
    room: int
    peak: float
    tokens: int

    def __len__(self) -> int:
        return len(self.layouts)

    @property
    def total(self) -> Floats:
        """Seconds of the whole step."""
        return np.asarray(np.sum([self.seconds[cause] for cause in CAUSES], axis=0))

    @property
    def memory(self) -> Floats:
        """Bytes of the rank with most."""
        return np.asarray(np.sum([self.bytes[name] for name in CLASSES], axis=0))

    def take(self, which: Bools | Ints) -> PlannedSteps:
        """Some of them."""
        seconds = {name: column[which] for name, column in self.seconds.items()}
        sizes = {name: column[which] for name, column in self.bytes.items()}
        return PlannedSteps(
            self.layouts.take(which),
            seconds,
            sizes,
            self.flops[which],
            self.exact[which],
            self.room,
            self.peak,
            self.tokens,
        )

    def replaced(self, i: int, step: PlannedStep) -> PlannedSteps:
        """With other figures of one layout, from programs of its own."""
        seconds, sizes = _put(self.seconds, i, step.seconds), _put(self.bytes, i, step.bytes)
        exact = self.exact.copy()
        exact[i] = True
        return replace(self, seconds=seconds, bytes=sizes, exact=exact)

    def longer(self, rows: Bools, by: Mapping[str, float]) -> PlannedSteps:
        """With so many seconds more of each cause in some rows, never less than none."""
        added = {
            name: np.where(rows, np.maximum(column + by[name], 0.0), column) for name, column in self.seconds.items()
        }
        return replace(self, seconds=added)

    def step(self, i: int) -> PlannedStep:
        """One of them."""
        seconds = {name: float(self.seconds[name][i]) for name in CAUSES}
        sizes = {name: int(self.bytes[name][i]) for name in CLASSES}
        return PlannedStep(
            self.layouts.layout(i),
            sum(seconds.values()),
            seconds,
            sizes,
            self.room,
            float(self.flops[i]),
            self.peak,
            self.tokens,
            bool(self.exact[i]),
        )


def _put(columns: Mapping[str, Floats], i: int, values: Mapping[str, float]) -> dict[str, Floats]:
    found = {name: column.copy() for name, column in columns.items()}
    for name, column in found.items():
        column[i] = values[name]
    return found


@dataclass
class Planner:
    """Steps of trainings on a cluster, from the same programs and collectives."""

    cluster: Cluster
    programs: Programs
    exchange: Exchange
    # attention, network: of the stages, see `ShardSpec`
    attention: str = KERNEL
    network: str = "kept"
    _parts: dict[tuple[str, ShardSpec], ShardCosts] = field(default_factory=dict)
    _layers: dict[tuple[str, ShardSpec], ShardCosts] = field(default_factory=dict)

    def step(self, training: Training, layout: Layout) -> PlannedStep:
        """The step of a layout that has no obstacle, from its own programs."""
        layouts = columns_of([layout])
        parts = {piece: self.parts(training, piece) for piece in shard_keys_of(layouts)[0]}
        return self.steps(training, layouts, parts).step(0)

    @property
    def _attention(self) -> str:
        """How attention is computed in stages where nothing is made again."""
        return WRITTEN if self.programs.session.stack.attention == WRITTEN else self.attention

    def spec_of(self, training: Training, shard: ShardKey) -> ShardSpec:
        """What a rank of such groups has of a layer."""
        again = RECOMPUTE[shard.again]
        stack = self.programs.session.stack
        said = NAMED["attention"][shard.attention]
        attention = self._attention if said == KERNEL else said
        network = "again" if stack.remakes or NAMED["network"][shard.network] == "again" else self.network
        # a loop that keeps scores on chip makes them again in its backward pass, which is all that selective means
        selective = again == "selective" and stack.attention != SOFTMAX
        attention = AGAIN.get(attention, attention) if selective or stack.remakes else attention
        return ShardSpec(
            shard.microbatch,
            training.sequence,
            shard.tensor,
            training.form,
            attention,
            network,
            shard.context,
            shard.expert,
            shard.sharded,
            "again" if again == "full" else "kept",
            stack.residual,
        )

    def parts(self, training: Training, shard: ShardKey) -> ShardCosts:
        """The costs of a share, compiled unless they are known."""
        model, share = training.model, self.spec_of(training, shard)
        key = model.name, share
        if key not in self._parts:
            within, kept = self.layers(training, shard), self._kept(model, share)
            first, last = (self.programs.ends(model, kept[0 if i else -1], i, not i) for i in (True, False))
            join = self.programs.join(model, model.stacks[-1][1], kept[-1])
            self._parts[key] = replace(within, first=first, last=last, join=join, exact=True)
        return self._parts[key]

    def layers(self, training: Training, shard: ShardKey) -> ShardCosts:
        """The costs of a share's layers, compiled unless they are known, without what precedes and follows them."""
        model, share = training.model, self.spec_of(training, shard)
        key = model.name, share
        if key not in self._layers:
            blocks = [block for _, block in model.stacks]
            layers = tuple(self._layer(model, block, model.share(block, share)) for block in blocks)
            entries = tuple(self.programs.entry(model, *each) for each in zip(blocks, self._kept(model, share)))
            self._layers[key] = ShardCosts(layers, NOTHING, NOTHING, False, entries)
        return self._layers[key]

    @staticmethod
    def _kept(model: Model, share: ShardSpec) -> list[ShardSpec]:
        """What a rank has of each kind of block, none of which is made again."""
        return [replace(model.share(block, share), block="kept") for _, block in model.stacks]

    def _layer(self, model: Model, block: Block, spec: ShardSpec) -> MicrobatchCost:
        """One that makes something again says what that adds. Where that is all but what enters it, what is needed
        and kept for its own backward pass is as without: see `PipelineTimes`."""
        found = self.programs.layer(model, block, spec)
        kept = replace(spec, attention=ONCE.get(spec.attention, spec.attention), block="kept")
        if spec == kept:
            return found
        before = self.programs.layer(model, block, kept)
        again = max(found.forward + found.backward - before.forward - before.backward, 0.0)  # begun before the loss
        if spec.block == "again":
            return replace(before, backward=before.backward + again, again=again)
        return replace(found, again=again)

    @property
    def room(self) -> int:
        """Bytes that a rank has."""
        return room(self.cluster.target)

    @property
    def peak(self) -> float:
        """FLOP/s of all cores, also of those that a rank leaves idle: all of them are paid for."""
        chip = self.cluster.target.chip
        return (
            self.cluster.target.cores
            * self.cluster.instances
            * chip.peak_flops(MODES[self.programs.session.precision])
        )

    def least(self, training: Training, layouts: Layouts) -> Floats:
        """Bytes that a rank needs whatever its stage is: weights, gradients, the optimizer's state."""
        found, model = np.zeros(len(layouts)), training.model
        for p in np.unique(layouts["pipeline"]):
            rows = layouts["pipeline"] == p
            some = layouts.take(rows)
            common, experts = parameters_of(model, layers_of(int(p), model.layers), int(p))
            tensor, expert = divided(model, some)[:, None], some["expert"][:, None]
            held = held_of(training, some, common / tensor, experts / (tensor * expert))
            found[rows] = np.sum(list(held.values()), axis=0).max(1)
        return found

    def steps(self, training: Training, layouts: Layouts, parts: PartsOf) -> PlannedSteps:
        """The steps of layouts that have no obstacle. parts: of every piece that they have."""
        return self.steps_of_terms(self.terms(training, layouts), parts)

    def terms(self, training: Training, layouts: Layouts) -> LayoutTerms:
        """What no program changes of the steps of layouts that have no obstacle."""
        return terms_of(self.exchange, training, layouts)

    def steps_of_terms(self, terms: LayoutTerms, parts: PartsOf) -> PlannedSteps:
        """The steps of a frame's layouts."""
        n = len(terms.layouts)
        seconds, sizes = ({name: np.zeros(n) for name in names} for names in (CAUSES, CLASSES))
        flops, exact, passes = np.zeros(n), np.zeros(n, np.bool_), np.zeros((len(fields(MicrobatchPasses)), n))
        for shape in terms.shapes:
            pipes, rows = PipelineTimes(shape, parts), shape.rows
            for name, column in pipes.seconds().items():
                seconds[name][rows] = column
            for name, column in pipes.bytes().items():
                sizes[name][rows] = column
            flops[rows], exact[rows] = pipes.flops, pipes.exact
            seconds["host"][rows] = pipes.traced(self.programs.session.stack.tracing_us / MILLION)
            passes[:, rows] = pipes.forward, pipes.backward, pipes.layers, *pipes.units()
        seconds |= self._end_of_step(terms, MicrobatchPasses(*passes), exact)
        return PlannedSteps(terms.layouts, seconds, sizes, flops, exact, self.room, self.peak, terms.training.tokens)

    def _end_of_step(self, terms: LayoutTerms, passes: MicrobatchPasses, exact: Bools) -> dict[str, Floats]:
        """Gradients added up over data and context parallel ranks, the update, and the new weights given back.

        What is done with parts of parameters is compiled where the rest is `exact`; elsewhere they are updated at
        memory's pace, and rounded in no time."""
        x, training = terms.layouts, terms.training
        forward, backward = (np.where(shares_layers(x), part, 1.0) for part in (BEHIND_FORWARD, BEHIND_BACKWARD))
        gradients = hidden(terms.spread, passes.backward * backward, passes.layers, x["overlap"])
        weights = hidden(terms.given, passes.forward * forward, passes.layers, x["overlap"])
        third = np.flatnonzero(x["zero"] == 3)
        if len(third):
            of_third, rounded = x.take(third), self._of_parts(terms, third, rounding, exact)
            found = streamed(terms.prefetch.take(third), passes.take(third), training.model, of_third, rounded)
            asked, given_back = (one * of_third.microbatches(training.batch) for one in found)
            weights[third] += asked
            gradients[third] += given_back
        updates = self.programs.update(terms.updated, training.rounded)
        whole = third[exact[third]]
        updates[whole] = self._of_parts(terms, whole, sharded, exact)
        return {"gradients": gradients, "weights": weights, "optimizer": updates + terms.normed}

    def _of_parts(self, terms: LayoutTerms, third: Ints, make: OfParts, exact: Bools) -> Floats:
        """[N] seconds of what layouts of ZeRO-3, in rows `third`, do with their parts of all parameters; 0 where they
        are not `exact`."""
        x, found = terms.layouts, np.zeros(len(third))
        if make is rounding and not terms.training.rounded:
            return found
        ways = np.where(exact, x["tensor"] * x["data"] * x["context"], 0)[third]
        for ranks in np.unique(ways[ways > 0]).tolist():
            found[ways == ranks] = self.programs.of_parts(terms.training.model, ranks, make)
        return found
