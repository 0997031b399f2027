# SPDX-License-Identifier: Apache-2.0
"""Groups of a grouped or depthwise convolution, packed: several of them are one product whose weights are blocks on
the diagonal, with zeros elsewhere.

The PE array takes 128 channels at a time whatever they are worth; a pack of groups takes it no longer than one group.
The price: an infinite input makes NaN of all results of its pack at the places that meet it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import BANK, P, ViewSource, Workspace
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import DType, float32
from trnlab.program.access import AP
from trnlab.program.builder import Builder


@dataclass(frozen=True)
class Packs:
    """`groups` groups of `inputs` input channels and `outputs` output channels each."""

    groups: int
    inputs: int
    outputs: int

    @property
    def together(self) -> int:
        """Groups of a pack; 0 where one has more channels than the PE array."""
        return min(self.groups, P // self.inputs, P // self.outputs)

    @property
    def count(self) -> int:
        """How many packs there are."""
        return ceil(self.groups / self.together)

    @property
    def k(self) -> int:
        """Input channels of a pack."""
        return self.together * self.inputs

    @property
    def m(self) -> int:
        """Output channels of a pack."""
        return self.together * self.outputs

    def each(self) -> Iterator[tuple[slice, slice]]:
        """Input and output channels of one group after the other."""
        for i in range(self.groups):
            yield slice(i * self.inputs, (i + 1) * self.inputs), slice(i * self.outputs, (i + 1) * self.outputs)

    def alike(self, b: Builder, dt: DType) -> AP:
        """[P output channels, groups, input channels of a group]: 1 where both are of one group, 0 elsewhere."""
        tile = b.tile((P, self.together, self.inputs), float32, name="one group")
        b.memset(dst=tile, value=1.0, engine=Engine.GPSIMD)
        step = self.outputs
        for sign, offset in ((-1, 0), (1, step - 1)):  # group * step <= output <= group * step + step - 1
            b.affine_select(
                dst=tile,
                on_true=tile,
                pattern=((sign * step, self.together), (0, self.inputs)),
                offset=offset,
                channel_multiplier=-sign,
                cmp_op="is_ge",
                on_false=0.0,
                engine=Engine.GPSIMD,
            )
        if dt is float32:
            return tile
        narrow = b.tile(tile.shape, dt, name="one group")
        b.tensor_copy(dst=narrow, src=tile)
        return narrow


class PackedWeights:
    """The stationary operands of packs: [K, M] for each element of the window, blocks on the diagonal."""

    def __init__(self, b: Builder, work: Workspace, weight: HbmView, packs: Packs, channels: int) -> None:
        """weight [O, input channels of a group, window]. `channels`: output channels held at a time."""
        self.b, self.work, self.weight, self.packs = b, work, weight, packs
        self.elements = weight.shape[2] * weight.shape[3]
        self.tile = b.tile((P, self.elements, channels), weight.dtype, name="weights")
        self.alike = packs.alike(b, weight.dtype)
        self.first = 0

    def load(self, first: int, count: int) -> None:
        """Bring output channels [first, +count) on chip."""
        self.first = first
        for at in range(first, first + count, self.packs.m):
            self._turn(at, min(self.packs.m, first + count - at))

    def _turn(self, at: int, rows: int) -> None:
        """Output channels lie in rows: put each beside zeros, and transpose."""
        dt, inputs, n = self.weight.dtype, self.packs.inputs, ceil(rows / self.packs.outputs)
        raw = self.work.pool("raw weights", (P, inputs * self.elements), dt, bufs=2).next()[:rows]
        ViewSource(self.weight).load(self.b, raw, at, 0)
        wide = self.work.pool("spread weights", (P, self.elements, self.packs.k), dt, bufs=2).next()[:rows]
        for e in range(self.elements):
            self.b.tensor_tensor(
                dst=wide[:, e, : n * inputs].split(0, n, inputs),
                data2=self.alike[:rows, :n],
                op="multiply",
                data1=raw.with_dims((0, n), (self.elements, inputs), skip=e),
                engine=Engine.VECTOR,
            )
        side, height = BANK * 4 // dt.itemsize // P, n * inputs
        for e in range(0, self.elements, side):
            several = min(side, self.elements - e)
            bank = self.b.psum((P, side, P), dt)
            for i in range(several):
                data = wide[:, e + i, :height]
                self.b.nc_transpose(dst=bank[:height, i, :rows], data=data, engine=Engine.TENSOR)
            target = self.tile[:height, e : e + several, at - self.first : at - self.first + rows]
            self.work.evacuate(target, bank[:height, :several, :rows])

    def at(self, kb: int, height: int, element: int, m: int, count: int) -> AP:
        """[K, M] of one element of the window: output channels [m, +count), and the input channels of their pack."""
        assert kb == m // self.packs.m, "a pack has input channels of its own"
        return self.tile[:height, element, m - self.first : m - self.first + count]
