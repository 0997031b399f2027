# SPDX-License-Identifier: Apache-2.0
"""Programs that serve compute what the model means: tokens and logits of a plain forward pass, on the simulated chip,
on one rank and on two; and their times and bytes keep to what memory allows."""

from __future__ import annotations

import numpy as np
import pytest

from trnlab import chips
from trnlab.compiler import compile
from trnlab.errors import UsageError
from trnlab.fabric.world import World, together
from trnlab.fleet.layers.shares import heads_of_rank
from trnlab.fleet.layers.sizes import ActivatedMlp, Attention, Dense, Experts
from trnlab.fleet.models import configurations
from trnlab.fleet.models.architectures.gemma import GemmaModel
from trnlab.fleet.models.blocks import ParallelBlock, SandwichBlock
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.serving.costs import ServingCosts
from trnlab.fleet.serving.graphs import MASKED, decode, prefill, supported
from trnlab.fleet.serving.layers import ServingProgram
from trnlab.fleet.serving.offers import bytes_of
from trnlab.runtime.session import Session
from trnlab.sim.functional import run_program

torch = pytest.importorskip("torch")
F = torch.nn.functional
WORDS, HIDDEN, PLACES, LAYERS, ANSWER = 40, 32, 16, 2, 6
PROMPTS = ((3, 17, 5, 30, 8), (1, 2, 39))
CHIP = chips.get("trn1")


def _llama() -> Model:
    block = Block(HIDDEN, Attention(4, 2, 8, 8), Dense(48))
    return Model("small", HIDDEN, ((LAYERS, block),), PLACES, WORDS)


def _gpt() -> Model:
    attention = Attention(4, 4, 8, 8, rope=False, bias="all")
    block = Block(HIDDEN, attention, Dense(48, gated=False, bias=True), "layer")
    return Model("small", HIDDEN, ((LAYERS, block),), PLACES, WORDS, PLACES)


def _mixture() -> Model:
    block = Block(HIDDEN, Attention(4, 2, 8, 8), Experts(6, 2, 12, shared=8))
    return Model("small", HIDDEN, ((LAYERS, block),), PLACES, WORDS)


def _neox() -> Model:
    attention = Attention(4, 4, 8, 8, bias="all", rope_size=4)
    network = Dense(48, gated=False, bias=True)
    block = ParallelBlock(HIDDEN, attention, network, "layer", norms=2)
    return Model("small", HIDDEN, ((LAYERS, block),), PLACES, WORDS)


def _phi() -> Model:
    attention = Attention(4, 2, 8, 8, bias="all", rope_size=4)
    block = ParallelBlock(HIDDEN, attention, Dense(48, gated=False, bias=True), "layer")
    return Model("small", HIDDEN, ((LAYERS, block),), PLACES, WORDS, head_bias=True)


def _gemma() -> Model:
    network = ActivatedMlp(48, gated=True, function="gelu")
    block = SandwichBlock(HIDDEN, Attention(4, 2, 8, 8, norms=True, softcap=2.0), network)
    return GemmaModel("small", HIDDEN, ((LAYERS, block),), PLACES, WORDS, softcap=3.0)


def _opt() -> Model:
    network = ActivatedMlp(48, gated=False, bias=True, function="relu")
    block = Block(HIDDEN, Attention(4, 4, 8, 8, rope=False, bias="all"), network, "layer")
    return Model("small", HIDDEN, ((LAYERS, block),), PLACES, WORDS, PLACES)


