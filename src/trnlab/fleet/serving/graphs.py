# SPDX-License-Identifier: Apache-2.0
"""One rank's programs of a model that generates: prefill of one prompt, and one decoding step of a batch.

Both read the same weights, [in, out] as products take them, and the same cache: keys [B, G, D, L], since scores
contract D, and values [B, G, L, D]. A decoding step reads the cache and its own key and value, and gives these as
outputs, which are put at their place in the cache. Ranks of a tensor group have their part of the heads and columns,
and add up.

B sequences, L places of the cache, P tokens of a prompt, H hidden size, N heads, G of keys, D their size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trnlab.collectives import Groups
from trnlab.errors import UsageError
from trnlab.fleet.layers.sizes import Dense, Experts
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.serving.mixtures import Mixture
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Value
from trnlab.numerics.dtypes import DType, dtype, float32, int32

EPSILON = 1e-5
MASKED = -30000.0  # of a place of the cache that holds nothing: its weight is 0 in float32


@dataclass(frozen=True)
class Program:
    """What one rank runs. batch sequences; length: tokens of the prompt, or places of the cache; tensor: ranks that
    share each layer; expert: of these, ranks among which a layer's experts are divided, and those of one part share
    the columns of each. read: experts that a rank reads, room: rows of each; 0 for all that there may be."""

    batch: int
    length: int
    tensor: int = 1
    form: str = "bfloat16"
    expert: int = 1
    read: int = 0
    room: int = 0


def supported(model: Model) -> None:
    """Raises UsageError (TRN167) for a model that does not generate text, or whose layers are not made here."""
    why = None
    blocks = [block for _, block in model.stacks]
    if not model.vocabulary or any(not block.attention.causal for block in blocks):
        why = "it does not generate tokens"
    elif any(block.attention.kv_rank for block in blocks):
        why = "its keys are compressed (multi-head latent attention)"
    if why is not None:
        raise UsageError(
            f"programs that serve {model.name} cannot be made: {why}",
            code="TRN167",
            got=model.name,
            limit="decoders with keys for each head or group of heads",
            remedy="plan a decoder without it that has as many parameters as a token meets",
        )


def prefill(model: Model, blocks: int, share: Program, groups: Groups = ()) -> Graph:
    """A prompt of `length` tokens, padded: inputs are ids [P], the place of the last token [1] and weights; outputs
    keys [1, G, D, P] and values [1, G, P, D] of each layer, the largest logit of this rank's words, its number."""
    made = _Layers(GraphBuilder(f"{model.name}_prefill"), model, share, groups)
    b, length = made.b, share.length
    x = made.embedding(b.input("ids", (length,), int32), b.iota((length,), int32))
    for i, block in enumerate(_first(model, blocks)):
        x = made.block(f"block_{i}", block, x, None)
    made.head(b.take_rows(x, b.input("last", (1,), int32)))
    return b.build()


def decode(model: Model, blocks: int, share: Program, groups: Groups = ()) -> Graph:
    """One token of each of `batch` sequences: inputs are ids [B], their places [B], which places of the cache hold
    something, as 0 or MASKED [B, L], the cache and weights; outputs as those of `prefill`, for one place."""
    made = _Layers(GraphBuilder(f"{model.name}_decode"), model, share, groups)
    b, batch = made.b, share.batch
    ids, places = b.input("ids", (batch,), int32), b.input("places", (batch,), int32)
    held = b.input("held", (batch, share.length), float32)
    x = made.embedding(ids, places)
    for i, block in enumerate(_first(model, blocks)):
        x = made.block(f"block_{i}", block, x, held)
    made.head(x)
    return b.build()


def _first(model: Model, count: int) -> list[Block]:
    """So many blocks, of the stack that has most."""
    return [max(model.stacks, key=lambda stack: stack[0])[1]] * count


