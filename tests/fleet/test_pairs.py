# SPDX-License-Identifier: Apache-2.0
"""Encoders with decoders: losses and gradients as PyTorch's autograd has them, and what layouts make of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trnlab.errors import UsageError
from trnlab.fleet import Question, plan
from trnlab.fleet.comparison.contenders import gpu_contender, work_of
from trnlab.fleet.costs.stages import ENTRY, JOIN, stage
from trnlab.fleet.gpus import catalogue, roofline
from trnlab.fleet.gpus.costs import TrainingWork
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.layers.sizes import Attention, Dense, RelativeAttention
from trnlab.fleet.models.configurations import from_config
from trnlab.fleet.models.encoder_decoder import DecoderBlock, EncoderDecoderModel
from trnlab.fleet.models.transformer import Block
from trnlab.fleet.search.layout import Layout, columns_of, pinned
from trnlab.fleet.search.pipeline_times import PipelineShape, entering, parameters_of
from trnlab.fleet.search.shard_costs import Training
from trnlab.fleet.search.steps import CAUSES, CLASSES
from trnlab.graph.interpret import interpret

torch = pytest.importorskip("torch")
F = torch.nn.functional
HIDDEN, HEADS, READ, WRITTEN, BATCH, WORDS = 16, 4, 8, 6, 2, 24
T5 = {
    "model_type": "t5",
    "d_model": HIDDEN,
    "num_heads": HEADS,
    "d_kv": 4,
    "d_ff": 32,
    "num_layers": 2,
    "vocab_size": WORDS,
    "decoder_length": WRITTEN,
}
WHISPER = {
    "model_type": "whisper",
    "d_model": HIDDEN,
    "vocab_size": WORDS,
    "num_mel_bins": 3,
    "max_source_positions": READ,
    "max_target_positions": WRITTEN,
    **{
        f"{side}_{name}": n
        for side in ("encoder", "decoder")
        for name, n in (("layers", 2), ("attention_heads", HEADS), ("ffn_dim", 32))
    },
}


def _inputs(graph, seed=0):
    random = np.random.default_rng(seed)
    for v in graph.inputs:
        if v.dtype.name == "int32":
            yield random.integers(0, WORDS, v.shape).astype(np.int32)
        elif v.name.startswith("sum_"):
            yield np.zeros(v.shape, np.float32)
        else:
            yield random.standard_normal(v.shape).astype(np.float32) * 0.3


def _made(config, also="", decoder=True, first=False, last=False, blocks=1, attention="kernel"):
    """A stage, its inputs as tensors that gradients are taken of, and its outputs."""
    model = from_config(config, "small")
    block = model.stacks[int(decoder)][1]
    share = model.share(block, ShardSpec(BATCH, READ, form="float32", attention=attention))
    graph = stage(model, (block,) * blocks, share, 1, first, last, also).graph
    values = list(_inputs(graph))
    named = {v.name: torch.from_numpy(x).requires_grad_(x.dtype != np.int32) for v, x in zip(graph.inputs, values)}
    return block, graph, named, interpret(graph, values)


def _normed(x, w, name):
    if name + "_shift" in w:
        return F.layer_norm(x, (HIDDEN,), w[name + "_scale"], w[name + "_shift"])
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w[name + "_scale"]


def _heads(x, w, name):
    return F.linear(x, w[name], w.get(name + "_bias")).unflatten(-1, (HEADS, -1)).transpose(1, 2)


def _attention(w, name, x, read, bias=None, causal=False):
    q, k, v = (_heads(y, w, f"{name}_{n}") for n, y in (("q", x), ("k", read), ("v", read)))
    if bias is None:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    else:
        hidden = torch.full(bias.shape, float("-inf")).triu(1) if causal else 0.0
        out = (q @ k.transpose(-1, -2) + bias + hidden).softmax(-1) @ v
    return F.linear(out.transpose(1, 2).flatten(-2), w[name + "_o"], w.get(name + "_o_bias"))


def _block(block, w, name, x, memory=None, bias=None):
    y = _normed(x, w, name + "_1")
    x = x + _attention(w, name, y, y, bias, block.attention.causal)
    if memory is not None:
        x = x + _attention(w, name + "_cross", _normed(x, w, name + "_cross"), memory)
    function = {"relu": F.relu, "gelu": F.gelu}[block.network.function]
    opened = function(F.linear(_normed(x, w, name + "_2"), w[name + "_up"], w.get(name + "_up_bias")))
    return x + F.linear(opened, w[name + "_down"], w.get(name + "_down_bias"))


def _check(graph, named, sums):
    """Gradients of weights, which the sums that began with zeros are."""
    targets = [graph.inputs[source].name.removeprefix("sum_") for source in graph.aliases.values()]
    assert set(targets) == {n for n in named if not n.startswith(("given", "sum_", "positions"))}  # those are fixed
    for name, got in zip(targets, sums):
        _near(got, named[name].grad, name)


def _near(got, wanted, name=""):
    wanted = wanted.numpy()
    bound = 2e-5 * np.abs(wanted).max() + 1e-7  # the gradient of a bias of keys is zero but for rounding
    np.testing.assert_allclose(got, wanted, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize("attention", ["kernel", "remade"])
@pytest.mark.parametrize("config", [T5, WHISPER], ids=["T5", "Whisper"])
def test_a_decoder_attends_to_what_was_read(config, attention):
    """Two of its blocks with the head: the gradients of weights, of what entered and of what the encoder made."""
    block, graph, w, (loss, entered, *rest) = _made(config, last=True, blocks=2, attention=attention)
    lent = [n for n in w if n.startswith("given") and w[n].dtype.is_floating_point]
    x = w[lent[0]]
    biased = isinstance(block.attention, RelativeAttention)
    bias, memory = (w[lent[1]], w[lent[2]]) if biased else (None, w[lent[1]])
    y = x
    for i in range(2):
        y = _block(block, w, f"block_{i}", y, memory, bias)
    labels = next(w[n] for n in w if n.startswith("given") and not w[n].dtype.is_floating_point)
    logits = F.linear(_normed(y, w, "final"), w["table"])
    expected = F.cross_entropy(logits.flatten(0, 1), labels.long().flatten())
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    _near(entered, x.grad)
    for got, value in zip(rest, (bias, memory) if biased else (memory,)):
        _near(got, value.grad)
    _check(graph, w, rest[2 if biased else 1 :])


def test_a_bias_by_distance_is_of_a_table_and_the_same_in_all_blocks():
    """What a stage makes once for its blocks: rows of a table, whose gradient all of them add to."""
    block, graph, w, (out, entered, *sums) = _made(T5, ENTRY, decoder=False, blocks=2)
    x, ids, down = w["given_1"], w["given_2"], w["given_3"]
    bias = F.embedding(ids.long().clamp(max=31), w["distances"]).permute(2, 0, 1)
    y = x
    for i in range(2):
        y = _block(block, w, f"block_{i}", y, bias=bias)
    y.backward(down.detach())
    _near(out, y.detach())
    _near(entered, x.grad)
    _check(graph, w, sums)


def test_sound_goes_through_two_convolutions():
    """Products of what their taps look at are PyTorch's convolutions, with a stride of 2 in the second."""
    block, graph, w, (out, *sums) = _made(WHISPER, decoder=False, first=True)
    x, down = w["given_1"], w["given_2"]
    one = w["conv_1"].unflatten(1, (3, -1)).transpose(1, 2)
    two = torch.cat((w["conv_2_before"], w["conv_2"]), 1).unflatten(1, (3, -1)).transpose(1, 2)
    y = F.gelu(F.conv1d(x.transpose(1, 2), one, w["conv_1_bias"], padding=1))
    y = F.gelu(F.conv1d(y, two, w["conv_2_bias"], stride=2, padding=1)).transpose(1, 2)
    y = _block(block, w, "block_0", y + w["positions"][: y.shape[1]])
    y.backward(down.detach())
    _near(out, y.detach())
    _check(graph, w, sums)


