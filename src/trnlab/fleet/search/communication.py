# SPDX-License-Identifier: Apache-2.0
"""What ranks of many layouts send each other beside their tensor groups, timed on the network.

Letters of shapes: N layouts, K kinds of blocks.
"""

from __future__ import annotations

import numpy as np

from trnlab.fleet.arrays import Floats, Ints
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.layers.experts import places
from trnlab.fleet.layers.shares import heads_of_rank
from trnlab.fleet.layers.sizes import Experts
from trnlab.fleet.models.transformer import Block
from trnlab.fleet.search.layout import Layouts
from trnlab.fleet.search.pipeline_times import CommunicationSeconds, entering
from trnlab.fleet.search.shard_costs import Training

SENDS = 2  # of rows, in each pass: to the experts, and back


def communication_of(exchange: Exchange, training: Training, x: Layouts) -> CommunicationSeconds:
    """What a microbatch exchanges, of each layout."""
    stride = np.where(x["pipeline"] > 1, x["tensor"] * x["context"] * x["data"], 0)
    blocks, tokens = [block for _, block in training.model.stacks], training.model.between(training.sequence)
    rows = np.stack([_rows(block, training, x) for block in blocks], axis=1)
    keys = np.stack([_keys(block, training, x) for block in blocks], axis=1)

    def each(kind: str, count: Ints, sizes: Floats) -> Floats:
        return np.stack([exchange.seconds(kind, x["tensor"], count, size) for size in sizes.T], axis=1)

    gathered, scattered = (each(kind, x["context"], keys) for kind in ("all_gather", "reduce_scatter"))
    gradients = np.where(x["context"][:, None] > 1, 2 * keys, 0.0)  # and their gradients
    arriving = np.where(x["expert"][:, None] > 1, rows, 0.0)
    return CommunicationSeconds(
        exchange.send(stride, entering(training, x, tokens)),
        SENDS * each("all_to_all", x["expert"], rows),
        gathered,
        gathered + scattered,
        (gradients + arriving).max(1),
    )


def _rows(block: Block, training: Training, x: Layouts) -> Floats:
    """[N] bytes of a rank's buffer of rows for all experts; 0 without experts."""
    if not isinstance(block.network, Experts):
        return np.zeros(len(x))
    tokens = x["microbatch"] * training.sequence // (x["tensor"] * x["context"])
    each, which = np.unique(tokens, return_inverse=True)
    room = np.array([places(block.network, n) for n in each.tolist()])[which.reshape(-1)]
    return np.asarray(room * block.network.count * block.hidden * training.width, np.float64)


def _keys(block: Block, training: Training, x: Layouts) -> Floats:
    """[N] bytes of the keys and values of all places of a microbatch's sequences."""
    a = block.attention
    kinds, which = np.unique(x["tensor"], return_inverse=True)
    heads = np.array([heads_of_rank(a.heads, a.kv_heads, n)[1] for n in kinds.tolist()])[which.reshape(-1)]
    return np.asarray(x["microbatch"] * training.sequence * heads * (2 * a.size) * training.width, np.float64)


def summed(
    exchange: Exchange, x: Layouts, kind: str, zero: int, width: int, common: Floats, experts: Floats
) -> Floats:
    """[N] seconds of one collective over the ranks that have the same parameters, of layouts of one ZeRO stage; those
    of experts are alike on fewer ranks. common, experts: [N] parameters; width: bytes of each."""
    alike = x["data"] * x["context"]
    count, fewer = (np.where(x["zero"] == zero, n, 1) for n in (alike, alike // x["expert"]))
    found = exchange.seconds(kind, x["tensor"], count, common * width)
    return found + exchange.seconds(kind, x["tensor"] * x["expert"], fewer, experts * width)


def hidden(exchange: Floats, compute: Floats, layers: Floats, overlap: Ints) -> Floats:
    """What stays exposed of an exchange beside a pass, whose gradients (or weights) become ready layer by layer: at
    least that of one layer."""
    return np.where(overlap > 0, np.maximum(exchange - compute * (1 - 1 / layers), exchange / layers), exchange)
