# SPDX-License-Identifier: Apache-2.0
"""Pipelines of many layouts at once: what a microbatch takes on each stage, and what each rank has in memory.

Letters of shapes: N layouts, S stages of a pipeline, R its ranks, K kinds of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trnlab.fleet.arrays import Bools, Floats, Ints
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.search import pipeline
from trnlab.fleet.search.layout import Layouts, divided, layers_of
from trnlab.fleet.search.shard_costs import FIGURES, FULL, MASTER, MOMENTS, PartsOf, ShardKey, Training, shard_keys_of
from trnlab.runtime.step_cost import host_wait

SUM = 4  # bytes for each parameter: of gradients, in float32
UPDATE_OPERATORS = 12  # of AdamW, for each tensor (torch.optim.adamw, without foreach)


@dataclass(frozen=True)
class CommunicationSeconds:
    """Seconds of what a microbatch of each of N layouts exchanges besides its tensor groups: [N] between two stages;
    [N, K] of one layer of each kind, of rows to experts and back in one pass, of keys and values forward, and of them
    and their gradients backward. buffers: [N] bytes of what arrives."""

    sent: Floats
    experts: Floats
    context: Floats
    context_backward: Floats
    buffers: Floats

    def take(self, rows: Bools | Ints) -> CommunicationSeconds:
        """The same of some of the layouts."""
        return CommunicationSeconds(
            self.sent[rows], self.experts[rows], self.context[rows], self.context_backward[rows], self.buffers[rows]
        )


@dataclass(frozen=True)
class PipelineShape:
    """N layouts with the same stages, R ranks of `chunks` stages each: what of them no program changes. rows: [N]
    their places among all layouts."""

    training: Training
    layouts: Layouts
    rows: Ints
    ranks: int
    chunks: int
    communication: CommunicationSeconds

    @cached_property
    def counts(self) -> list[int]:
        """Blocks of each stage."""
        return counts_of(self.training.model, self.ranks, self.chunks)

    @cached_property
    def kinds(self) -> Ints:
        """[S, K] how many blocks of each kind each stage has."""
        return kinds_of(self.training.model, self.counts)

    @cached_property
    def join(self) -> int:
        """The first stage that has blocks of the last kind."""
        return int((self.kinds[:, -1] > 0).argmax())

    @cached_property
    def blocks(self) -> Floats:
        """[chunks, R] of each stage of each rank."""
        return np.array(self.counts, np.float64).reshape(self.chunks, self.ranks)

    @cached_property
    def microbatches(self) -> Ints:
        """[N] of a step."""
        return self.layouts.microbatches(self.training.batch)

    @cached_property
    def pieces(self) -> tuple[list[ShardKey], Ints]:
        """See `pieces_of`."""
        return shard_keys_of(self.layouts)

    @cached_property
    def full(self) -> Bools:
        """[N, 1] whether all but what enters a layer is made again."""
        return np.asarray(self.layouts["recompute"] == FULL)[:, None]

    @cached_property
    def sent(self) -> tuple[Floats, Floats, Floats]:
        """[N, S] seconds of a microbatch: of rows to experts in one pass, of contexts forward, and backward."""
        return (
            self.communication.experts @ self.kinds.T,
            self.communication.context @ self.kinds.T,
            self.communication.context_backward @ self.kinds.T,
        )

    @cached_property
    def held(self) -> dict[str, Floats]:
        """[N, R] bytes of weights, gradients and the optimizer's state."""
        common, experts = parameters_of(self.training.model, self.counts, self.ranks)
        tensor, expert = divided(self.training.model, self.layouts)[:, None], self.layouts["expert"][:, None]
        return held_of(self.training, self.layouts, common / tensor, experts / (tensor * expert))

    @cached_property
    def under_way(self) -> Ints:
        """[N, R] microbatches whose activations of a stage a rank keeps at most."""
        return pipeline.held(self.ranks, self.microbatches, self.chunks)

    @cached_property
    def entered(self) -> Floats:
        """[N, R] bytes of what entered a stage's layers."""
        lengths = self.training.model.lengths(self.training.sequence)
        each = np.stack([entering(self.training, self.layouts, n) for n in lengths], axis=1)
        return np.asarray(each @ self._means(self.kinds.astype(np.float64)))

    def _means(self, stages: Floats) -> Floats:
        """[..., S, K] -> [..., K, R], of each rank's stages."""
        return np.asarray(stages.reshape(self.chunks, self.ranks, -1).mean(0).T)

    @cached_property
    def encoder_outputs(self) -> Floats:
        """[N, R] bytes of what an encoder made, on ranks that have blocks of a decoder that attends to it."""
        has = (self.kinds[:, -1:] > 0) & (self.training.model.decoded > 0)
        size = entering(self.training, self.layouts, self.training.sequence)
        return np.asarray(size[:, None] * self._means(has.astype(np.float64)))

    @cached_property
    def gathered(self) -> Floats:
        """[N, K] bytes of the weights of a layer of each kind that ZeRO-3 gathers while those of others are used."""
        model, x = self.training.model, self.layouts
        layers = [block.parameters - block.expert_parameters * (1 - 1 / x["expert"]) for _, block in model.stacks]
        units = np.stack([np.broadcast_to(layer, len(x)) for layer in layers], axis=1)
        return np.where(x["zero"] == 3, units.T / divided(model, x) * self.training.width, 0.0).T

    @cached_property
    def order(self) -> list[int]:
        """The kind of each layer of the model. Where ZeRO-3 gathers weights there is no pipeline, so that a rank has
        all of them."""
        return [kind for kind, (count, _) in enumerate(self.training.model.stacks) for _ in range(count)]

    def largest(self, places: Iterable[int]) -> Floats:
        """[N, 1] bytes that are gathered of the largest of these layers; places before the first one have none."""
        kinds = sorted({self.order[place] for place in places if place >= 0})
        return np.asarray(self.gathered[:, kinds].max(1, initial=0.0)[:, None])

    @cached_property
    def gathered_next(self) -> Floats:
        """[N, K] bytes that are gathered while the backward pass is in a layer of each kind, and gradients of one are
        on their way: of two layers what their program has, besides this of the one that is next."""
        kinds = range(len(self.training.model.stacks))
        next_ones = ([i - 2 for i, own in enumerate(self.order) if own == kind] for kind in kinds)
        return np.concatenate([self.largest(places) for places in next_ones], axis=1)


