# SPDX-License-Identifier: Apache-2.0
"""Layers of the programs of a model that generates, on one rank: on rows of tokens, of one prompt or of the sequences
of a batch, with a cache of keys and values.

Activations are [rows, H], heads [rows, N, D]. Weights are [in, out], as products of few rows take them, the cache is
keys [B, G, D, L], since scores contract D, and values [B, G, L, D]. Ranks of a tensor group have all rows and their
part of the heads and columns, and add up.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.collectives import Groups
from trnlab.fleet.layers.attention import in_two_pieces, written
from trnlab.fleet.layers.layers import Layers
from trnlab.fleet.layers.sizes import Attention, Dense, Experts
from trnlab.fleet.serving.mixtures import Matrix, Mixture
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import dtype, float32, int32

HEAD = "head"  # which stays as it is, like the words, where blocks' weights have a byte an element


@dataclass(frozen=True)
class ServingProgram:
    """What one rank runs."""

    batch: int  # sequences
    length: int  # tokens of the prompt, or places of the cache
    tensor: int = 1  # ranks that share each layer
    form: str = "bfloat16"
    # of these, ranks among which a layer's experts are divided, and those of one part share the columns of each
    expert: int = 1
    read: int = 0  # experts that a rank reads; 0 for all that there may be
    room: int = 0  # rows of each; 0 for all that there may be
    # format of the matrices of blocks in memory, where it is not that of all else: int8 or float8_e4m3, with a
    # scale of each column (as the vendor's libraries keep them: transformers-neuronx' quant_dtype "s8" and
    # "f8e4m3fn")
    stored: str = ""
    before: int = 0  # places of the cache that a prompt's tokens find filled by those before them
    memory: int = 0  # places that an encoder read, of whose keys and values its decoder has another cache


class ServingLayers(Layers):
    """See the head of this module. angles: rows of the tables that heads are turned by."""

    def __init__(self, name: str, share: ServingProgram, groups: Groups, angles: int) -> None:
        super().__init__(name, dtype(share.form), share.tensor, groups)
        self.share, self._rows = share, angles
        self._angles: dict[int, tuple[Value, Value]] = {}
        self._stored: dict[str, Matrix] = {}
        self.ids, self.places = self._tokens()

    def _tokens(self) -> tuple[Value, Value]:
        """Ids of tokens, and their places, one for each row."""
        raise NotImplementedError

    def product(self, name: str, x: Value, width: int) -> Value:
        """x [rows, K] times a weight [K, width]."""
        if not self.share.stored or name == HEAD:
            return self.b.dot_general(x, self.weight(name, x.shape[-1], width), ((1,), (0,)), dt=self.form)
        return self.matrix(name, x.shape[-1], width).times(x)

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """A weight as products read it, see `ServingProgram.stored`."""
        if not self.share.stored:
            return Matrix(self.b, self.form, self.weight(name, rows, columns))
        if name not in self._stored:
            given = self.b.input(name, (rows, columns), dtype(self.share.stored))
            scale = self.b.input(name + "_step", (columns,), float32)
            self._stored[name] = Matrix(self.b, self.form, self.b.convert(given, self.form), scale)
        return self._stored[name]

    def gathered(self, x: Value) -> Value:
        """x itself: all ranks have all rows."""
        return x

    def scattered(self, x: Value) -> Value:
        """The sum over the tensor group, on all ranks."""
        return self.b.all_reduce([x], self.groups)[0] if self.tensor > 1 else x

    # -- attention --------------------------------------------------------------------------------------------------
    def heads(self, x: Value, size: int) -> Value:
        """[rows, N * size] -> [rows, N, size]."""
        return self.b.reshape(x, (x.shape[0], x.shape[1] // size, size))

    def joined(self, x: Value) -> Value:
        """[rows, N, size] -> [rows, N * size]."""
        return self.b.reshape(x, (x.shape[0], x.shape[1] * x.shape[2]))

    def turned(self, *xs: Value) -> tuple[Value, ...]:
        """Each [rows, N, D] by the angles of its rows, from tables [places, D]."""
        b, size = self.b, xs[0].shape[-1]
        if size not in self._angles:
            tables = (b.input(f"{name}_{size}", (self._rows, size), self.form) for name in ("cosines", "sines"))
            cosine, sine = (b.take_rows(table, self.places) for table in tables)
            self._angles[size] = cosine, sine
        return tuple(
            self.rotated(x, *(b.broadcast_in_dim(angle, x.shape, (0, 2)) for angle in self._angles[size])) for x in xs
        )

    # -- experts ----------------------------------------------------------------------------------------------------
    def experts(self, name: str, experts: Experts, x: Value) -> Value:
        """Experts of all ranks, with the one that all tokens take; x [rows, H] -> the same."""
        share = self.share
        here = experts.count // share.expert
        columns = experts.size // (share.tensor // share.expert)
        mixture = Mixture(self, name, experts, (here, share.read or here, share.room or x.shape[0], columns))
        mine = self.mixed(mixture, x)
        if experts.shared:
            always = self.columns(f"{name}_shared", Dense(experts.shared, experts.gated), x)
            mine = self.b.add(mine, self.linear(f"{name}_shared_down", always, x.shape[1]))
        return self.scattered(mine)

    def mixed(self, mixture: Mixture, x: Value) -> Value:
        """This rank's part of the sum of experts."""
        raise NotImplementedError

    # -- the ends of a model ----------------------------------------------------------------------------------------
    def words(self, rows: int, hidden: int) -> Value:
        """[rows, H]: every rank has the whole table."""
        return self.b.take_rows(self.weight("table", rows, hidden), self.ids)

    def positions(self, rows: int, x: Value, name: str = "positions", trained: bool = True) -> Value:
        """x [rows, H], and the row of a table for each one's place."""
        return self.b.add(x, self.b.take_rows(self.weight(name, rows, x.shape[1]), self.places))

    def logits(self, rows: int, x: Value, tied: bool, bias: bool = False) -> Value:
        """[rows, words of this rank]; what is tied to the table has a copy as products take it."""
        return self.linear(HEAD, x, -(-rows // self.tensor), bias)

    def likeliest(self, scores: Value) -> None:
        """The likeliest of this rank's words for each row: its logit and number, both float32, are outputs."""
        b, wide = self.b, self.b.convert(scores, float32)
        top = b.reduce(wide, (-1,), "maximum", keepdims=True)
        first = b.select(b.compare(wide, "GE", top), b.iota(wide.shape, float32, 1), float(wide.shape[1]))
        b.output(b.reshape(top, (scores.shape[0],)))
        b.output(b.reduce(first, (-1,), "minimum"))


class PrefillLayers(ServingLayers):
    """Layers that read one prompt, padded: rows are its tokens."""

    def _tokens(self) -> tuple[Value, Value]:
        length = self.share.length
        return self.b.input("ids", (length,), int32), self.b.iota((length,), int32)

    def over(self, name: str, a: Attention, apart: list[Value]) -> Value:
        """Attention of queries, keys and values [1, heads, rows, columns]."""
        if a.softcap:
            return written(self.b, apart[0], apart[1], apart[2], a.causal, False, a.softcap)
        return self.b.attention(apart[0], apart[1], apart[2], causal=a.causal)[0]

    def attended(self, name: str, a: Attention, q: Value, k: Value, v: Value) -> Value:
        """Causal, over the prompt itself; keys and values become outputs in the form of the cache."""
        b, rows = self.b, q.shape[0]
        apart = [b.reshape(b.transpose(x, (1, 0, 2)), (1, x.shape[1], rows, x.shape[2])) for x in (q, k, v)]
        out = self.over(name, a, apart)
        b.output(b.transpose(apart[1], (0, 1, 3, 2)))
        b.output(apart[2])
        return b.transpose(b.reshape(out, out.shape[1:]), (1, 0, 2))

    def mixed(self, mixture: Mixture, x: Value) -> Value:
        """Each row through its own experts."""
        return mixture.of_prompt(x)


class ChunkLayers(PrefillLayers):
    """Layers that read one chunk of a prompt, whose earlier ones are in the cache: tokens attend to these, all of
    which they see, and to each other."""

    def _tokens(self) -> tuple[Value, Value]:
        length = self.share.length
        return self.b.input("ids", (length,), int32), self.b.input("places", (length,), int32)

    def over(self, name: str, a: Attention, apart: list[Value]) -> Value:
        """In two pieces, put together by their sums."""
        (_, shared, _, size), width = apart[1].shape, apart[2].shape[3]
        keys = self.weight(name + "_keys", 1, shared, size, self.share.before)
        values = self.weight(name + "_values", 1, shared, self.share.before, width)
        earlier = self.b.transpose(keys, (0, 1, 3, 2)), values
        return in_two_pieces(self.b, apart[0], earlier, (apart[1], apart[2]), False)


class DecodeLayers(ServingLayers):
    """Layers that generate one token of each sequence: rows are sequences.

    held: which places of the cache hold something, as 0 or a score that hides them [B, L].
    """

    def _tokens(self) -> tuple[Value, Value]:
        batch = self.share.batch
        tokens = self.b.input("ids", (batch,), int32), self.b.input("places", (batch,), int32)
        self.held = self.b.input("held", (batch, self.share.length), float32)
        return tokens

    def attended(self, name: str, a: Attention, q: Value, k: Value, v: Value) -> Value:
        """Over the cache and the token's own key: softmax over both parts, whose largest score is subtracted."""
        b, (batch, shared, size), width = self.b, k.shape, v.shape[2]
        per, pairs = q.shape[1] // shared, ((0, 1), (0, 1))
        keys, values = self.cache(name, shared, self.share.length, size, width)
        grouped, scale = b.reshape(q, (batch, shared, per, size)), self.scale(a)
        scores = b.multiply(b.dot_general(grouped, keys, ((3,), (2,)), pairs), scale)
        scores = b.add(self.capped(scores, a.softcap), b.broadcast_in_dim(self.held, scores.shape, (0, 3)))
        scores = self.by_distance(a, scores)
        own_key, own_value = (b.reshape(x, (batch, shared, 1, x.shape[2])) for x in (k, v))
        product = b.multiply(b.convert(grouped, float32), b.convert(own_key, float32))
        own = self.capped(b.multiply(b.reduce(product, (-1,), keepdims=True), scale), a.softcap)
        own = self.by_distance(a, own, own=True)
        top = b.maximum(b.reduce(scores, (-1,), "maximum", keepdims=True), own)
        weights, mine = b.exponential(b.subtract(scores, top)), b.exponential(b.subtract(own, top))
        total = b.add(b.reduce(weights, (-1,), keepdims=True), mine)
        old = b.dot_general(b.convert(weights, self.form), values, ((3,), (2,)), pairs)
        out = b.divide(b.add(old, b.multiply(mine, b.convert(own_value, float32))), total)
        b.output(b.reshape(own_key, (batch, shared, size, 1)))
        b.output(own_value)
        return b.convert(b.reshape(out, (batch, shared * per, width)), self.form)

    def cache(self, name: str, heads: int, places: int, size: int, width: int) -> tuple[Value, Value]:
        """Keys [B, G, D, places] and values [B, G, places, D] of a layer."""
        batch = self.share.batch
        keys = self.weight(name + "_keys", batch, heads, size, places)
        return keys, self.weight(name + "_values", batch, heads, places, width)

    def scale(self, a: Attention) -> float:
        """What scores are multiplied by."""
        return float(a.size**-0.5)

    def by_distance(self, a: Attention, scores: Value, own: bool = False) -> Value:
        """Scores of places, or of the token itself, with what their distance adds."""
        return scores

    def mixed(self, mixture: Mixture, x: Value) -> Value:
        """All rows through each expert that is met."""
        return mixture.of_batch(x)