def _angles():
    found = {}
    for size in (4, 8):
        turns = np.outer(np.arange(PLACES), 100.0 ** (-np.arange(size // 2) / (size // 2)))
        both = ("cosines", np.cos), ("sines", np.sin)
        found |= {f"{n}_{size}": np.tile(f(turns), 2).astype(np.float32) for n, f in both}
    return found


def _weights(model):
    random, found = np.random.default_rng(5), _angles()
    for value in decode(model, LAYERS, ServingProgram(1, PLACES, form="float32")).inputs:
        if value.name not in found and value.name not in ("ids", "places", "held") and "_keys" not in value.name:
            found[value.name] = random.standard_normal(value.shape).astype(np.float32) * 0.3
    return found


def _plain(model, w, ids, routes=None):
    """Logits of the last of these tokens, by PyTorch's functions over all of them. routes: is told which experts the
    tokens of each layer go to."""
    w = {name: torch.from_numpy(value).double() for name, value in w.items()}
    block, n = model.stacks[0][1], len(ids)
    a, gemma = block.attention, isinstance(model, GemmaModel)
    x = w["table"][list(ids)] * (HIDDEN**0.5 if gemma else 1) + (w["positions"][:n] if model.positions else 0)
    for i in range(LAYERS):
        name = f"block_{i}_"
        linear = lambda y, m: y @ w[name + m] + w.get(name + m + "_bias", 0)  # noqa: B023, E731
        y = _normed(x, w, name + "1")
        q, k, v = (linear(y, m).unflatten(-1, (-1, 8)).transpose(0, 1) for m in "qkv")
        if a.norms:
            q, k = (F.rms_norm(t, (8,), w[f"{name}{m}_norm_scale"], 1e-5) for t, m in ((q, "q"), (k, "k")))
        if a.rope:
            q, k = (_turned(t, w, a.rope_size or 8) for t in (q, k))
        attended = linear(_attended(a, q, k, v).transpose(0, 1).flatten(1), "o")
        if isinstance(block, ParallelBlock):
            z = _normed(x, w, name + "2") if block.norms > 1 else y
            x = x + attended + linear(F.gelu(linear(z, "up")), "down")
            continue
        x = x + (_normed(attended, w, name + "1_after") if gemma else attended)
        y = _normed(x, w, name + "2")
        if name + "router" in w:
            if routes is not None:
                routes.append(_choices(model.stacks[0][1].network, w, name, y)[0].numpy())
            x = x + _routed(model.stacks[0][1].network, w, name, y)
            continue
        function = getattr(F, block.network.function)
        gated = name + "gate" in w
        inner = function(linear(y, "gate")) * linear(y, "up") if gated else function(linear(y, "up"))
        inner = linear(inner, "down")
        x = x + (_normed(inner, w, name + "2_after") if gemma else inner)
    logits = (_normed(x, w, "final") @ w["head"])[-1] + w.get("head_bias", 0)
    return model.softcap * torch.tanh(logits / model.softcap) if gemma else logits


def _turned(x, w, part):
    """The first columns of heads [N, T, D], by the angles of their places."""
    t, n, half = x[..., :part], x.shape[1], part // 2
    swapped = torch.cat([-t[..., half:], t[..., :half]], -1)
    return torch.cat([t * w[f"cosines_{part}"][:n] + swapped * w[f"sines_{part}"][:n], x[..., part:]], -1)


def _attended(a, q, k, v):
    if not a.softcap:
        return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]
    k, v = (t.repeat_interleave(q.shape[0] // t.shape[0], 0) for t in (k, v))
    scores = a.softcap * torch.tanh(q @ k.transpose(1, 2) * 8**-0.5 / a.softcap)
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v


def _choices(experts, w, name, y):
    """Experts of each row and their weights, the largest first."""
    tops, which = torch.softmax(y @ w[name + "router"], -1).topk(experts.active)
    return which, tops / tops.sum(-1, keepdim=True)


def _routed(experts, w, name, y):
    which, shares = _choices(experts, w, name, y)
    gate, up = (w[name + part].unflatten(1, (experts.count, -1)) for part in ("gate", "up"))
    down, rows = w[name + "down"].unflatten(0, (experts.count, -1)), []
    for row, chosen, share in zip(y, which, shares):
        each = [(F.silu(row @ gate[:, e]) * (row @ up[:, e])) @ down[e] for e in chosen]
        rows.append(sum(part * one for part, one in zip(share, each)))
    shared = (F.silu(y @ w[name + "shared_gate"]) * (y @ w[name + "shared_up"])) @ w[name + "shared_down"]
    return torch.stack(rows) + shared


def _normed(x, w, name):
    if name + "_shift" in w:
        return F.layer_norm(x, (HIDDEN,), w[name + "_scale"], w[name + "_shift"])
    return F.rms_norm(x, (HIDDEN,), w[name + "_scale"], 1e-5)


def _wanted(model, w):
    """Tokens and their logits, greedily, each by a forward pass over all before it."""
    tokens, logits = [], []
    for prompt in PROMPTS:
        ids = list(prompt)
        for _ in range(ANSWER):
            row = _plain(model, w, ids)
            ids.append(int(row.argmax()))
            logits.append(float(row.max()))
        tokens.append(ids[len(prompt) :])
    return tokens, np.array(logits).reshape(len(PROMPTS), ANSWER)


class _Engine:
    """Executes both programs on ranks of the simulated chip, and keeps the cache."""

    def __init__(self, model, w, tensor, expert=1):
        self.model, self.tensor, self.world = model, tensor, World("trn1.2xlarge", tensor)
        self.network, self.expert = model.stacks[0][1].network, expert
        groups = (tuple(range(tensor)),)
        self.graphs = {
            "prefill": prefill(model, LAYERS, ServingProgram(1, 8, tensor, "float32", expert), groups),
            "decode": decode(model, LAYERS, ServingProgram(len(PROMPTS), PLACES, tensor, "float32", expert), groups),
        }
        options = {"precision": "fp32", "cluster": self.world.cluster_name, "ranks": tensor}
        self.programs = {name: compile(graph, CHIP, options) for name, graph in self.graphs.items()}
        self.weights = [{n: self._part(n, v, rank) for n, v in w.items()} for rank in range(tensor)]
        shared = model.stacks[0][1].attention.kv_heads // tensor
        self.cache = [
            {
                f"block_{i}_{n}": np.zeros((len(PROMPTS), shared, *shape), np.float32)
                for i in range(LAYERS)
                for n, shape in (("keys", (8, PLACES)), ("values", (PLACES, 8)))
            }
            for _ in range(tensor)
        ]

    def _part(self, name, value, rank):
        kind = name.split("_", 2)[-1] if name.startswith("block") else name
        if isinstance(self.network, Experts) and kind in ("router", "gate", "up", "down"):
            return self._of_experts(kind, value, rank)
        if kind in ("o", "down", "shared_down"):
            return np.ascontiguousarray(np.split(value, self.tensor, 0)[rank])
        if kind in ("q", "k", "v", "gate", "up", "head", "shared_gate", "shared_up"):
            return np.ascontiguousarray(np.split(value, self.tensor, 1)[rank])
        if kind in ("q_bias", "k_bias", "v_bias", "up_bias", "head_bias"):
            return np.ascontiguousarray(np.split(value, self.tensor, 0)[rank])
        return value

    def _of_experts(self, kind, value, rank):
        """The router with this rank's experts first; of those its part of the columns."""
        here, inside = self.network.count // self.expert, self.tensor // self.expert
        group, part = rank // inside, rank % inside
        if kind == "router":
            return np.roll(value, -group * here, 1).copy()
        axis = 0 if kind == "down" else 1
        apart = value.reshape((-1, self.network.size, HIDDEN) if axis == 0 else (HIDDEN, -1, self.network.size))
        mine = np.split(np.split(apart, self.expert, axis)[group], inside, axis + 1)[part]
        return np.ascontiguousarray(mine.reshape((-1, HIDDEN) if axis == 0 else (HIDDEN, -1)))

    def standing(self, rank, routes):
        """Where the rows of a prompt stand in buffers of eight rows for each of a rank's experts."""
        here, found = self.network.count // self.expert, {}
        first = rank // (self.tensor // self.expert) * here
        for i, route in enumerate(routes):
            token, places = np.zeros(here * 8, np.int32), np.full((8, self.network.active), here * 8, np.int32)
            filled = [0] * here
            for row, chosen in enumerate(route):
                for k, expert in enumerate(chosen - first):
                    if 0 <= expert < here:
                        places[row, k] = expert * 8 + filled[expert]
                        token[places[row, k]] = row
                        filled[expert] += 1
            found |= {f"block_{i}_token": token, f"block_{i}_places": places}
        return found

    def run(self, name, routes=(), **given):
        """Outputs of each rank."""
        graph, program = self.graphs[name], self.programs[name]

        def one(ranks):
            named = self.weights[ranks.rank] | self.cache[ranks.rank] | given
            named |= self.standing(ranks.rank, routes) if routes else {}
            outputs = [np.zeros(v.shape, v.dtype.numpy) for v in graph.outputs]
            inputs = [np.ascontiguousarray(named[v.name]) for v in graph.inputs]
            bound = dict(zip(program.outputs, outputs)) | dict(zip(program.inputs, inputs))
            run_program(program, bound, CHIP, ranks=ranks)
            return outputs

        return together(self.world, one)

    def chosen(self, outputs):
        """The likeliest words over all ranks, and their logits."""
        logits = np.stack([rank[-2] for rank in outputs])
        words = np.stack([rank[-1] + i * (WORDS // self.tensor) for i, rank in enumerate(outputs)])
        best = logits.argmax(0)
        return np.take_along_axis(words, best[None], 0)[0].astype(int), logits.max(0)

    def keep(self, outputs, rows, places):
        """Put keys and values at their places of the cache; places: of each row, where its part begins and ends."""
        for rank, found in enumerate(outputs):
            for i in range(LAYERS):
                for out, (row, (first, last)) in enumerate(zip(rows, places)):
                    keys, values = found[2 * i][out], found[2 * i + 1][out]
                    self.cache[rank][f"block_{i}_keys"][row, :, :, first:last] = keys[:, :, : last - first]
                    self.cache[rank][f"block_{i}_values"][row, :, first:last] = values[:, : last - first]


def _generate(engine, w=None):
    """w: weights by which the prompts' rows find their experts."""
    tokens, logits = [[] for _ in PROMPTS], [[] for _ in PROMPTS]
    lengths = [len(p) for p in PROMPTS]

    def take(words, tops, rows):
        for word, top, row in zip(words, tops, rows):
            tokens[row].append(int(word))
            logits[row].append(float(top))

    for row, prompt in enumerate(PROMPTS):
        padded = np.array([*prompt, *[0] * (8 - len(prompt))], np.int32)
        routes = []
        if w is not None:
            _plain(engine.model, w, prompt, routes)
        outputs = engine.run("prefill", routes, ids=padded, last=np.array([len(prompt) - 1], np.int32))
        engine.keep(outputs, [row], [(0, len(prompt))])
        take(*engine.chosen(outputs), [row])
    for _ in range(ANSWER - 1):
        held = np.where(np.arange(PLACES) < np.array(lengths)[:, None], 0.0, MASKED).astype(np.float32)
        outputs = engine.run(
            "decode", ids=np.array([t[-1] for t in tokens], np.int32), places=np.array(lengths, np.int32), held=held
        )
        engine.keep(outputs, range(len(PROMPTS)), [(n, n + 1) for n in lengths])
        take(*engine.chosen(outputs), range(len(PROMPTS)))
        lengths = [n + 1 for n in lengths]
    return tokens, np.array(logits)


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize(
    "model",
    [_llama(), _gpt(), _neox(), _phi(), _gemma(), _opt()],
    ids=["as Llama", "as GPT-2", "as GPT-NeoX", "as Phi", "as Gemma 2 and 3", "as OPT"],
)
def test_generated_tokens_are_those_of_plain_forward_passes(model, tensor):
    """Two prompts of different lengths in one batch: every token, and its logit to five digits."""
    w = _weights(model)
    tokens, logits = _generate(_Engine(model, w, tensor))
    wanted, expected = _wanted(model, w)
    assert tokens == wanted
    np.testing.assert_allclose(logits, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("model", [_llama(), _neox()], ids=["as Llama", "as GPT-NeoX"])
def test_a_chunk_of_a_prompt_is_its_part_of_the_whole(model):
    """Keys, values and the likeliest word of the last eight of sixteen tokens, with the cache of the first."""
    w, ids = _weights(model), np.arange(PLACES, dtype=np.int32) * 7 % WORDS

    def run(share, **given):
        graph = prefill(model, LAYERS, share)
        program = compile(graph, CHIP, {"precision": "fp32"})
        outputs = [np.zeros(v.shape, v.dtype.numpy) for v in graph.outputs]
        inputs = [np.ascontiguousarray((w | given)[v.name]) for v in graph.inputs]
        run_program(program, dict(zip(program.outputs, outputs)) | dict(zip(program.inputs, inputs)), CHIP)
        return outputs

    whole = run(ServingProgram(1, PLACES, form="float32"), ids=ids, last=np.array([PLACES - 1], np.int32))
    half, kept = PLACES // 2, {}
    for i in range(LAYERS):
        kept[f"block_{i}_keys"], kept[f"block_{i}_values"] = whole[2 * i][..., :half], whole[2 * i + 1][:, :, :half]
    places, last = np.arange(half, PLACES, dtype=np.int32), np.array([half - 1], np.int32)
    chunk = run(
        ServingProgram(1, half, form="float32", before=half), ids=ids[half:], places=places, last=last, **kept
    )
    for i in range(LAYERS):
        np.testing.assert_allclose(chunk[2 * i], whole[2 * i][..., half:], rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(chunk[2 * i + 1], whole[2 * i + 1][:, :, half:], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(chunk[-2], whole[-2], rtol=2e-5)
    assert chunk[-1] == whole[-1]


@pytest.mark.parametrize(("tensor", "expert"), [(1, 1), (2, 1), (2, 2)])
def test_mixtures_generate_the_tokens_of_plain_forward_passes(tensor, expert):
    """Experts whole, their columns divided, and divided among ranks: every token, and its logit to five digits."""
    model = _mixture()
    w = _weights(model)
    tokens, logits = _generate(_Engine(model, w, tensor, expert), w)
    wanted, expected = _wanted(model, w)
    assert tokens == wanted
    np.testing.assert_allclose(logits, expected, rtol=2e-5, atol=2e-5)


@pytest.fixture(scope="module")
def costs():
    return ServingCosts(Session(chips.target("inf2.xlarge")))


MEDIUM = Model("medium", 256, ((4, Block(256, Attention(4, 2, 64, 64), Dense(512))),), 512, 1024)


def test_a_step_takes_no_less_than_reading_weights_and_cache(costs):
    """Time of a decoding step against bytes over the memory's bandwidth; more of a batch and of a cache take longer,
    and less for each request."""
    before = None
    for batch, places in ((1, 128), (4, 128), (4, 512)):
        share = ServingProgram(batch, places)
        weights, cache = bytes_of(MEDIUM, share)
        table = 2 * MEDIUM.vocabulary * MEDIUM.hidden  # of which only rows are read; and of the angles
        angles = 2 * 2 * MEDIUM.sequence * 64
        read = weights - table - angles + batch * cache
        seconds = costs.of("decode", MEDIUM, share).seconds
        assert seconds >= read / costs.session.chip.hbm.bandwidth.value
        assert before is None or seconds > before
        before = seconds
    assert (
        costs.of("decode", MEDIUM, ServingProgram(4, 128)).seconds
        < 4 * costs.of("decode", MEDIUM, ServingProgram(1, 128)).seconds
    )


def test_bytes_are_those_of_the_model():
    """Weights of one rank: the model's own, less what tensor parallel ranks share; the cache: two vectors a layer."""
    model = configurations.model("llama3-8b")
    angles = 2 * 2 * model.sequence * 128
    weights, cache = bytes_of(model, ServingProgram(1, 2304))
    assert weights == 2 * model.parameters + angles
    assert cache == 2 * 32 * 2 * 8 * 128 * 2304
    parts, part = bytes_of(model, ServingProgram(1, 2304, 8))
    assert part == cache // 8
    table, norms = 2 * model.vocabulary * model.hidden, 2 * (2 * model.layers + 1) * model.hidden
    assert parts - table - norms - angles == (weights - table - norms - angles) // 8


def test_weights_that_are_stored_in_a_byte():
    """All matrices of blocks, with a number in float32 for each of their columns; all else stays."""
    model, half = configurations.model("llama3-8b"), 2 * 128256 * 4096
    block = model.stacks[0][1].parameters - 2 * 4096
    (plain, cache), (stored, same) = (bytes_of(model, ServingProgram(1, 2304, stored=s)) for s in ("", "int8"))
    columns = 4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096
    assert stored == plain - model.layers * (block - 4 * columns)
    assert cache == same
    assert stored > half


def test_heads_that_ranks_do_not_divide_are_filled_up():
    """As NxD Inference does: Llama-2-7B's 32 heads on 24 ranks are 48, Llama-3-70B's 64 and 8 are 72 and 24."""
    assert heads_of_rank(32, 32, 24) == (2, 2)
    assert heads_of_rank(64, 8, 24) == (3, 1)
    assert heads_of_rank(64, 8, 32) == (2, 1)
    assert heads_of_rank(40, 40, 32) == (2, 2)
    graph = decode(_llama(), 1, ServingProgram(2, PLACES, 3), ((0, 1, 2),))
    shapes = {v.name: v.shape for v in graph.inputs}
    assert shapes["block_0_q"] == shapes["block_0_k"] == (HIDDEN, 16)
    assert shapes["block_0_up"] == (HIDDEN, 16)


def test_costs_are_kept_and_a_broken_file_is_none(tmp_path):
    share, session = ServingProgram(1, 128), Session(chips.target("inf2.xlarge"))
    found = ServingCosts(session, tmp_path).of("decode", MEDIUM, share)
    again = ServingCosts(session, tmp_path)
    assert again.of("decode", MEDIUM, share) == found
    assert again.compiled == 0
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"{")
    broken = ServingCosts(session, tmp_path)
    assert broken.of("decode", MEDIUM, share) == found
    assert broken.compiled == 2


def test_ranks_add_up_twice_a_layer():
    graph = decode(_llama(), 1, ServingProgram(2, PLACES, 2), ((0, 1),))
    assert sum(op.name == "all_reduce" for op in graph.ops) == 2
    assert next(v.shape for v in graph.inputs if v.name == "block_0_keys") == (2, 1, 8, PLACES)


@pytest.mark.parametrize("name", ["bert-large", "deepseek-v3", "whisper-small"])
def test_models_without_programs_are_refused(name):
    with pytest.raises(UsageError, match="TRN167"):
        supported(configurations.model(name))
