# SPDX-License-Identifier: Apache-2.0
"""The layers that models are made of, written once as ops of the graph, forward only.

A model says with these what it computes (`models.transformer`). Training stages, programs of generation, numbers of
parameters and operations, and other accelerators' costs all come from that: `training.TrainingLayers` and
`serving.ServingLayers` differ in how activations lie, in what ranks exchange, and in what attention reads.

B sequences, S tokens of each on a rank, H hidden size, N heads of D; t ranks of a tensor group, which share the heads
of a layer and the columns of a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trnlab.collectives import Groups
from trnlab.fleet.layers.shares import heads_of_rank
from trnlab.fleet.layers.sizes import Attention, Dense, Experts
from trnlab.graph.grad.builder import GradientBuilder
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import DType, float32

EPSILON = 1e-5


class Layers:
    """Layers on one rank. form: of weights and activations; tensor: ranks that share a layer, in `groups` of all
    ranks. weights: by name; expert_weights: those of them of which a token meets a part."""

    def __init__(self, name: str, form: DType, tensor: int = 1, groups: Groups = ()) -> None:
        self.b = GradientBuilder(name)
        self.form, self.tensor, self.groups = form, tensor, groups
        self.weights: dict[str, Value] = {}
        self.expert_weights: set[str] = set()

    # -- weights and what they are multiplied with ----------------------------------------------------------------
    def weight(self, name: str, *shape: int) -> Value:
        """A parameter of this shape; the same one when its name comes again."""
        if name not in self.weights:
            self.weights[name] = self.b.input(name, shape, self.form)
        return self.weights[name]

    def part(self, n: int) -> int:
        """This rank's part of n heads or columns, some of which compute nothing where ranks do not divide them."""
        return -(-n // self.tensor)

    @contextmanager
    def part_of(self, layer: str) -> Iterator[None]:
        """Ops appended inside belong to such a layer, which is their origin."""
        with self.b.at(None, layer):
            yield

    def linear(self, name: str, x: Value, width: int, bias: bool = False) -> Value:
        """x [..., K] -> [..., width]."""
        with self.part_of("linear"):
            y = self.product(name, x, width)
            return self.b.add(y, self.weight(name + "_bias", width)) if bias else y

    def product(self, name: str, x: Value, width: int) -> Value:
        """x [..., K] times a weight [width, K]."""
        weight, last = self.weight(name, width, x.shape[-1]), len(x.shape) - 1
        return self.b.dot_general(x, weight, ((last,), (1,)), dt=self.form)

    # -- what ranks of a tensor group exchange --------------------------------------------------------------------
    def gathered(self, x: Value) -> Value:
        """All rows of what the tensor group has parts of."""
        raise NotImplementedError

    def scattered(self, x: Value) -> Value:
        """This rank's rows of the sum of x over the tensor group."""
        raise NotImplementedError

    def closing(self, name: str, x: Value, width: int, bias: bool = False) -> Value:
        """A product of columns that ranks share, whose parts add up; the bias is added once."""
        y = self.scattered(self.linear(name, x, width))
        return self.b.add(y, self.weight(name + "_bias", width)) if bias else y

    # -- between products -----------------------------------------------------------------------------------------
    def norm(self, name: str, x: Value, kind: str = "rms") -> Value:
        """Norm of the last dimension, in float32: "rms", by the root of its mean square, or "layer", about its mean
        and with a shift."""
        b, width = self.b, x.shape[-1]
        with self.part_of("norm"):
            wide = b.convert(x, float32)
            if kind == "layer":
                wide = b.subtract(wide, self._mean(wide))
            unit = b.multiply(wide, b.rsqrt(b.add(self._mean(b.multiply(wide, wide)), EPSILON)))
            y = b.multiply(unit, b.convert(self.weight(name + "_scale", width), float32))
            if kind == "layer":
                y = b.add(y, b.convert(self.weight(name + "_shift", width), float32))
            return b.convert(y, self.form)

    def _mean(self, x: Value) -> Value:
        return self.b.multiply(self.b.reduce(x, (-1,), keepdims=True), 1 / x.shape[-1])

    def add(self, x: Value, y: Value) -> Value:
        """x + y, of which x goes past a layer (a residual connection)."""
        with self.part_of("residual"):
            return self.b.add(x, y)

    def activation(self, x: Value, name: str) -> Value:
        """ "gelu", "silu", "relu", or "quick_gelu": x times the logistic function of 1.702 x (CLIP)."""
        with self.part_of("activation"):
            if name == "quick_gelu":
                return self.b.multiply(x, self.b.logistic(self.b.multiply(x, 1.702)))
            return self.b.maximum(x, 0.0) if name == "relu" else getattr(self.b, name)(x)

    # -- networks -------------------------------------------------------------------------------------------------
    def network(self, name: str, network: Dense | Experts, x: Value) -> Value:
        """What follows attention; x [..., H] -> the same."""
        if isinstance(network, Experts):
            return self.experts(name, network, x)
        return self.dense(name, network, x)

    def dense(self, name: str, network: Dense, x: Value) -> Value:
        """A network whose columns are divided; x [..., H] -> the same."""
        x = self.gathered(x)
        inner = self.kept_or_not(lambda x: self.columns(name, network, x), x)
        return self.closing(name + "_down", inner, x.shape[-1], network.bias)

    def columns(self, name: str, network: Dense, x: Value) -> Value:
        """This rank's columns of what lies between a network's products."""
        width = self.part(network.size)

        def product(part: str, x: Value) -> Value:
            return self.linear(f"{name}_{part}", x, width, network.bias)

        return self.opened(network.gated, network.function, product, x)

    def opened(self, gated: bool, function: str, product: Callable[[str, Value], Value], x: Value) -> Value:
        """What lies between a network's products; product(part, x): the columns of "up", and of "gate"."""
        if not gated:
            return self.activation(product("up", x), function)
        gate = self.activation(product("gate", x), function)
        up = product("up", x)
        with self.part_of("activation"):
            return self.b.multiply(gate, up)

    def kept_or_not(self, inside: Callable[[Value], Value], x: Value) -> Value:
        """What is inside a network."""
        return inside(x)

    def experts(self, name: str, experts: Experts, x: Value) -> Value:
        """A router and its experts; x [..., H] -> the same."""
        raise NotImplementedError

    # -- attention ------------------------------------------------------------------------------------------------
    def attention(self, name: str, a: Attention, x: Value, read: Value | None = None) -> Value:
        """Attention of a rank's heads; x [..., H] -> the same. read: whose keys and values it attends to, where not
        to its own."""
        q, k, v = self.compressed(name, a, x) if a.kv_rank else self.projected(name, a, x, read)
        out = self.joined(self.attended(name, a, q, k, v))
        return self.closing(name + "_o", out, x.shape[-1], "o" in a.biased)

    def projected(self, name: str, a: Attention, x: Value, read: Value | None) -> tuple[Value, Value, Value]:
        """Queries, keys and values of a rank's heads."""
        x = self.gathered(x)
        read = x if read is None else self.gathered(read)
        heads, shared = heads_of_rank(a.heads, a.kv_heads, self.tensor)
        parts = (("q", x, heads, a.size), ("k", read, shared, a.size), ("v", read, shared, a.value_size))
        q, k, v = (
            self.heads(self.linear(f"{name}_{n}", y, count * size, n in a.biased), size)
            for n, y, count, size in parts
        )
        if a.norms:
            q, k = (self.norm(f"{name}_{n}_norm", y) for y, n in ((q, "q"), (k, "k")))
        if a.rope:
            q, k = self.turned_part(a, q, k)
        return q, k, v

    def turned_part(self, a: Attention, *xs: Value) -> tuple[Value, ...]:
        """Heads of whose columns the first `rope_size` are turned."""
        last, part = len(xs[0].shape) - 1, a.rope_size or a.size
        if part == a.size:
            return self.turned(*xs)
        found = self.turned(*(self.b.slice_dim(x, last, 0, part) for x in xs))
        rest = (self.b.slice_dim(x, last, part, a.size) for x in xs)
        return tuple(self.b.concatenate(list(pair), last) for pair in zip(found, rest))

    def compressed(self, name: str, a: Attention, x: Value) -> tuple[Value, Value, Value]:
        """The same by multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): ranks of a tensor
        group compress their own rows, and what is gathered are compressed rows, of which each makes its own heads."""
        b, heads, plain = self.b, self.part(a.heads), a.size - a.rope_size
        q = self.heads(self.linear(f"{name}_q", self._pressed(f"{name}_q", x, a.q_rank), heads * a.size), a.size)
        pressed = self.linear(f"{name}_kv_down", x, a.kv_rank + a.rope_size)
        small = self.gathered(self.norm(f"{name}_kv_norm", b.slice_dim(pressed, 2, 0, a.kv_rank)))
        turning = self.gathered(b.slice_dim(pressed, 2, a.kv_rank, a.kv_rank + a.rope_size))
        up = self.heads(self.linear(f"{name}_kv", small, heads * (plain + a.value_size)), plain + a.value_size)
        q_turned, turned = self.turned(b.slice_dim(q, 3, plain, a.size), self.heads(turning, a.rope_size))
        spread = b.broadcast_in_dim(turned, (*up.shape[:3], a.rope_size), range(4))  # one head's for all
        q = b.concatenate([b.slice_dim(q, 3, 0, plain), q_turned], 3)
        k = b.concatenate([b.slice_dim(up, 3, 0, plain), spread], 3)
        return q, k, b.slice_dim(up, 3, plain, plain + a.value_size)

    def _pressed(self, name: str, x: Value, rank: int) -> Value:
        """What queries are made of [B, S, rank], or all of x [B, S, H] where they are not compressed."""
        if not rank:
            return self.gathered(x)
        return self.gathered(self.norm(f"{name}_norm", self.linear(f"{name}_down", x, rank)))

    def heads(self, x: Value, size: int) -> Value:
        """x [..., N * size] as heads of so many columns, as `joined` reads them."""
        raise NotImplementedError

    def joined(self, x: Value) -> Value:
        """Columns of all heads beside each other again."""
        raise NotImplementedError

    def turned(self, *xs: Value) -> tuple[Value, ...]:
        """Heads turned by the angles of their places (Su et al. 2021, arXiv:2104.09864)."""
        raise NotImplementedError

    def rotated(self, x: Value, cosine: Value, sine: Value) -> Value:
        """x [..., D] turned; cosines and sines, of x's shape or broadcast to it, are equal in both halves."""
        b, last, half = self.b, len(x.shape) - 1, x.shape[-1] // 2
        with self.part_of("rotary"):
            low, high = b.slice_dim(x, last, 0, half), b.slice_dim(x, last, half, 2 * half)
            return b.add(b.multiply(x, cosine), b.multiply(b.concatenate([b.negate(high), low], last), sine))

    def attended(self, name: str, a: Attention, q: Value, k: Value, v: Value) -> Value:
        """softmax(q k^T) v of each head."""
        raise NotImplementedError

    def remember(self, encoded: Value) -> None:
        """What an encoder made, to which a decoder's blocks attend."""
        raise NotImplementedError

    def cross_attention(self, name: str, a: Attention, x: Value) -> Value:
        """Attention of a decoder to what its encoder made."""
        raise NotImplementedError

    # -- the ends of a model --------------------------------------------------------------------------------------
    def words(self, rows: int, hidden: int) -> Value:
        """Rows of a table of words at the ids of tokens, [..., H]."""
        raise NotImplementedError

    def positions(self, rows: int, x: Value, name: str = "positions", trained: bool = True) -> Value:
        """x, and the row of a table for each place of a sequence."""
        raise NotImplementedError

    def segments(self, rows: int, x: Value) -> Value:
        """x, and the row of a table for the segment that each token belongs to (BERT)."""
        raise NotImplementedError

    def capped(self, scores: Value, cap: float) -> Value:
        """Scores s as cap tanh(s / cap); themselves for 0."""
        b = self.b
        return b.multiply(b.tanh(b.multiply(scores, 1 / cap)), cap) if cap else scores

    def patches(self, inputs: int, hidden: int, bias: bool = True) -> Value:
        """An image as a class token and a linear layer of its patches, of so many inputs each (ViT)."""
        raise NotImplementedError

    def frames(self, mels: int, hidden: int) -> Value:
        """Frames of sound through two convolutions (Whisper)."""
        raise NotImplementedError

    def first(self, x: Value) -> Value:
        """The first place of each sequence: [B, S, H] -> [B, 1, H]."""
        return self.b.slice_dim(x, 1, 0, 1)

    def logits(self, rows: int, x: Value, tied: bool, bias: bool = False) -> Value:
        """Scores of this rank's part of the words. tied: by the table that the ids were looked up in."""
        raise NotImplementedError