@dataclass(frozen=True)
class PeakMemory:
    """[N, R] bytes of a rank kept for backward passes that are to come, and needed besides; the share of gradients
    that is there."""

    activations: Floats
    working: Floats
    there: Floats


class PipelineTimes:
    """The pipelines of a shape's N layouts, from what their shares cost. forward, backward: [N] seconds of the
    busiest rank's passes of a microbatch, `layers` of them."""

    def __init__(self, shape: PipelineShape, parts: PartsOf) -> None:
        self.shape = shape
        found, self.which = shape.pieces
        own = [parts[piece] for piece in found]
        self.exact = np.array([part.exact for part in own])[self.which]
        self._table = np.stack([part.table for part in own], axis=1)  # [F, n, 2 K + 3]
        self._stages = self._of_stages()
        self._pass()

    def _of_stages(self) -> dict[str, Floats]:
        """[N, S] of each figure."""
        kinds, count = self.shape.kinds.T.astype(np.float64), self.shape.kinds.shape[1]
        found = self._table[..., :count] @ kinds + self._table[..., count:-3] @ (kinds > 0).astype(np.float64)
        for stage, column in self._ends():
            found[..., stage] += self._table[..., column]
        return dict(zip(FIGURES, found[:, self.which]))

    def _ends(self) -> tuple[tuple[int, int], ...]:
        """Stages that have more than blocks, and what that is in the table."""
        return (0, -3), (self.shape.join, -2), (-1, -1)

    def _pass(self) -> None:
        """Seconds of both passes of a microbatch, by stage and of the busiest rank."""
        stages, full, (experts, context, shared) = self._stages, self.shape.full, self.shape.sent
        forward = stages["forward"] + experts + context
        backward = stages["backward"] + experts + shared
        whole = np.where(full, experts + context, 0.0)  # the rest of what is made again is in the programs
        self.times = forward + backward + whole
        busy = self._own(self.times)
        busiest, self.busy = busy.argmax(1), busy.max(1)
        of_rank = [forward, backward + whole, stages["again"], stages["exposed"], experts, context, shared]
        self.forward, self.backward, self.again, self.exposed, sent, asked, given = self._own(np.stack(of_rank))[
            :, np.arange(len(busiest)), busiest
        ]
        passes = np.where(full[:, 0], 3, 2)
        self.experts, self.context = sent * passes, asked * (passes - 1) + given
        self.layers = np.maximum(self.shape.blocks.sum(0)[busiest], 1.0)
        x = self.shape.layouts
        sharing = x["tensor"] * x["context"] * x["data"]
        self.flops = stages["flops"].sum(1) * sharing * self.shape.microbatches

    def units(self) -> list[Floats]:
        """[N] seconds of what precedes the layers, forward and backward, and of what follows them; of the latter's
        backward pass what comes after its weights' gradient."""
        asked = (("forward", -3), ("backward", -3), ("forward", -1), ("backward", -1), ("late", -1))
        return [self._table[FIGURES.index(name), :, column][self.which] for name, column in asked]

    def _own(self, stages: Floats) -> Floats:
        """[..., S] -> [..., R]: stage s lies on rank s % R."""
        return np.asarray(stages.reshape(*stages.shape[:-1], self.shape.chunks, self.shape.ranks).sum(-2))

    def seconds(self) -> dict[str, Floats]:
        """By cause, without the end of the step."""
        m = self.shape.microbatches
        total = pipeline.total(self.times, self.shape.ranks, m, self.shape.communication.sent)
        rest = self.busy - self.again - self.exposed - self.context - self.experts
        return {
            "compute": rest * m,
            "recompute": self.again * m,
            "tensor parallel": self.exposed * m,
            "context parallel": self.context * m,
            "experts": self.experts * m,
            "pipeline": total - self.busy * m,
        }

    def traced(self, each: float) -> Floats:
        """[N] seconds that ranks wait for their host, which needs `each` for an operator of a microbatch, and of the
        update after them, whose own seconds stand elsewhere."""
        if not each:
            return np.zeros(len(self.busy))
        own = self._own(np.stack([self._stages["traced"], self._stages["tensors"] * UPDATE_OPERATORS]))
        one, update = own.max(2) * each
        return np.asarray(host_wait([(one, self.busy, self.shape.microbatches), (update, 0.0, 1)]))

    def bytes(self) -> dict[str, Floats]:
        """By class, of the rank with most, when it has most."""
        found, held = self._moments(), self.shape.held
        always = held["weights"] + held["optimizer"]
        totals = [x.activations + x.working + held["gradients"] * x.there + always for x in found]
        most = np.concatenate(totals, axis=1).argmax(1)
        (which, ranks), every = divmod(most, self.shape.ranks), np.arange(len(most))
        activations, working, there = np.zeros((3, len(most)))
        for i, one in enumerate(found):
            rows = np.flatnonzero(which == i)
            at = rows, ranks[rows]
            activations[rows], working[rows], there[rows] = one.activations[at], one.working[at], one.there[at]
        sizes = {name: column[every, ranks] for name, column in held.items()}
        return sizes | {"gradients": sizes["gradients"] * there, "activations": activations, "working": working}

    def _moments(self) -> list[PeakMemory]:
        """When a rank may be fullest: as the backward pass turns in its layers, in the head, where nothing is let go
        of yet, between a decoder and its encoder, and in the embedding, when of that microbatch nothing else is
        left."""
        shape = self.shape
        kept, (first, join, last) = self._own(self._stages["saved"]) / shape.chunks, self._of_ends("saved")
        block = (kept * shape.chunks - first - join - last) / np.maximum(shape.blocks.sum(0), 1.0)
        each = np.where(shape.full, shape.entered, kept) + shape.encoder_outputs
        before, gone = each * shape.under_way, np.where(shape.full, 0.0, last)
        own = np.where(shape.full, block, 0.0) + shape.communication.buffers[:, None]
        needs, has = self._of_ends("working") + self._of_ends("gathered"), self._has()
        there = ((shape.layouts["zero"] != 3) | (shape.microbatches > 1))[:, None] + np.zeros(kept.shape)
        before_head = shape.largest([len(shape.order) - 2])
        left = each * (shape.under_way - 1) + first + block
        found = [
            PeakMemory(before - gone, self._working() + own, there),
            PeakMemory(before * has[2], (needs[2] + own + before_head + last - gone) * has[2], there),
            PeakMemory(
                left * has[0], (needs[0] + shape.communication.buffers[:, None]) * has[0], np.ones_like(there)
            ),
        ]
        if shape.training.model.decoded:
            kept, late = (before - self._decoded()) * has[1], np.maximum(there, self._late)
            before_join = shape.largest([shape.order.index(shape.order[-1]) - 1])
            found.append(PeakMemory(kept, (needs[1] + own + before_join) * has[1], late))
        return found

    def _decoded(self) -> Floats:
        """[N, R] bytes that a decoder's blocks and head keep, on the rank where it begins, which are gone when its
        backward pass has come to the encoder."""
        shape, count = self.shape, self.shape.kinds.shape[1]
        table = self._table[FIGURES.index("saved")][self.which]
        size = table[:, count - 1] * shape.kinds[shape.join, -1] + table[:, 2 * count - 1]
        found = self._of_ends("saved")[2]
        found[:, shape.join % shape.ranks] += size
        return np.where(shape.full, 0.0, found)

    @property
    def _late(self) -> float:
        """Share of gradients that are there when the backward pass of a decoder has come to its encoder."""
        model = self.shape.training.model
        count, block = model.stacks[-1]
        return (model.head_parameters + count * block.parameters) / model.parameters

    def _has(self) -> Floats:
        """[3, R] 1.0 where a rank has what precedes, joins and follows the layers."""
        found = np.zeros((3, self.shape.ranks))
        found[0, 0] = found[2, -1] = 1.0
        found[1, self.shape.join % self.shape.ranks] = float(self.shape.training.model.decoded > 0)
        return found

    def _of_ends(self, name: str) -> Floats:
        """[3, N, R] of a figure of what precedes, joins and follows the layers, on the rank that has it."""
        table = self._table[FIGURES.index(name)][self.which, -3:]
        return np.asarray(table.T[:, :, None] * self._has()[:, None])

    def _working(self) -> Floats:
        """[N, R] bytes that the layer which needs most of a rank needs besides what is kept, and the weights that are
        gathered next."""
        table = self._table[FIGURES.index("working")] + self._table[FIGURES.index("gathered")]  # [n, 2 K + 3]
        some = np.unique(self.which, return_index=True)[1]  # a layout of each piece
        needs = table[:, :-3] + np.tile(self.shape.gathered_next[some], 2)
        has = np.tile(self.shape.kinds > 0, 2)
        stages = np.max(np.where(has, needs[:, None], 0.0), axis=2)
        ranks = stages.reshape(len(stages), self.shape.chunks, self.shape.ranks).max(1)
        return np.asarray(ranks[self.which])


