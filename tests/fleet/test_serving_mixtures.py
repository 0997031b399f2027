# SPDX-License-Identifier: Apache-2.0
"""Serving of experts: which of them are read, what they weigh, what a step takes for them, on Neuron and on GPUs.
That programs compute what the model means is in test_serving_programs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trnlab import chips
from trnlab.cli.main import main
from trnlab.fleet.gpus.catalogue import instance
from trnlab.fleet.layers.sizes import Attention, Experts
from trnlab.fleet.models import configurations
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.serving.costs import ServingCosts
from trnlab.fleet.serving.layers import ServingProgram
from trnlab.fleet.serving.mixtures import met
from trnlab.fleet.serving.offers import (
    PADDED,
    GenerationRequest,
    Offer,
    bytes_of,
    degrees,
    of_batch,
    of_others,
)
from trnlab.fleet.serving.prompts import of_prompt
from trnlab.runtime.session import Session

MIXTRAL = configurations.model("mixtral-8x7b")
WIDE = Model("wide", 256, ((2, Block(256, Attention(4, 2, 64, 64), Experts(8, 2, 512))),), 512, 1024)


def test_experts_that_tokens_meet():
    """One token meets its own; of an even router's four tokens 8 (1 - 3/4 ** 4) = 5.5 of 8 are met; many meet all,
    the fullest a little more often than the mean."""
    assert met(8, 2, 1, 1) == (2, 1)
    assert met(8, 2, 1, 8) == (1, 1)
    assert met(8, 8, 3, 1) == (8, 3)
    assert met(8, 2, 4, 1)[0] == 6
    read, rows = met(8, 2, 2048, 4)
    assert read == 2
    assert 2048 * 2 / 8 < rows < 1.15 * 2048 * 2 / 8


def test_a_step_reads_each_tokens_experts_or_all():
    """The vendor's rule: from as many loads as experts on all are read, and only then may ranks divide them."""
    share = ServingProgram(1, 2304, 8)
    assert of_batch(MIXTRAL, share).read == 2
    assert of_batch(MIXTRAL, replace(share, batch=3)).read == 6
    assert of_batch(MIXTRAL, replace(share, batch=4)).read == 8
    assert of_batch(MIXTRAL, replace(share, batch=64)).read == 8
    apart = replace(share, expert=4)
    assert of_batch(MIXTRAL, apart) is None
    assert of_batch(MIXTRAL, replace(apart, batch=4)).read == 2
    assert of_prompt(MIXTRAL, replace(apart, length=2048)).read == 2
    dense = configurations.model("llama3-8b")
    assert of_batch(dense, share) is of_prompt(dense, share) is share


def test_experts_are_whole_or_divided_as_far_as_can_be():
    found = {(tensor, expert) for tensor, expert, why in degrees(MIXTRAL, 64) if why is None}
    assert found == {(1, 1), (2, 1), (2, 2), (4, 1), (4, 4), (8, 1), (8, 8), (16, 1), (16, 8), (32, 1), (32, 8)}
    assert {why for tensor, _, why in degrees(MIXTRAL, 64) if tensor == 64} == {PADDED}
    odd = replace(WIDE, stacks=((2, Block(256, Attention(4, 2, 64, 64), Experts(7, 2, 511))),))
    assert [why for *_, why in degrees(odd, 2)] == [None, "ranks do not divide the experts or their columns"]


def test_bytes_are_those_of_the_model():
    """All lie in memory, however many are read; a rank has as many, whether ranks divide experts or columns."""
    angles = 2 * 2 * MIXTRAL.sequence * 128
    weights, cache = bytes_of(MIXTRAL, ServingProgram(1, 2304))
    assert weights == 2 * MIXTRAL.parameters + angles
    assert cache == 2 * 32 * 2 * 8 * 128 * 2304
    assert bytes_of(MIXTRAL, ServingProgram(1, 2304, 8)) == bytes_of(MIXTRAL, ServingProgram(1, 2304, 8, expert=8))


@pytest.fixture(scope="module")
def costs():
    return ServingCosts(Session(chips.target("inf2.xlarge")))


def test_a_step_takes_no_less_than_reading_its_experts(costs):
    each = 2 * WIDE.layers * WIDE.stacks[0][1].expert_parameters // WIDE.stacks[0][1].network.count
    rate = costs.session.chip.hbm.bandwidth.value
    few, many = (costs.of("decode", WIDE, ServingProgram(1, 256, read=read)) for read in (2, 8))
    assert few.seconds >= 2 * each / rate
    assert many.seconds - few.seconds >= 0.5 * 6 * each / rate
    assert many.flops - few.flops == 6 * each  # two operations for each weight, of two bytes


def test_rows_of_a_prompt_go_through_their_own_experts_alone(costs):
    """Operations of a prefill: two for each weight that a token meets, with the places of the fullest expert."""
    share = of_prompt(WIDE, ServingProgram(1, 256))
    found = costs.of("prefill", WIDE, share).flops
    dense = replace(WIDE, stacks=((2, Block(256, Attention(4, 2, 64, 64), Experts(8, 2, 512))),))
    more = costs.of("prefill", dense, replace(share, room=2 * share.room)).flops
    each = dense.stacks[0][1].expert_parameters // 8
    assert more - found == 2 * dense.layers * share.read * share.room * each


def test_gpus_read_the_experts_that_are_met():
    where, request = "p5.48xlarge", GenerationRequest(2000, 300)
    offers = [o for o in of_others(where, MIXTRAL, request, "prefill-first") if isinstance(o, Offer)]
    assert {(o.tensor, o.expert) for o in offers} == {(2, 1), (2, 2), (4, 1), (4, 4), (8, 1), (8, 8)}
    gpu, each = instance(where).accelerator, 2 * 32 * 3 * 4096 * 14336
    for o in (o for o in offers if o.expert == 1):
        table = 2 * 32000 * 4096 + 2 * 2 * MIXTRAL.sequence * 128
        always = o.weights - 8 * each // o.tensor - table
        for batch, read in ((1, 2), (4, 6), (64, 8)):
            assert o.engine.decode[batch] >= (always + read * each / o.tensor) / gpu.bandwidth
        assert o.engine.decode[1] < (always + 8 * each / o.tensor) / gpu.bandwidth


def test_the_command_plans_experts(tmp_path, capsys):
    config = {
        "model_type": "mixtral",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 1024,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    (tmp_path / "small.json").write_text(json.dumps(config))
    words = [
        "serve-plan",
        str(tmp_path / "small.json"),
        "--cache",
        str(tmp_path),
        "--prompt",
        "100",
        "--output",
        "50",
        "--target",
        "inf2.xlarge",
        "--beside",
        "g6e.xlarge",
        "--qps",
        "40",
    ]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "2/2" in printed
    assert "experts on GPUs" in printed
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["compiled"] == 0
    offers = [c["offer"] for c in found["choices"]]
    assert {(o["tensor"], o["expert"]) for o in offers if o["target"] == "inf2.xlarge"} == {(1, 1), (2, 1), (2, 2)}
    divided = next(o for o in offers if o["expert"] == 2)
    assert "1" not in divided["engine"]["decode"]
