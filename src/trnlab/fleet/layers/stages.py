# SPDX-License-Identifier: Apache-2.0
"""The graph of one rank's step on one microbatch: some blocks of a model, with the embedding or the head."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from trnlab.errors import UsageError
from trnlab.fleet.layers import contexts, experts, latent, relative
from trnlab.fleet.layers.shares import Crossing, Rank, Share
from trnlab.fleet.layers.tape import Tape
from trnlab.fleet.models.encoder_decoder import STRIDE, Crossed, Pair, Relative
from trnlab.fleet.models.transformer import Attention, Block, Experts, Model
from trnlab.graph.ir import Graph, Value
from trnlab.numerics.dtypes import dtype, int32

JOIN, ENTRY = "join", "entry"  # what a stage has besides: what joins a decoder to its encoder; what each makes anew


@dataclass(frozen=True)
class Stage:
    """A graph of forward and backward.

    forward_end: the output that the forward pass ends with. weights, gradients: inputs and outputs that are
    parameters and their gradients; sharded: whether ranks have parts of both, which come and go, see `Share`.
    """

    graph: Graph
    forward_end: int
    weights: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    sharded: bool = False


def stage(
    model: Model,
    blocks: tuple[Block, ...],
    share: Share,
    ranks: int,
    first: bool = False,
    last: bool = False,
    also: str = "",
) -> Stage:
    """Forward and backward of some blocks of a model; `first` with the embedding, `last` with head and loss.

    ranks: all that work at the same time, in tensor groups of neighbours. also: JOIN, what lies between an encoder
    and these first blocks of a decoder; ENTRY, what each stage makes for all of its blocks.
    """
    count = share.tensor
    groups = tuple(tuple(range(i, i + count)) for i in range(0, ranks, count))
    tape = Tape(f"{model.name}_stage", dtype(share.form), groups, sums=not share.sharded)
    layers = Layers(tape, share, also == ENTRY)
    if also == JOIN:
        entered, x = layers.joined(model)
    else:
        entered = x = layers.embedding(model) if first else tape.given(layers.local(model.hidden))
    for i, block in enumerate(blocks):
        make = partial(layers.block, f"block_{i}", block)
        x = tape.remade(make, x) if share.block == "again" else make(x)
    if last:
        x, gradient = layers.head(model, x)
    else:
        gradient = None
        tape.leave(x)
    end = tape.left - 1
    graph = tape.finish(x, gradient, None if first else entered)
    return Stage(graph, end, tape.weights, tuple(tape.given_back), share.sharded)


@dataclass
class Layers(Rank):
    """Layers of a model on a tape: blocks and their ends. makes: whether biases by distance are made here, and not
    given. memory: what an encoder made of a sequence."""

    makes: bool = False
    memory: Value | None = None
    bias: Value | None = None

    def block(self, name: str, block: Block, x: Value) -> Value:
        """x [B, S / t, H] -> the same."""
        x = self.tape.add(x, self._attention(name, block, self.norm(name + "_1", block, x)))
        if isinstance(block, Crossed):
            x = self.tape.add(x, self._crossed(name + "_cross", block, self.norm(name + "_cross", block, x)))
        normed = self.norm(name + "_2", block, x)
        if isinstance(block.network, Experts):
            return self.tape.add(x, experts.network(self, name, block.network, normed))
        return self.tape.add(x, self.dense(name, block.network, normed))

    def _attention(self, name: str, block: Block, x: Value) -> Value:
        """Attention of a rank's heads; x [B, S / t, H] -> the same."""
        a, tape = block.attention, self.tape
        q, k, v = latent.projected(self, name, a, x) if a.kv_rank else self._projected(name, a, x)
        if isinstance(a, Relative):
            again = self.share.attention in ("remade", "again")
            return self._out(name, block, a, relative.attention(tape, q, k, v, self._bias(a), a.causal, again))
        return self._out(name, block, a, tape.cut(self._attended(q, k, v, a.causal), 3, 0, a.value_size))

    def _out(self, name: str, block: Block, a: Attention, x: Value) -> Value:
        biased = a.bias in ("all", "unkeyed")
        return self.scattered(self.linear(name + "_o", self.tape.joined(x), block.hidden, biased))

    def _crossed(self, name: str, block: Crossed, x: Value) -> Value:
        """Cross-attention of a rank's heads, to what the encoder made; x [B, D / t, H] -> the same."""
        assert isinstance(self.share, Crossing)
        if self.memory is None:
            self.memory = self.tape.lent(self._read(block.hidden))
        q, k, v = self._projected(name, block.cross, x, self.memory)
        return self._out(name, block, block.cross, self._attended(q, k, v, False))

    def _read(self, hidden: int) -> tuple[int, int, int]:
        """The shape of what an encoder made, on a rank."""
        assert isinstance(self.share, Crossing)
        return self.share.batch, self.share.memory // self.share.tensor, hidden

    def _bias(self, a: Relative) -> Value:
        """By distance, the same in all blocks of a stage."""
        if self.bias is None:
            length = self.share.tokens
            shape = self.part(a.heads), length, length
            self.bias = relative.bias_of(self, a, length) if self.makes else self.tape.lent(shape)
        return self.bias

    def _projected(
        self, name: str, a: Attention, x: Value, memory: Value | None = None
    ) -> tuple[Value, Value, Value]:
        """Queries, keys and values [B, N, S, D] of a rank's heads; keys and values of `memory`, if given."""
        tape, x = self.tape, self.gathered(x)
        read = x if memory is None else self.gathered(memory)
        heads, shared = self.part(a.heads), self.part(a.kv_heads)
        biased = "" if a.bias == "none" else "qv" if a.bias == "unkeyed" else "qkv"
        parts = (("q", x, heads, a.size), ("k", read, shared, a.size), ("v", read, shared, a.value_size))
        q, k, v = (
            tape.heads(self.linear(f"{name}_{n}", y, count * size, n in biased), size) for n, y, count, size in parts
        )
        if a.norms:
            q, k = (tape.norm(y, tape.weight(f"{name}_{n}_norm", a.size)) for y, n in ((q, "q"), (k, "k")))
        if a.rope:
            q, k = self.turned(q, k)
        return q, k, v

    def _attended(self, q: Value, k: Value, v: Value, causal: bool) -> Value:
        kind, tape = self.share.attention, self.tape
        if self.share.context > 1 and kind in ("written", "again"):
            raise UsageError(
                "a divided context asks for a kernel of attention",
                code="TRN176",
                limit="fused attention",
                got=f"{kind} with {self.share.context} context parallel ranks",
                remedy="plan without cp",
            )
        if self.share.context > 1:
            return contexts.attention(tape, q, k, v, self.share.context, causal, again=kind == "remade")
        if kind in ("written", "again"):
            return tape.written_attention(q, k, v, causal, again=kind == "again")
        return tape.attention(q, k, v, causal, again=kind == "remade")

    def embedding(self, model: Model) -> Value:
        """[B, S / t, H] of token ids; a rank has a part of the table's rows. What others have is left out by its
        index, which costs nothing here. Of an image, of its patches, with a place for the class token among them."""
        tape, share = self.tape, self.share
        if isinstance(model, Pair) and model.mels and not isinstance(share, Crossing):
            batch, tokens, _ = self.local(model.hidden)
            return relative.convolved(self, tape.given((batch, STRIDE * tokens, model.mels)), model.hidden)
        if model.patch and not isinstance(share, Crossing):
            return self.linear("patches", tape.given(self.local(model.patch)), model.hidden, bias=True)
        ids = tape.given((share.batch, share.tokens), int32)
        table = tape.weight("table", -(-model.vocabulary // share.tensor), model.hidden)
        return self.scattered(tape.embedded(table, ids))

    def joined(self, model: Model) -> tuple[Value, Value]:
        """What the encoder's last block gives, whose norm the decoder attends to; what enters the decoder."""
        entered = self.tape.given(self._read(model.hidden))
        self.memory = self.norm("read", model.stacks[0][1], entered)
        return entered, self.embedding(model)

    def head(self, model: Model, x: Value) -> tuple[Value, Value]:
        """Logits of this rank's part of the vocabulary, and their gradient."""
        tape = self.tape
        if model.final_norm:
            x = self.norm("final", model.stacks[-1][1], x)
        if model.classes:
            logits = self.linear("head", tape.first(x), model.classes, bias=True)
            return logits, tape.cross_entropy(logits, tape.given((self.share.batch, 1), int32))
        logits = self.linear("head", self.gathered(x), -(-model.vocabulary // self.share.tensor))
        labels = tape.given((self.share.batch, self.share.tokens), int32)
        return logits, tape.cross_entropy(logits, labels)
