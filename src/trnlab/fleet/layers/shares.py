# SPDX-License-Identifier: Apache-2.0
"""What of a model's layers one rank has, and the layers that all kinds of blocks are made of."""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.fleet.layers.tape import Tape
from trnlab.fleet.models.encoder_decoder import Crossed, Pair
from trnlab.fleet.models.transformer import Block, Dense, Model
from trnlab.graph.ir import Value


@dataclass(frozen=True)
class Share:
    """What of a model's work one rank has: `batch` sequences of `length` tokens, 1 / `context` of each, 1 / `tensor`
    of each layer, 1 / `expert` of the experts.

    network: "kept", or "again" where the backward pass makes what is inside a network once more. attention: "fused",
    or "remade" where the backward pass makes it once more; "written" and "again" are the same for releases before
    there were kernels of it, see `Tape.written_attention`. block: "kept", or "again" where the backward pass makes
    what is inside a block once more, and keeps what enters it alone. sharded: whether ranks have parts of weights and
    gradients alone (ZeRO-3), so that gradients go to others in float32, and no sums of a whole layer are kept.
    """

    batch: int
    length: int
    tensor: int = 1
    form: str = "bfloat16"
    attention: str = "fused"
    network: str = "kept"
    context: int = 1
    expert: int = 1
    sharded: bool = False
    block: str = "kept"

    @property
    def tokens(self) -> int:
        """Tokens of a sequence that this rank's context has."""
        return self.length // self.context


@dataclass(frozen=True)
class Crossing(Share):
    """A rank's share of such blocks: `length` tokens are decoded of each sequence, of which the encoder has read
    `memory`."""

    memory: int = 0


def share_of(model: Model, block: Block, share: Share) -> Share:
    """A share of this block, where that of the model's first blocks is `share`."""
    if not (isinstance(model, Pair) and isinstance(block, Crossed)):
        return share
    return Crossing(**vars(share) | {"length": model.decoded}, memory=share.length)


@dataclass
class Rank:
    """Layers of one rank on a tape, divided as `share` says: heads and columns among the ranks of a tensor group,
    what lies between them by the sequence (Korthikanti et al. 2022)."""

    tape: Tape
    share: Share

    def local(self, hidden: int) -> tuple[int, int, int]:
        """The shape of the residual stream on a rank."""
        return self.share.batch, self.share.tokens // self.share.tensor, hidden

    def gathered(self, x: Value) -> Value:
        """The parts of all ranks of the tensor group, along the second dimension."""
        return x if self.share.tensor == 1 else self.tape.gathered(x)

    def scattered(self, x: Value) -> Value:
        """This rank's part of the sum over the tensor group, along the second dimension."""
        return x if self.share.tensor == 1 else self.tape.scattered(x)

    def part(self, n: int) -> int:
        """This rank's part of n heads or columns."""
        return max(n // self.share.tensor, 1)

    def norm(self, name: str, block: Block, x: Value) -> Value:
        """The block's kind of norm."""
        shift = self.tape.weight(name + "_shift", block.hidden) if block.norm == "layer" else None
        return self.tape.norm(x, self.tape.weight(name + "_scale", block.hidden), shift)

    def linear(self, name: str, x: Value, width: int, bias: bool = False) -> Value:
        """x [..., K] -> [..., width]."""
        weight = self.tape.weight(name, width, x.shape[-1])
        return self.tape.linear(x, weight, self.tape.weight(name + "_bias", width) if bias else None)

    def turned(self, *xs: Value) -> tuple[Value, ...]:
        """Each [B, N, S, D] by the angles of its places."""
        angles = tuple(self.tape.given((self.share.tokens, xs[0].shape[-1])) for _ in range(2))
        return tuple(self.tape.rotated(x, *angles) for x in xs)

    def dense(self, name: str, network: Dense, x: Value) -> Value:
        """A network whose columns are divided; x [B, S / t, H] -> the same."""
        tape, width, x = self.tape, self.part(network.size), self.gathered(x)
        hidden = x.shape[-1]

        def inside(x: Value) -> Value:
            if network.gated:
                opened = tape.activation(self.linear(name + "_gate", x, width), network.function)
                return tape.multiply(opened, self.linear(name + "_up", x, width))
            return tape.activation(self.linear(name + "_up", x, width, network.bias), network.function)

        inner = tape.remade(inside, x) if self.share.network == "again" else inside(x)
        return self.scattered(self.linear(name + "_down", inner, hidden, network.bias))