@pytest.mark.parametrize("config", [T5, WHISPER], ids=["T5", "Whisper"])
def test_what_joins_a_decoder_to_its_encoder(config):
    """A norm of what the encoder made, and the words that the decoder has written so far."""
    block, graph, w, (out, entered, *rest) = _made(config, JOIN)
    read, ids = w["given_1"], w["given_2"]
    biased = isinstance(block.attention, RelativeAttention)
    bias, down = (w["given_3"], w["given_4"]) if biased else (None, w["given_3"])
    x = F.embedding(ids.long(), w["table"])
    x = x + w["written"][: x.shape[1]] if "written" in w else x
    y = _block(block, w, "block_0", x, _normed(read, w, "read"), bias)
    y.backward(down.detach())
    _near(out, y.detach())
    _near(entered, read.grad)
    _check(graph, w, rest[int(biased) :])


def test_operations_are_those_of_the_blocks():
    """Of as many tokens read as written, each parameter but the table counts about once in the mean of both."""
    found = from_config(T5 | {"d_model": 512, "d_ff": 2048, "num_heads": 8, "d_kv": 64, "num_layers": 6}, "small")
    one, two = (block for _, block in found.stacks)
    keys = 2 * 512 * 512
    norms = 2 * 512, 3 * 512  # which are no products
    one, two = (block.parameters - own for block, own in zip((one, two), norms))
    products = 6 * one + 6 * keys + (6 * (two - keys) + WORDS * 512) * WRITTEN / 512
    pairs = 6 * 1024 * 512 + (6 * 1024 / 2 * WRITTEN / 512 + 6 * 1024) * WRITTEN
    assert found.flops_per_token(512) == pytest.approx(6 * (products + pairs))


