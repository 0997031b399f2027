# SPDX-License-Identifier: Apache-2.0
"""Stages whose blocks are made again: the same gradients, and graphs of every kind of block."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab.fleet.costs.stages import stage
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.configurations import model
from trnlab.fleet.models.transformer import Block, Model
from trnlab.graph.interpret import interpret

BLOCK = Block(32, Attention(4, 2, 8, 8), Dense(64))
SMALL = Model("small", 32, ((2, BLOCK),), 16, 64)


def _gradients(block, values):
    graph = stage(SMALL, (BLOCK, BLOCK), ShardSpec(1, 16, 1, "float32", block=block), 1).graph
    random, given = np.random.default_rng(0), []
    for v in graph.inputs:
        key = v.name
        made = np.zeros(v.shape) if key.startswith("sum_") else random.standard_normal(v.shape) * 0.3
        given.append(values.setdefault(key, made.astype(np.float32)))
    found = interpret(graph, given)
    return {graph.inputs[s].name: found[o] for o, s in graph.aliases.items()}


def test_gradients_are_those_of_blocks_that_keep_all():
    values = {}
    kept, again = _gradients("kept", values), _gradients("again", values)
    assert kept.keys() == again.keys()
    for name, gradient in kept.items():
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(again[name], gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("mixtral-8x7b", {"expert": 4}),
        ("deepseek-v3", {"expert": 8}),
        ("llama3-8b", {"context": 2}),
        ("t5-small", {}),
        ("whisper-small", {}),
        ("vit-base", {}),
    ],
)
@pytest.mark.parametrize("tensor", [1, 2])
def test_every_kind_of_block_can_be_made_again(name, more, tensor):
    known = model(name)
    share = ShardSpec(1, min(known.sequence, 1500), tensor, block="again", **more)
    for _, block in known.stacks:
        own = known.share(block, share)
        again, kept = (stage(known, (block,), part, 16).graph for part in (own, known.share(block, _kept(share))))
        assert len(again.outputs) == len(kept.outputs)
        assert len(again.ops) > len(kept.ops)


def _kept(share: ShardSpec) -> ShardSpec:
    return ShardSpec(**vars(share) | {"block": "kept"})