def counts_of(model: Model, ranks: int, chunks: int) -> list[int]:
    """Blocks of each stage."""
    stages = ranks * chunks
    return layers_of(ranks, model.layers) if chunks == 1 else [model.layers // stages] * stages


def kinds_of(model: Model, counts: list[int]) -> Ints:
    """[S, K] how many blocks of each kind each stage has."""
    ends = np.cumsum([0, *counts])
    found, at = [], 0
    for number, _ in model.stacks:
        found.append(np.clip(np.minimum(ends[1:], at + number) - np.maximum(ends[:-1], at), 0, None))
        at += number
    return np.stack(found, axis=1)


def parameters_of(model: Model, counts: list[int], ranks: int) -> tuple[Floats, Floats]:
    """[R] of the ranks of a pipeline, before they are divided further: without experts, and those of experts. An end
    of it has the embedding or the head as well, and each rank that needs the table of words a copy of it."""
    stages = kinds_of(model, counts)
    join = int((stages[:, -1] > 0).argmax()) % ranks
    kinds = stages.reshape(-1, ranks, len(model.stacks)).sum(0)
    experts = kinds @ np.array([block.expert_parameters for _, block in model.stacks], np.float64)
    common = kinds @ np.array([block.parameters for _, block in model.stacks], np.float64) - experts
    common[0] += model.embedding_parameters
    common[join] += model.join_parameters
    common[-1] += model.head_parameters
    home, *others = model.tables(join, ranks - 1)
    for rank in set(others) - {home}:
        common[rank] += model.vocabulary * model.hidden
    return common, experts


def held_of(training: Training, layouts: Layouts, common: Floats, experts: Floats) -> dict[str, Floats]:
    """[N, R] bytes by class, of parameters [N, R] of each rank. Under ZeRO-3 weights are parts in float32, from which
    what is gathered is made, and those in bfloat16 (PyTorch's `fully_shard` with a lower precision for computing);
    otherwise the optimizer keeps those beside weights in bfloat16. Weights in float32 are the only ones."""
    zero, mine = layouts["zero"][:, None], common + experts
    part = part_of(layouts, common, experts)
    third, width, master = zero == 3, training.width, MASTER if training.rounded else 0
    return {
        "weights": np.where(third, part * (master + width), mine * width),
        "gradients": np.where(third, part, mine) * SUM,
        "optimizer": np.where(third, part * MOMENTS, np.where(zero > 0, part, mine) * (master + MOMENTS)),
    }


def part_of(layouts: Layouts, common: Floats, experts: Floats) -> Floats:
    """[N, R] parameters of each rank [N, R] divided among all that have the same; an expert is the same on fewer."""
    alike = (layouts["data"] * layouts["context"])[:, None]
    return np.asarray(common / alike + experts / (alike / layouts["expert"][:, None]))


def entering(training: Training, layouts: Layouts, tokens: int) -> Floats:
    """Bytes of a microbatch between two layers, on one rank; tokens: of each sequence."""
    part = layouts["microbatch"] * tokens // (layouts["tensor"] * layouts["context"])
    return np.asarray(part * training.model.hidden * training.width, np.float64)
