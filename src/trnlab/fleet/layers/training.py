# SPDX-License-Identifier: Apache-2.0
"""Layers of a training stage on one rank, divided as a `ShardSpec` says: heads and columns among the ranks of a
tensor group, what lies between them by the sequence (Korthikanti et al. 2022, arXiv:2205.05198).

Activations are [B, S / t, H], heads [B, N, S, D].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trnlab.collectives import Groups
from trnlab.errors import UsageError
from trnlab.fleet.layers import attention
from trnlab.fleet.layers.experts import ExpertRows, places, routed, through
from trnlab.fleet.layers.layers import Layers
from trnlab.fleet.layers.shares import AGAIN, DecoderShare, ShardSpec
from trnlab.fleet.layers.sizes import Attention, Dense, Experts, RelativeAttention
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import DType, dtype, float32, int32
from trnlab.stacks import WRITTEN

TAPS = 3  # frames that each of an audio encoder's two convolutions looks at (arXiv:2212.04356, section 2.2)
STRIDE = 2  # frames that the second of them makes one token of


class TrainingLayers(Layers):
    """See the head of this module. memory: what an encoder made of a sequence; bias: of scores by distance, the same
    in all blocks of a stage. frozen: weights that are not trained. received: what comes from other ranks, to whom its
    gradients go back."""

    def __init__(self, name: str, spec: ShardSpec, groups: Groups = ()) -> None:
        super().__init__(name, dtype(spec.form), spec.tensor, groups)
        self.share = spec
        self.memory: Value | None = None
        self.bias: Value | None = None
        self.frozen: set[str] = set()
        self.received: list[Value] = []
        self._angles: dict[int, tuple[Value, Value]] = {}
        self._given = 0

    # -- what goes in and out -------------------------------------------------------------------------------------
    def given(self, shape: Sequence[int], form: DType | None = None) -> Value:
        """Something from outside: a batch, or what a neighbour sends."""
        self._given += 1
        return self.b.input(f"given_{self._given}", tuple(shape), form or self.form)

    def receive(self, shape: Sequence[int]) -> Value:
        """Something from other ranks, whose gradient is an output that goes back to them."""
        self.received.append(self.given(shape))
        return self.received[-1]

    def local(self, hidden: int) -> tuple[int, int, int]:
        """The shape of the residual stream on a rank."""
        return self.share.batch, self.share.tokens // (1 if self.whole else self.tensor), hidden

    @property
    def whole(self) -> bool:
        """Whether each rank of a tensor group has all of the residual stream."""
        return self.share.residual == "whole"

    @property
    def trained(self) -> list[Value]:
        """The weights that have gradients."""
        return [weight for name, weight in self.weights.items() if name not in self.frozen]

    def gradients(self, of: Mapping[Value, Value], also: Sequence[Value]) -> dict[Value, Value]:
        """Gradients of what is trained, in float32, of what was received, and of `also`."""
        return self.b.gradients(of, [*self.trained, *self.received, *also], in_float32=self.trained)

    # -- what ranks exchange --------------------------------------------------------------------------------------
    def gathered(self, x: Value) -> Value:
        """[B, S / t, H] -> [B, S, H]: the parts of all ranks of the tensor group, along the second dimension. What is
        whole has gradients that are summed."""
        if self.tensor == 1:
            return x
        if self.whole:
            return self.b.with_gradient(self._same, [x], lambda d, *_: [self._summed(d)])[0]
        return self.b.all_gather([x], self.groups, 1)[0]

    def _same(self, x: Value) -> tuple[Value, ...]:
        return (self.b.optimization_barrier(x),)

    def _summed(self, x: Value) -> Value:
        return self.b.all_reduce([x], self.groups)[0]

    def scattered(self, x: Value) -> Value:
        """[B, S, H] -> [B, S / t, H]: this rank's part of the sum over the tensor group, or all of it."""
        if self.tensor == 1:
            return x
        if self.whole:
            return self.b.with_gradient(lambda x: (self._summed(x),), [x], lambda d, *_: [d])[0]
        return self.b.reduce_scatter([x], self.groups, 1)[0]

    def block(self, inside: Callable[..., Value], x: Value, *more: Value) -> Value:
        """What is inside a block, of which the backward pass keeps the inputs alone where the share says so."""
        return self.b.recomputed(inside, x, *more) if self.share.block == "again" else inside(x, *more)

    # -- networks -------------------------------------------------------------------------------------------------
    def kept_or_not(self, inside: Callable[[Value], Value], x: Value) -> Value:
        """What is inside a network, which the backward pass makes again where the share says so."""
        return self.b.recomputed(inside, x) if self.share.network == "again" else inside(x)

    def experts(self, name: str, experts: Experts, x: Value) -> Value:
        """Experts of this rank, to which all ranks of a group send rows; x [B, S / t, H] -> the same."""
        b, tokens, hidden = self.b, x.shape[0] * x.shape[1], x.shape[2]
        flat = b.reshape(x, (tokens, hidden))
        weights = routed(b, flat, self.weight(name + "_router", experts.count, hidden), experts.active)
        room, here = places(experts, tokens), experts.count // self.share.expert
        stood, places_of = (experts.count * room,), (tokens, experts.active)
        rows = ExpertRows(b, self.given(stood, int32), self.given(places_of, int32), self.given(stood, int32))
        sent = rows.sent(flat)
        back = through(b, sent, self.share.expert, here, lambda came: self._networks(name, experts, here, came))
        out = b.reshape(rows.added_up(back, weights), x.shape)
        if not experts.shared:
            return out
        return self.add(out, self.dense(name + "_shared", Dense(experts.shared, experts.gated), x))

    def _networks(self, name: str, experts: Experts, here: int, rows: Value) -> Value:
        """Rows [n, R, H] of each expert through its network."""
        width, hidden, each = self.part(experts.size), rows.shape[2], ((0,), (0,))

        def product(part: str, x: Value, size: int = width) -> Value:
            self.expert_weights.add(f"{name}_{part}")
            weight = self.weight(f"{name}_{part}", here, size, x.shape[-1])
            with self.part_of("linear"):
                return self.b.dot_general(x, weight, ((2,), (2,)), each, dt=self.form)

        function = "silu" if experts.gated else "gelu"
        inner = self.opened(experts.gated, function, product, self.gathered(rows))
        return self.scattered(product("down", inner, hidden))

    # -- attention ------------------------------------------------------------------------------------------------
    def heads(self, x: Value, size: int) -> Value:
        """[B, S, N * size] -> [B, N, S, size]."""
        batch, length, width = x.shape
        return self.b.transpose(self.b.reshape(x, (batch, length, width // size, size)), (0, 2, 1, 3))

    def joined(self, x: Value) -> Value:
        """[B, N, S, size] -> [B, S, N * size]."""
        batch, count, length, size = x.shape
        return self.b.reshape(self.b.transpose(x, (0, 2, 1, 3)), (batch, length, count * size))

    def turned(self, *xs: Value) -> tuple[Value, ...]:
        """Each [B, N, S, D] by angles [S, D] of its places, which are given, the same to all blocks."""
        size = xs[0].shape[-1]
        if size not in self._angles:
            shape = self.share.tokens, size
            self._angles[size] = self.given(shape), self.given(shape)
        return tuple(self.rotated(x, *self._angles[size]) for x in xs)

    def attended(self, name: str, a: Attention, q: Value, k: Value, v: Value) -> Value:
        """[B, N, S, D] -> [B, N, S, columns of values]."""
        with self.part_of("attention"):
            if isinstance(a, RelativeAttention):
                return attention.relative(self.b, q, k, v, self.distances(a), a.causal, self.share.again)
            filling = a.size - a.value_size  # kernels ask for values as wide as keys
            if filling:
                v = self.b.pad(v, (0, 0, 0, 0), (0, 0, 0, filling))
            out = self._attended(q, k, v, a)
            return self.b.slice_dim(out, 3, 0, a.value_size) if filling else out

    def _attended(self, q: Value, k: Value, v: Value, a: Attention) -> Value:
        share, causal = self.share, a.causal
        written = share.attention in (WRITTEN, AGAIN[WRITTEN]) or a.softcap > 0  # which no kernel of attention has
        if share.context > 1 and written:
            raise UsageError(
                "a divided context asks for a kernel of attention",
                code="TRN176",
                limit="fused attention",
                got=f"{share.attention} with {share.context} context parallel ranks",
                remedy="plan without cp",
            )
        if share.context > 1:
            shape = (*k.shape[:2], k.shape[2] * share.context, k.shape[3])
            whole = self.receive(shape), self.receive(shape)
            return attention.divided(self.b, q, k, v, whole, causal, share.again)
        if written:
            return attention.written(self.b, q, k, v, causal, share.again, a.softcap)
        return attention.fused(self.b, q, k, v, causal, share.again)

    def cross_attention(self, name: str, a: Attention, x: Value) -> Value:
        """Attention to what the encoder made; x [B, D / t, H] -> the same."""
        return self.attention(name, a, x, self.encoded(x.shape[2]))

    def remember(self, encoded: Value) -> None:
        """What an encoder made of a sequence, on this rank."""
        self.memory = encoded

    def encoded(self, hidden: int) -> Value:
        """What the encoder made of a sequence."""
        if self.memory is None:
            self.memory = self.receive(self.read(hidden))
        return self.memory

    def read(self, hidden: int) -> tuple[int, int, int]:
        """The shape of what an encoder made, on a rank."""
        assert isinstance(self.share, DecoderShare)
        return self.share.batch, self.share.memory // self.tensor, hidden

    def distances(self, a: RelativeAttention) -> Value:
        """The bias of scores [N, S, S] of a rank's heads."""
        if self.bias is None:
            self.bias = self.receive((self.part(a.heads), self.share.tokens, self.share.tokens))
        return self.bias

    def make_distances(self, a: RelativeAttention) -> None:
        """Make that bias here, and not in another stage: a row of the table for each pair of places, by the bucket of
        their distance."""
        table, length = self.weight("distances", a.buckets, self.part(a.heads)), self.share.tokens
        rows = self.b.take_rows(table, self.given((length, length), int32))
        self.bias = self.b.transpose(rows, (2, 0, 1))

    # -- the ends of a model --------------------------------------------------------------------------------------
    def words(self, rows: int, hidden: int) -> Value:
        """[B, S / t, H] of token ids; a rank has a part of the table's rows. What others have is left out by its
        index, which costs nothing here."""
        ids = self.given((self.share.batch, self.share.tokens), int32)
        table = self.weight("table", -(-rows // self.tensor), hidden)
        return self.scattered(self.looked_up(table, ids))

    def looked_up(self, table: Value, ids: Value) -> Value:
        """Rows of a table at these ids."""
        return self.b.take_rows(table, ids)

    def positions(self, rows: int, x: Value, name: str = "positions", trained: bool = True) -> Value:
        """x [B, S / t, H], and the first rows of a table [rows, H], of more rows where a sequence is longer."""
        table = self.weight(name, max(rows, self.share.tokens), x.shape[2])
        if not trained:
            self.frozen.add(name)
        return self.b.add(x, self.b.slice_dim(table, 0, 0, x.shape[1]) if table.shape[0] > x.shape[1] else table)

    def segments(self, rows: int, x: Value) -> Value:
        """x [B, S / t, H], and the row of a table [rows, H] for each token."""
        return self.b.add(
            x, self.b.take_rows(self.weight("segments", rows, x.shape[2]), self.given(x.shape[:2], int32))
        )

    def patches(self, inputs: int, hidden: int, bias: bool = True) -> Value:
        """[B, S / t, H] of an image's patches and a class token, which is at the first place of a rank."""
        batch, length, _ = self.local(hidden)
        x = self.linear("patches", self.given((batch, length - 1, inputs)), hidden, bias)
        token = self.b.broadcast_in_dim(self.weight("class", 1, hidden), (batch, 1, hidden), (1, 2))
        return self.b.concatenate([token, x], 1)

    def frames(self, mels: int, hidden: int) -> Value:
        """Frames [B, 2 S, mels] through both convolutions of Whisper's encoder -> [B, S, hidden]: products of what
        their taps look at. A frame at the edge of what a rank has is taken for one of the sequence."""
        b, (batch, tokens, _) = self.b, self.local(hidden)
        x = self.given((batch, STRIDE * tokens, mels))
        seen = b.concatenate([self._moved(x, 1), x, self._moved(x, -1)], 2)
        y = self.activation(self.linear("conv_1", seen, hidden, bias=True), "gelu")
        pairs = b.reshape(y, (batch, tokens, STRIDE * hidden))
        before = self._moved(b.slice_dim(pairs, 2, hidden, STRIDE * hidden), 1)
        y = b.add(self.linear("conv_2", pairs, hidden, bias=True), self.linear("conv_2_before", before, hidden))
        return self.activation(y, "gelu")

    def _moved(self, x: Value, steps: int) -> Value:
        """x [B, S, C] so many places later in its sequence (earlier where negative), zeros in the others."""
        low, high, length = max(steps, 0), max(-steps, 0), x.shape[1]
        return self.b.slice_dim(self.b.pad(x, (0, low, 0), (0, high, 0)), 1, high, high + length)

    def logits(self, rows: int, x: Value, tied: bool, bias: bool = False) -> Value:
        """[B, S, words of this rank]."""
        return self.linear("table" if tied else "head", self.gathered(x), -(-rows // self.tensor), bias)

    def loss(self, logits: Value) -> Value:
        """The mean cross entropy of logits [B, S, V] against labels [B, S], which are given."""
        labels = self.given(logits.shape[:2], int32)
        with self.part_of("loss"):
            return cross_entropy(self, logits, labels)


def cross_entropy(layers: Layers, logits: Value, labels: Value) -> Value:
    """The mean cross entropy of logits [B, S, V] against labels [B, S], in float32."""
    b, count = layers.b, labels.type.size

    def forward(logits: Value) -> tuple[Value, ...]:
        wide = b.convert(logits, float32)
        shifted = b.subtract(wide, b.reduce(wide, (-1,), "maximum", keepdims=True))
        grown = b.exponential(shifted)
        total = b.reduce(grown, (-1,), keepdims=True)
        lost = b.subtract(b.log(b.reshape(total, labels.shape)), b.take_along(shifted, labels))
        return b.multiply(b.reduce(lost, (0, 1)), 1 / count), grown, total

    def back(d: Value, _: Sequence[Value], results: Sequence[Value]) -> list[Value]:
        hit = b.compare(b.iota(logits.shape, int32, 2), "EQ", b.broadcast_in_dim(labels, logits.shape, (0, 1)))
        rest = b.subtract(b.divide(results[1], results[2]), b.convert(hit, float32))
        return [b.multiply(rest, b.broadcast_to(b.multiply(d, 1 / count), rest.shape))]

    return b.with_gradient(forward, [logits], back)[0]