def _pair(mels=0, tied=True, layers=(4, 4)):
    own = Attention(4, 4, 4, 4, causal=False, rope=False)
    stacks = (
        (layers[0], Block(HIDDEN, own, Dense(32))),
        (layers[1], DecoderBlock(HIDDEN, replace(own, causal=True), Dense(32), cross=own)),
    )
    return EncoderDecoderModel(
        "small", HIDDEN, stacks, READ, WORDS, tied=tied, decoded=WRITTEN, mels=mels, patch=2 * mels
    )


@pytest.mark.parametrize(("mels", "tied", "copies"), [(0, True, 2), (0, False, 1), (3, True, 1), (3, False, 0)])
def test_each_end_of_a_pipeline_that_needs_the_words_has_them(mels, tied, copies):
    """Where the encoder reads words, where the decoder begins, and where the head is the same table."""
    found = _pair(mels, tied)
    common, _ = parameters_of(found, [2, 2, 2, 2], 4)
    assert common.sum() == found.parameters + copies * WORDS * HIDDEN
    assert common[2] >= 2 * found.stacks[1][1].parameters + found.join_parameters
    assert parameters_of(found, [8], 1)[0].sum() == found.parameters


def test_what_goes_from_stage_to_stage_and_what_is_kept_of_it():
    """With all else made again, a rank keeps what entered its layers, and what they attend to, of each microbatch.
    What goes on to the next stage of a decoder is both."""
    training = Training(_pair(), 64, READ)
    layouts = columns_of([Layout(tensor=2, pipeline=4, microbatch=2, recompute="full")])
    token = 2 * HIDDEN * 2 / 2  # of two sequences in bf16, on one of two ranks
    assert entering(training, layouts, training.model.between(READ)) == [(READ + WRITTEN) * token]
    shape = PipelineShape(training, layouts, np.arange(1), 4, 1, None)
    assert shape.join == 2
    np.testing.assert_array_equal(shape.entered, [[2 * READ * token] * 2 + [2 * WRITTEN * token] * 2])
    np.testing.assert_array_equal(shape.encoder_outputs, [[0, 0, READ * token, READ * token]])


SMALL = {
    "model_type": "t5",
    "d_model": 256,
    "num_heads": 4,
    "d_kv": 64,
    "d_ff": 512,
    "num_layers": 2,
    "vocab_size": 1024,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pairs")


def _plan(folder, fixed, config=SMALL):
    asked = from_config(config, "small")
    fixed = pinned("mb=1,zero=1,overlap=1," + fixed)
    return plan(Question(asked, 1e9, ("trn1.32xlarge",), (1, 1), batch=128, sequence=256, fixed=fixed), folder)


def test_layouts_of_a_small_one_add_up(folder):
    found = _plan(folder, "vp=1,tp=1,cp=1")
    assert len(found) + sum(found.refused.values()) == found.looked_at
    assert {c.step.layout.pipeline for c in found.best(100)} == {1, 2, 4}
    for c in found.best(100):
        assert c.step.total == pytest.approx(sum(c.step.seconds[cause] for cause in CAUSES))
        assert sum(c.step.bytes[name] for name in CLASSES) <= c.step.room
        per_token = found.question.model.flops_per_token(256)
        assert c.step.flops == pytest.approx(per_token * c.step.tokens, rel=0.05)  # hidden pairs counted


def test_what_nobody_compared_has_a_band_beside_its_roofline():
    found = from_config(SMALL, "small")
    side = gpu_contender(work_of(found, 128, 256), "p4d.24xlarge", 1)
    assert not side.known
    assert any("an encoder with a decoder" in line for line in side.basis)
    assert "roofline" in side.basis[-1]
    job = TrainingWork(found, Layout(data=8), catalogue.instance("p4d.24xlarge"), 128, 256)
    longer = replace(job, model=replace(found, decoded=2 * found.decoded))
    assert roofline.step(job).total < roofline.step(longer).total
    assert roofline.step(job).bytes["activations"] < roofline.step(longer).bytes["activations"]


@pytest.mark.parametrize(("config", "unit", "each"), [(T5, "tokens", 1), (WHISPER, "clips", READ)])
def test_sound_is_counted_in_clips(config, unit, each):
    found = from_config(config, "small")
    work = work_of(found, 128, READ)
    assert (work.unit, work.batch) == (unit, 128 * READ // each)
    assert work.flops == pytest.approx(found.flops_per_token(READ) * each)


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        ("tp=1,cp=2", "context parallel ranks share sequences of one stack"),
        ("tp=1,cp=1,pp=2,vp=2", "interleaved stages of an encoder and its decoder"),
    ],
)
def test_layouts_that_pairs_have_not(fixed, said, folder):
    with pytest.raises(UsageError, match="TRN174") as caught:
        _plan(folder, fixed).chosen  # noqa: B018
    assert said in str(caught.value)


def test_what_is_decoded_is_divided_as_well(folder):
    with pytest.raises(UsageError, match="TRN174") as caught:
        _plan(folder, "tp=4,cp=1", SMALL | {"decoder_length": 114}).chosen  # noqa: B018
    assert "do not divide what is decoded" in str(caught.value)
