# SPDX-License-Identifier: Apache-2.0
"""Layers of the programs of an encoder and a decoder that attends to what it made (T5).

The encoder reads a prompt once. From what it made, keys and values of each of the decoder's layers are computed
once, too, and stay in a cache of their own, beside that of the tokens written so far. P tokens of a prompt, padded;
L places of the decoder's own cache; N heads.
"""

from __future__ import annotations

from trnlab.fleet.layers.attention import relative
from trnlab.fleet.layers.shares import heads_of_rank
from trnlab.fleet.layers.sizes import Attention, RelativeAttention
from trnlab.fleet.serving.layers import DecodeLayers, PrefillLayers
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32, int32


class EncodeLayers(PrefillLayers):
    """Layers that read a prompt, all of whose tokens see each other; what is padded is hidden by its score. encoded:
    what the decoder attends to [P, H]."""

    encoded: Value | None = None
    _bias: Value | None = None

    def attended(self, name: str, a: Attention, q: Value, k: Value, v: Value) -> Value:
        """Attention with what distances add; no key or value is kept."""
        b, rows = self.b, q.shape[0]
        apart = [b.reshape(b.transpose(x, (1, 0, 2)), (1, x.shape[1], rows, x.shape[2])) for x in (q, k, v)]
        assert isinstance(a, RelativeAttention)
        out = relative(b, apart[0], apart[1], apart[2], self._distances(a), a.causal, False)
        return b.transpose(b.reshape(out, out.shape[1:]), (1, 0, 2))

    def _distances(self, a: RelativeAttention) -> Value:
        """[N, P, P], the same in all layers: rows of a table by each distance's bucket, and what hides places."""
        if self._bias is None:
            b, length = self.b, self.share.length
            table = self.weight("read_distances", a.buckets, heads_of_rank(a.heads, a.kv_heads, self.tensor)[0])
            rows = b.take_rows(table, b.input("buckets", (length, length), int32))
            bias, seen = b.transpose(rows, (2, 0, 1)), b.input("seen", (length,), self.form)
            self._bias = b.add(bias, b.broadcast_in_dim(seen, bias.shape, (2,)))
        return self._bias

    def remember(self, encoded: Value) -> None:
        """What the decoder attends to."""
        self.encoded = encoded


class CrossLayers(PrefillLayers):
    """Keys and values of the decoder's layers, of what the encoder made, which is given [P, H]."""

    def _tokens(self) -> tuple[Value, Value]:
        nothing = self.b.constant(0.0, float32)
        return nothing, nothing

    def keep(self, name: str, a: Attention, encoded: Value) -> None:
        """Those of a layer become outputs in the form of the cache."""
        b, shared = self.b, heads_of_rank(a.heads, a.kv_heads, self.tensor)[1]
        for part, size in (("k", a.size), ("v", a.value_size)):
            flat = self.linear(f"{name}_{part}", encoded, shared * size, part in a.biased)
            heads = b.transpose(self.heads(flat, size), (1, 2, 0) if part == "k" else (1, 0, 2))
            b.output(b.reshape(heads, (1, *heads.shape)))


class DecoderLayers(DecodeLayers):
    """Layers that generate one token of each sequence, over what was written and over what the encoder read."""

    _bias: Value | None = None

    def _tokens(self) -> tuple[Value, Value]:
        found = super()._tokens()
        self.seen = self.b.input("seen", (self.share.batch, self.share.memory), float32)
        return found

    def scale(self, a: Attention) -> float:
        """Scores that distances add to are not scaled."""
        return 1.0 if isinstance(a, RelativeAttention) else super().scale(a)

    def by_distance(self, a: Attention, scores: Value, own: bool = False) -> Value:
        """The first row of the table is that of the token itself."""
        if not isinstance(a, RelativeAttention):
            return scores
        b, heads = self.b, heads_of_rank(a.heads, a.kv_heads, self.tensor)[0]
        table = self.weight("distances", a.buckets, heads)
        if own:
            row = b.reshape(b.convert(b.slice_dim(table, 0, 0, 1), float32), scores.shape[1:])
            return b.add(scores, b.broadcast_in_dim(row, scores.shape, (1, 2, 3)))
        if self._bias is None:
            rows = b.take_rows(table, b.input("buckets", (self.share.batch, self.share.length), int32))
            self._bias = b.reshape(b.transpose(b.convert(rows, float32), (0, 2, 1)), scores.shape)
        return b.add(scores, self._bias)

    def cross_attention(self, name: str, a: Attention, x: Value) -> Value:
        """Over the cache of what the encoder read alone."""
        b, (heads, shared) = self.b, heads_of_rank(a.heads, a.kv_heads, self.tensor)
        q = self.heads(self.linear(name + "_q", x, heads * a.size, "q" in a.biased), a.size)
        keys, values = self.cache(name, shared, self.share.memory, a.size, a.value_size)
        grouped, pairs = b.reshape(q, (x.shape[0], shared, heads // shared, a.size)), ((0, 1), (0, 1))
        scores = b.multiply(b.dot_general(grouped, keys, ((3,), (2,)), pairs), self.scale(a))
        scores = b.add(scores, b.broadcast_in_dim(self.seen, scores.shape, (0, 3)))
        weights = b.exponential(b.subtract(scores, b.reduce(scores, (-1,), "maximum", keepdims=True)))
        out = b.dot_general(b.convert(weights, self.form), values, ((3,), (2,)), pairs)
        out = b.divide(out, b.reduce(weights, (-1,), keepdims=True))
        out = b.convert(b.reshape(out, (x.shape[0], heads, a.value_size)), self.form)
        return self.closing(name + "_o", self.joined(out), x.shape[-1], "o" in a.biased)
