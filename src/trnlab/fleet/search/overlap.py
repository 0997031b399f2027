# SPDX-License-Identifier: Apache-2.0
"""What of ZeRO-3's collectives stays exposed: weights that are gathered unit by unit, and gradients that are spread,
one after the other on a stream of their own beside what is computed.

The order is that of `fully_shard` (PyTorch's FSDP2) under the compiler's policy `prefetch`: a unit's weights are
asked for when the one before begins, its gradients leave when it is done, before the weights that are asked for next.
Units are the embedding, each layer, the head, and the final norm, which is the model's own. N in shapes counts
layouts.

Where ranks share a layer as well, that layer's own collectives stand behind those on the one stream that there is, so
that an exchange is hidden by what no collective follows at once and by nothing else: forward by a layer's network,
backward by the last gradients of weights.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from trnlab.fleet.arrays import Bools, Floats, Ints
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.search.communication import summed
from trnlab.fleet.search.layout import Layouts, divided
from trnlab.fleet.search.pipeline_times import SUM
from trnlab.fleet.search.shard_costs import Training

# Of a layer's passes, what hides others' exchange where it has collectives of its own. Measured of the program of
# Llama-2-70B in groups of 8 on 64 trn2.48xlarge: 7.5 of 14.0 ms, 5.6 of 18.9 ms.
BEHIND_FORWARD, BEHIND_BACKWARD = 0.5, 0.3
SETTLED = 8  # layers after which each takes as long as the one before


@dataclass(frozen=True)
class PrefetchOverlap:
    """Seconds of collectives under ZeRO-3: [4, N] of the embedding, of one layer, of the head, of the final norm."""

    gathering: Floats  # of weights
    scattering: Floats  # of gradients

    def take(self, rows: Bools | Ints) -> PrefetchOverlap:
        """The same of some of the layouts."""
        return PrefetchOverlap(self.gathering[:, rows], self.scattering[:, rows])


@dataclass(frozen=True)
class MicrobatchPasses:
    """[N] seconds of a microbatch on the busiest rank: of all units forward and backward, of which what precedes and
    what follows the layers, and of the latter's backward pass what comes after its weights' gradient; layers: how
    many it has."""

    forward: Floats
    backward: Floats
    layers: Floats
    first: Floats
    first_back: Floats
    last: Floats
    last_back: Floats
    late: Floats

    def take(self, rows: Bools | Ints) -> MicrobatchPasses:
        """The same of some of the layouts."""
        return MicrobatchPasses(*(getattr(self, f.name)[rows] for f in fields(self)))

    @property
    def layer(self) -> Floats:
        """Cost of one layer's forward pass."""
        return np.asarray(np.maximum(self.forward - self.first - self.last, 0.0) / self.layers)

    @property
    def layer_back(self) -> Floats:
        """Seconds of one layer's backward pass."""
        return np.asarray(np.maximum(self.backward - self.first_back - self.last_back, 0.0) / self.layers)


def streams_of(exchange: Exchange, training: Training, x: Layouts) -> PrefetchOverlap:
    """Streams of each layout; 0 of other stages of ZeRO."""
    model = training.model
    layers, experts = model.layers, sum(n * block.expert_parameters for n, block in model.stacks)
    late = model.join_parameters + model.head_parameters
    norm = model.final_norm_parameters
    common = model.parameters - model.embedding_parameters - late - experts
    sizes = ((model.embedding_parameters, 0.0), (common / layers, experts / layers), (late - norm, 0.0), (norm, 0.0))
    kinds = ("all_gather", training.width), ("reduce_scatter", SUM)
    tensor = divided(model, x)
    gathering, scattering = (
        np.stack(
            [
                summed(exchange, x, kind, 3, width, own / tensor, theirs / (tensor * x["expert"]))
                for own, theirs in sizes
            ]
        )
        for kind, width in kinds
    )
    return PrefetchOverlap(gathering, scattering)


def streamed(
    streams: PrefetchOverlap, passes: MicrobatchPasses, model: Model, x: Layouts, rounded: Floats
) -> tuple[Floats, Floats]:
    """[N] exposed seconds of gathering weights and of spreading gradients for a microbatch. rounded: [N] seconds in
    which a rank rounds its parts of all weights, for both passes, before anything else."""
    several, overlap = shares_layers(x), x["overlap"]
    (first, each, last, _), given, layers = streams.gathering, streams.scattering, model.layers
    compute = passes.forward + passes.backward
    ready = rounded / 2 * model.embedding_parameters / model.parameters  # of the first unit, for the forward pass
    whole = _forward(streams.gathering, passes, layers, ready, rounded)
    alone, both = (whole + _backward(streams.gathering, spread, passes, layers) for spread in (given * 0.0, given))
    behind, late = BEHIND_FORWARD * passes.layer, BEHIND_BACKWARD * passes.layer_back
    hides = np.minimum(each, behind) * (layers - 1) + np.minimum(last, behind)
    open_ = rounded + first + 2 * last + 2 * layers * each
    asked = np.where(overlap > 0, np.where(several, open_ - hides, alone - compute), open_)
    open_ = given[0] + given[2] + given[3] + layers * given[1]
    hides = np.minimum(given[1], late) * layers
    back = np.where(overlap > 0, np.where(several, open_ - hides, both - alone), open_)
    return np.maximum(asked, 0.0), np.maximum(back, 0.0)


def shares_layers(x: Layouts) -> Bools:
    """[N] whether ranks exchange something in each layer, besides what data parallel ranks do."""
    return np.asarray(x["tensor"] * x["context"] * x["expert"] > 1)


def _forward(gathering: Floats, passes: MicrobatchPasses, layers: int, ready: Floats, rounded: Floats) -> Floats:
    """[N] seconds until the loss is there. Nothing hides the weights of the embedding and of the first layer, with
    whose norm it is one call. ready: when the embedding's parts are rounded."""
    (first, each, last, _), own = gathering, passes.layer
    more, there = layers - 1, ready + first + each
    begun = np.maximum(there, rounded) + passes.first
    if more:  # where the last layer begins
        begun = np.maximum(begun + own, there + each) + np.maximum(own, each) * (more - 1)
    return np.asarray(begun + np.maximum(own, last) + np.maximum(passes.last, last))


def _backward(gathering: Floats, scattering: Floats, passes: MicrobatchPasses, layers: int) -> Floats:
    """[N] seconds from the loss to the last gradient. The weights of the last two layers are asked for when the
    head's gradient is on its way; of others, when the second layer after them is done and its gradients are."""
    (first, each, _, _), (first_back, each_back, last_back, norm_back) = gathering, scattering
    own, done = passes.layer_back, passes.last_back
    stream = passes.last_back - passes.late + last_back
    ready = [stream + each, stream + 2 * each]  # of the next layer's weights, and of the one after it
    stream = ready[-1]
    for i in range(min(layers, SETTLED)):
        done = np.maximum(done, ready[i]) + own
        stream = (
            np.maximum(stream, done) + each_back + (each if i < layers - 2 else first if i == layers - 2 else 0.0)
        )
        ready.append(stream)
    if layers > SETTLED:
        rest = np.maximum(own, each_back + each) * (layers - SETTLED)
        done, stream = done + rest, stream + rest - each  # no weights follow the last gradients
    done = done + passes.first_back
    return np.asarray(np.maximum(done, np.maximum(stream, done) + first_back + norm_back))
