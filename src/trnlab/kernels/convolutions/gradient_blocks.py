# SPDX-License-Identifier: Apache-2.0
"""How a gradient by the weight is cut into blocks that fit on chip, for `gradient`: which channels and images are on
chip at a time. What fits is compared by its times.

The input is transposed for each block of output channels and each tap, the result's gradient for each block of input
channels: of large blocks of the one there is room for small ones of the other.

Letters: C channels of the input, O channels of the result, N images; [H, W] pixels of the input, [Y, X] of dy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import NamedTuple

from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError
from trnlab.kernels.blocking.estimate import bandwidth
from trnlab.kernels.blocks import BANK, P
from trnlab.kernels.convolutions.gradient_plan import LEAST_COLUMNS, SLACK, WAITING
from trnlab.kernels.windows import Taps


class PixelChunk(NamedTuple):
    """Pixels contracted by one matmul: some rows of some images of a group, or a part of a row."""

    image: int
    images: int
    row: int
    rows: int
    col: int
    cols: int

    @property
    def pixels(self) -> int:
        """How many."""
        return self.images * self.rows * self.cols


class GradientBlocks(NamedTuple):
    """What is on chip at a time: channels of the input, blocks of P output channels, images."""

    channels: int
    outs: int
    images: int


@dataclass(frozen=True)
class BlockedGradient:
    """x [C, N, H, W], dy [O, N, Y, X]; bytes of their elements, and of the result's. apart: whether the sums are kept
    apart from the result."""

    x: tuple[int, ...]
    dy: tuple[int, ...]
    taps: tuple[Taps, Taps]
    item: int
    out_item: int
    apart: bool = False

    @property
    def elements(self) -> int:
        """Taps in all."""
        return self.taps[0].count * self.taps[1].count

    @property
    def seen(self) -> tuple[int, int]:
        """Rows and columns of the input that taps meet, zeros included."""
        return self.taps[0].reach(self.dy[2]), self.taps[1].reach(self.dy[3])

    @property
    def padded(self) -> bool:
        """Whether taps meet zeros around the input."""
        (high, wide), (h, w) = self.seen, self.x[2:]
        return any(t.low for t in self.taps) or high > h or wide > w

    def chunks(self, images: int) -> Iterator[PixelChunk]:
        """The pixels of so many images, at most P at a time."""
        all_rows, all_cols = self.dy[2:]
        cols = min(all_cols, P)
        rows = min(all_rows, P // cols) if cols == all_cols else 1
        together = max(1, P // (all_rows * all_cols)) if rows == all_rows else 1
        for image in range(0, images, together):
            several = min(together, images - image)
            for row, col in product(range(0, all_rows, rows), range(0, all_cols, cols)):
                yield PixelChunk(image, several, row, min(rows, all_rows - row), col, min(cols, all_cols - col))

    def side(self, channels: int) -> int:
        """Taps side by side in one matmul."""
        return min(max(1, BANK // channels), self.elements)

    def across(self, blocks: GradientBlocks) -> int:
        """Columns of a turned tile, of taps side by side: of the last channels, which may be fewer, more are."""
        last = self.x[0] % blocks.channels or blocks.channels
        return max(self.side(channels) * channels for channels in (blocks.channels, last))

    def groups(self, blocks: GradientBlocks) -> tuple[int, int, int]:
        """Groups of input channels, of output channels, and of images."""
        return (
            ceil(self.x[0] / blocks.channels),
            ceil(self.dy[0] / (blocks.outs * P)),
            ceil(self.x[1] / blocks.images),
        )

    def several(self, blocks: GradientBlocks) -> bool:
        """Whether sums are kept in fp32 until the result is known."""
        return self.apart or blocks.images < self.x[1]

    def bufs(self, blocks: GradientBlocks) -> int:
        """Tiles of what is loaded: for the next images or output channels, if there are any."""
        _, outs, images = self.groups(blocks)
        return min(2, outs * images)

    def bytes(self, blocks: GradientBlocks) -> int:
        """Bytes of a partition."""
        depth, images, bufs = ceil(blocks.channels / P), blocks.images, self.bufs(blocks)
        chunks = sum(1 for _ in self.chunks(images))
        (high, wide), (h, w), (rows, cols) = self.seen, self.x[2:], self.dy[2:]
        raw = depth * images * h * w + blocks.outs * images * rows * cols
        padded = depth * images * high * wide if self.padded else 0
        turned = chunks * (bufs * blocks.outs * P + 2 * self.across(blocks))
        sums = (4 + self.out_item) if self.several(blocks) else self.out_item
        total = blocks.outs * blocks.channels * self.elements * sums
        return (bufs * (raw + padded) + turned) * self.item + total + SLACK

    def seconds(self, blocks: GradientBlocks, chip: Chip) -> float:
        """About what it takes: the engine that is busy the longest, and something of what others are."""
        of_channels, of_outs, of_images = self.groups(blocks)
        c, o = ceil(self.x[0] / P) * P, ceil(self.dy[0] / P)
        chunks = of_images * sum(1 for _ in self.chunks(blocks.images))
        turned = chunks * (of_outs * self.elements * c + of_channels * o * P)
        width = blocks.channels * self.side(blocks.channels)
        products = chunks * o * self.elements * c * max(1.0, LEAST_COLUMNS / width)
        array = (turned + products) / chip.tensor.clock.value
        summed = of_images * o * self.elements * c
        copies = (turned / (2 if chip.has("parallel_ports") else 1) + summed) / chip.scalar.clock.value
        pixels = [shape[0] * shape[1] * shape[2] * shape[3] for shape in (self.x, self.dy)]
        moved = (of_outs * pixels[0] + of_channels * pixels[1]) * self.item
        moved += self.x[0] * self.dy[0] * self.elements * self.out_item
        engines = array, copies, moved / bandwidth(chip)
        return max(engines) + WAITING * sum(engines)


def choose(problem: BlockedGradient, room: int, chip: Chip) -> GradientBlocks:
    """The blocks that take the least time of those that fit into `room` bytes of a partition. Raises
    CapacityError."""
    channels, images = problem.x[:2]
    sizes = _parts(ceil(channels / P)), _parts(ceil(problem.dy[0] / P))
    best, least = None, 0.0
    for depth, outs in product(*sizes):
        blocks = GradientBlocks(min(depth * P, channels), outs, images)
        while problem.bytes(blocks) > room and blocks.images > 1:
            blocks = blocks._replace(images=ceil(blocks.images / 2))
        if problem.bytes(blocks) <= room:
            seconds = problem.seconds(blocks, chip)
            if best is None or seconds < least:
                best, least = blocks, seconds
    if best is None:
        one = GradientBlocks(min(P, channels), 1, 1)
        raise CapacityError(
            "a convolution's gradient needs more SBUF than there is",
            code="TRN501",
            limit=f"{room} B per partition",
            got=f"{problem.bytes(one)} B for one image",
            remedy="make the image smaller, or its channels fewer",
        )
    return best


def least_seconds(problem: BlockedGradient, room: int, chip: Chip) -> float:
    """About what the best blocks take. Raises CapacityError."""
    return problem.seconds(choose(problem, room, chip), chip)


def _parts(blocks: int) -> list[int]:
    """Numbers of blocks at a time: what equal parts have."""
    return sorted({ceil(blocks / n) for n in range(1, blocks + 1)})