@dataclass
class _Layers:
    """Layers on rows of tokens: x [rows, H], of one prompt or of the sequences of a batch."""

    b: GraphBuilder
    model: Model
    share: Program
    groups: Groups
    angles: dict[int, tuple[Value, Value]] = field(default_factory=dict)

    @property
    def form(self) -> DType:
        return dtype(self.share.form)

    def part(self, n: int) -> int:
        """This rank's part of n heads or columns."""
        return max(n // self.share.tensor, 1)

    def weight(self, name: str, *shape: int) -> Value:
        return self.b.input(name, shape, self.form)

    def summed(self, x: Value) -> Value:
        """Over the ranks of the tensor group."""
        return self.b.all_reduce([x], self.groups)[0] if self.share.tensor > 1 else x

    def linear(self, name: str, x: Value, width: int, bias: bool = False) -> Value:
        """x [rows, K] -> [rows, width]."""
        y = self.b.dot_general(x, self.weight(name, x.shape[-1], width), ((1,), (0,)), dt=self.form)
        return self.b.add(y, self.weight(name + "_bias", width)) if bias else y

    def closing(self, name: str, x: Value, bias: bool) -> Value:
        """A product whose parts of all ranks add up; the bias is added once."""
        y = self.summed(self.linear(name, x, self.model.hidden))
        return self.b.add(y, self.weight(name + "_bias", self.model.hidden)) if bias else y

    def norm(self, name: str, x: Value, layer: bool) -> Value:
        b, width = self.b, x.shape[-1]
        wide = b.convert(x, float32)
        if layer:
            wide = b.subtract(wide, b.multiply(b.reduce(wide, (-1,), keepdims=True), 1 / width))
        square = b.multiply(b.reduce(b.multiply(wide, wide), (-1,), keepdims=True), 1 / width)
        y = b.multiply(b.multiply(wide, b.rsqrt(b.add(square, EPSILON))), self.wide(name + "_scale", width))
        return b.convert(b.add(y, self.wide(name + "_shift", width)) if layer else y, self.form)

    def wide(self, name: str, width: int) -> Value:
        return self.b.convert(self.weight(name, width), float32)

    def embedding(self, ids: Value, places: Value) -> Value:
        """Rows of the table, and what tells their places: rows of another table, or angles for each layer."""
        b, model = self.b, self.model
        x = b.take_rows(self.weight("table", model.vocabulary, model.hidden), ids)
        if model.positions:
            x = b.add(x, b.take_rows(self.weight("positions", model.positions, model.hidden), places))
        for _, block in model.stacks:
            size = block.attention.size
            if block.attention.rope and size not in self.angles:
                rows = max(self.share.length, model.sequence)
                tables = (b.input(f"{name}_{size}", (rows, size), self.form) for name in ("cosines", "sines"))
                cosine, sine = (b.take_rows(table, places) for table in tables)
                self.angles[size] = cosine, sine
        return x

    def block(self, name: str, block: Block, x: Value, held: Value | None) -> Value:
        """One layer; held: of a decoding step, which places of the cache hold something."""
        b, layer = self.b, block.norm == "layer"
        x = b.add(x, self.attention(name, block, self.norm(name + "_1", x, layer), held))
        y = self.norm(name + "_2", x, layer)
        if isinstance(block.network, Experts):
            return b.add(x, self.experts(name, block.network, y, held is None))
        inner, bias = self.opened(name, block.network, y), block.network.bias
        return b.add(x, self.closing(name + "_down", inner, bias))

    def opened(self, name: str, network: Dense, y: Value) -> Value:
        """Between the products of a network: [rows, columns of this rank]."""
        b, width = self.b, self.part(network.size)
        if network.gated:
            return b.multiply(b.silu(self.linear(name + "_gate", y, width)), self.linear(name + "_up", y, width))
        return b.gelu(self.linear(name + "_up", y, width, network.bias))

    def experts(self, name: str, network: Experts, y: Value, prompt: bool) -> Value:
        """Experts of all ranks, with the one that all tokens take."""
        share = self.share
        here = network.count // share.expert
        columns = network.size // (share.tensor // share.expert)
        mixture = Mixture(self, name, network, (here, share.read or here, share.room or y.shape[0], columns))
        mine = mixture.of_prompt(y) if prompt else mixture.of_batch(y)
        if network.shared:
            always = self.opened(name + "_shared", Dense(network.shared, network.gated), y)
            mine = self.b.add(mine, self.linear(name + "_shared_down", always, self.model.hidden))
        return self.summed(mine)

    def attention(self, name: str, block: Block, y: Value, held: Value | None) -> Value:
        a, b, rows = block.attention, self.b, y.shape[0]
        heads, shared, bias = self.part(a.heads), self.part(a.kv_heads), a.bias != "none"

        def projected(n: str, count: int, size: int) -> Value:
            return b.reshape(self.linear(f"{name}_{n}", y, count * size, bias), (rows, count, size))

        q, k, v = projected("q", heads, a.size), projected("k", shared, a.size), projected("v", shared, a.value_size)
        if a.norms:
            q, k = self.norm(f"{name}_q_norm", q, False), self.norm(f"{name}_k_norm", k, False)
        if a.rope:
            q, k = self.turned(q), self.turned(k)
        out = self.of_prompt(q, k, v) if held is None else self.of_step(name, q, k, v, held)
        return self.closing(name + "_o", out, a.bias == "all")

    def turned(self, x: Value) -> Value:
        """x [rows, N, D] by the angles of its rows."""
        b, half, (cosine, sine) = self.b, x.shape[-1] // 2, self.angles[x.shape[-1]]
        low, high = b.slice_dim(x, 2, 0, half), b.slice_dim(x, 2, half, 2 * half)
        spread = [b.broadcast_in_dim(angle, x.shape, (0, 2)) for angle in (cosine, sine)]
        return b.add(b.multiply(x, spread[0]), b.multiply(b.concatenate([b.negate(high), low], 2), spread[1]))

    def of_prompt(self, q: Value, k: Value, v: Value) -> Value:
        """Causal, over the prompt itself; keys and values become outputs in the form of the cache."""
        b, rows = self.b, q.shape[0]
        apart = [b.reshape(b.transpose(x, (1, 0, 2)), (1, x.shape[1], rows, x.shape[2])) for x in (q, k, v)]
        out, _ = b.attention(*apart, causal=True)
        b.output(b.transpose(apart[1], (0, 1, 3, 2)))
        b.output(apart[2])
        return b.reshape(b.transpose(b.reshape(out, out.shape[1:]), (1, 0, 2)), (rows, q.shape[1] * v.shape[2]))

    def of_step(self, name: str, q: Value, k: Value, v: Value, held: Value) -> Value:
        """Over the cache and the token's own key: softmax over both parts, whose largest score is subtracted."""
        b, share, (batch, shared, size), width = self.b, self.share, k.shape, v.shape[2]
        per = q.shape[1] // shared
        keys = self.weight(name + "_keys", batch, shared, size, share.length)
        values = self.weight(name + "_values", batch, shared, share.length, width)
        grouped, scale = b.reshape(q, (batch, shared, per, size)), size**-0.5
        pairs = ((0, 1), (0, 1))
        scores = b.multiply(b.dot_general(grouped, keys, ((3,), (2,)), pairs), scale)
        scores = b.add(scores, b.broadcast_in_dim(held, scores.shape, (0, 3)))
        own_key, own_value = (b.reshape(x, (batch, shared, 1, x.shape[2])) for x in (k, v))
        product = b.multiply(b.convert(grouped, float32), b.convert(own_key, float32))
        own = b.multiply(b.reduce(product, (-1,), keepdims=True), scale)
        top = b.maximum(b.reduce(scores, (-1,), "maximum", keepdims=True), own)
        weights, mine = b.exponential(b.subtract(scores, top)), b.exponential(b.subtract(own, top))
        total = b.add(b.reduce(weights, (-1,), keepdims=True), mine)
        old = b.dot_general(b.convert(weights, self.form), values, ((3,), (2,)), pairs)
        out = b.divide(b.add(old, b.multiply(mine, b.convert(own_value, float32))), total)
        b.output(b.reshape(own_key, (batch, shared, size, 1)))
        b.output(own_value)
        return b.convert(b.reshape(out, (batch, shared * per * width)), self.form)

    def head(self, x: Value) -> None:
        """The likeliest of this rank's words for each row: its logit and number, both float32, are outputs."""
        b, model = self.b, self.model
        if model.final_norm:
            x = self.norm("final", x, model.stacks[-1][1].norm == "layer")
        logits = b.convert(self.linear("head", x, -(-model.vocabulary // self.share.tensor)), float32)
        top = b.reduce(logits, (-1,), "maximum", keepdims=True)
        numbers = b.iota(logits.shape, float32, 1)
        first = b.select(b.compare(logits, "GE", top), numbers, float(np.float32(logits.shape[1])))
        b.output(b.reshape(top, (x.shape[0],)))
        b.output(b.reduce(first, (-1,), "minimum"))
