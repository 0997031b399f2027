# SPDX-License-Identifier: Apache-2.0
"""Programs of an encoder and its decoder generate what plain forward passes of T5 do, on the simulated chip."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab import chips
from trnlab.compiler import compile
from trnlab.fleet.layers.sizes import ActivatedMlp, Attention, RelativeAttention
from trnlab.fleet.models import configurations
from trnlab.fleet.models.encoder_decoder import DecoderBlock, EncoderDecoderModel
from trnlab.fleet.models.transformer import Block
from trnlab.fleet.serving.graphs import MASKED, cross, decode, encode
from trnlab.fleet.serving.layers import ServingProgram
from trnlab.fleet.serving.offers import bytes_of
from trnlab.sim.functional import run_program

torch = pytest.importorskip("torch")
WORDS, HIDDEN, READ, PLACES, LAYERS, ANSWER, BUCKETS, START = 40, 32, 8, 8, 2, 5, 6, 0
PROMPTS = ((3, 17, 5, 30, 8), (1, 2, 39))
CHIP = chips.get("trn1")
NAMES = ("ids", "places", "held", "seen", "buckets", "encoded")


def _model() -> EncoderDecoderModel:
    network = ActivatedMlp(48, gated=False, function="relu")
    own, masked = (RelativeAttention(4, 4, 8, 8, causal=c, rope=False, buckets=BUCKETS) for c in (False, True))
    plain = Attention(4, 4, 8, 8, causal=False, rope=False)
    stacks = (
        (LAYERS, Block(HIDDEN, own, network)),
        (LAYERS, DecoderBlock(HIDDEN, masked, network, cross=plain)),
    )
    return EncoderDecoderModel("small", HIDDEN, stacks, READ, WORDS)


MODEL = _model()
MAKERS = {"encode": encode, "cross": cross, "decode": decode}
SHARE = ServingProgram(len(PROMPTS), PLACES, form="float32", memory=READ)


def _weights():
    random, found = np.random.default_rng(5), {}
    for make in MAKERS.values():
        for value in make(MODEL, LAYERS, SHARE).inputs:
            if value.name not in (*NAMES, *found) and not value.name.endswith(("_keys", "_values")):
                found[value.name] = random.standard_normal(value.shape).astype(np.float32) * 0.3
    return found


def _bucket(distance):
    """Any function of the distance serves; that of the token itself is the first row."""
    return np.minimum(np.abs(distance), BUCKETS - 1).astype(np.int32)


def _normed(x, w, name):
    return torch.nn.functional.rms_norm(x, (HIDDEN,), w[name + "_scale"], 1e-5)


def _attended(w, name, x, read, bias, scale, causal):
    q, k, v = ((y @ w[name + m]).unflatten(-1, (-1, 8)).transpose(0, 1) for m, y in zip("qkv", (x, read, read)))
    scores = q @ k.transpose(1, 2) * scale + bias
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -torch.inf)
    return (torch.softmax(scores, -1) @ v).transpose(0, 1).flatten(1) @ w[name + "o"]


def _network(w, name, x):
    return torch.relu(_normed(x, w, name + "2") @ w[name + "up"]) @ w[name + "down"]


def _by_distance(table, n):
    places = np.arange(n)
    return table[torch.from_numpy(_bucket(places[:, None] - places)).long()].permute(2, 0, 1)


def _plain(w, prompt, written):
    """Logits of the next word."""
    w = {name: torch.from_numpy(value).double() for name, value in w.items()}
    x = w["table"][list(prompt)]
    for i in range(LAYERS):
        y, name = _normed(x, w, f"encoder_{i}_1"), f"encoder_{i}_"
        x = x + _attended(w, name, y, y, _by_distance(w["read_distances"], len(prompt)), 1.0, False)
        x = x + _network(w, name, x)
    read, x = _normed(x, w, "read"), w["table"][list(written)]
    for i in range(LAYERS):
        y, name = _normed(x, w, f"block_{i}_1"), f"block_{i}_"
        x = x + _attended(w, name, y, y, _by_distance(w["distances"], len(written)), 1.0, True)
        y = _normed(x, w, f"block_{i}_cross")
        x = x + _attended(w, name + "cross_", y, read, 0.0, 8**-0.5, False)
        x = x + _network(w, name, x)
    return (_normed(x, w, "final") @ w["head"])[-1]


def _run(kind, given, share=SHARE):
    graph = MAKERS[kind](MODEL, LAYERS, share)
    program = compile(graph, CHIP, {"precision": "fp32"})
    outputs = [np.zeros(v.shape, v.dtype.numpy) for v in graph.outputs]
    inputs = [np.ascontiguousarray(given[v.name]) for v in graph.inputs]
    run_program(program, dict(zip(program.outputs, outputs)) | dict(zip(program.inputs, inputs)), CHIP)
    return outputs


def test_generated_tokens_are_those_of_plain_forward_passes():
    """The encoder once, the decoder's second cache once, then steps of both prompts together."""
    w, many = _weights(), len(PROMPTS)
    shapes = {"keys": (many, 4, 8, PLACES), "values": (many, 4, PLACES, 8)}
    caches = {f"block_{i}_{n}": np.zeros(s, np.float32) for i in range(LAYERS) for n, s in shapes.items()}
    caches |= {f"block_{i}_cross_{n}": np.zeros(s, np.float32) for i in range(LAYERS) for n, s in shapes.items()}
    seen = np.where(np.arange(READ) < [[len(p)] for p in PROMPTS], 0.0, MASKED).astype(np.float32)
    places = np.arange(READ)
    for row, prompt in enumerate(PROMPTS):
        ids = np.array([*prompt, *[0] * (READ - len(prompt))], np.int32)
        (encoded,) = _run("encode", w | {"ids": ids, "seen": seen[row], "buckets": _bucket(places[:, None] - places)})
        found = _run("cross", w | {"encoded": encoded})
        for i in range(LAYERS):
            caches[f"block_{i}_cross_keys"][row], caches[f"block_{i}_cross_values"][row] = (
                found[2 * i][0],
                found[2 * i + 1][0],
            )
    written = [[START] for _ in PROMPTS]
    for step in range(ANSWER):
        held = np.broadcast_to(np.where(np.arange(PLACES) < step, 0.0, MASKED), (many, PLACES)).astype(np.float32)
        given = {"held": held, "seen": seen, "places": np.full(many, step, np.int32)}
        given["ids"] = np.array([words[-1] for words in written], np.int32)
        given["buckets"] = np.broadcast_to(_bucket(step - np.arange(PLACES)), (many, PLACES)).copy()
        *kept, tops, words = _run("decode", w | caches | given)
        for i in range(LAYERS):
            caches[f"block_{i}_keys"][..., step] = kept[2 * i][..., 0]
            caches[f"block_{i}_values"][:, :, step] = kept[2 * i + 1][:, :, 0]
        for row, prompt in enumerate(PROMPTS):
            wanted = _plain(w, prompt, written[row])
            np.testing.assert_allclose(tops[row], float(wanted.max()), rtol=2e-5, atol=2e-5)
            assert int(words[row]) == int(wanted.argmax())
            written[row].append(int(words[row]))


def test_bytes_are_those_of_both_stacks():
    """Weights: the model's own, and a copy of the words as the head multiplies by them; caches: of what was read and
    of what is written, in each of the decoder's layers."""
    model = configurations.model("t5-base")
    weights, cache = bytes_of(model, ServingProgram(1, 256, memory=512))
    assert weights == 2 * (model.parameters + model.vocabulary * model.hidden)
    assert cache == 2 * 12 * 2 * 12 * 64 * (256 + 512)
