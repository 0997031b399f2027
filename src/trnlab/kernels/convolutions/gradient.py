# SPDX-License-Identifier: Apache-2.0
"""Gradient of a convolution by its weight: a product over pixels for each element of the window.

Pixels lie along the free dimension of both operands, and must be contracted: blocks of them are transposed on the PE
array, the output's gradient once, the input once for each element of the window, as it is shifted. Several elements
are streamed side by side where there are few channels. Products add up in PSUM over the pixels of some images, and
in SBUF over the groups of images.

Letters: C channels of the input, O channels of the result, N images, [Y, X] pixels of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import ceil, inf
from typing import Any, NamedTuple

from trnlab.errors import CapacityError
from trnlab.isa.base import Engine
from trnlab.kernels.blocks import BANK, BANKS, P, Workspace, dma_load, dma_store
from trnlab.kernels.convolutions.gradient_blocks import (
    BlockedGradient,
    GradientBlocks,
    PixelChunk,
    choose,
    least_seconds,
)
from trnlab.kernels.convolutions.gradient_depthwise import depthwise_problem, depthwise_weight_gradient
from trnlab.kernels.convolutions.gradient_lanes import lanes_seconds, weight_gradient_in_lanes
from trnlab.kernels.convolutions.gradient_plan import pays
from trnlab.kernels.packs import Packs
from trnlab.kernels.transpose import Step, interleave
from trnlab.kernels.view import HbmView
from trnlab.kernels.windows import Taps
from trnlab.numerics.dtypes import float32, uint8
from trnlab.program.access import AP
from trnlab.program.builder import Builder

_TURNED_BANKS = 4  # of PSUM, to transpose into; the others add up


class _Stage(NamedTuple):
    """What some taps need on chip, and their products."""

    prepare: list[Step]
    multiply: list[Step]


def weight_gradient(
    b: Builder, x: HbmView, dy: HbmView, out: HbmView, taps: tuple[Taps, Taps], groups: int = 1
) -> None:
    """Record out[c, o, i, j] = sum over images and pixels of dy[o, n, y, x] and the input that tap (i, j) meets.

    x [C, N, H, W], dy [O, N, Y, X], out [C / groups, O, taps]; x and dy have one format. Sums are fp32. Uses the SBUF
    that is free in `b` and leaves it free. Raises CapacityError where it is too little.
    """
    if groups == 1:
        problem = _problem(x, dy, out, taps)
        if pays(x.shape, dy.shape, taps) and _are_lanes_faster(b, problem, x, dy, out, taps):
            weight_gradient_in_lanes(b, x, dy, out, taps)
            return
        blocks = choose(problem, b.sbuf_free, b.chip)
        for at in range(0, x.shape[0], blocks.channels):
            channels = slice(at, min(at + blocks.channels, x.shape[0]))
            with b.scope():
                _Gradient(b, x[channels], dy, out[channels], taps, blocks).record()
        return
    packs = Packs(groups, x.shape[0] // groups, dy.shape[0] // groups)
    if packs.together <= 1:
        for c, o in packs.each():
            weight_gradient(b, x[c], dy[o], out[:, o], taps)
        return
    if packs.inputs == 1 and _are_columns_faster(b, packs, x, dy, out, taps):
        depthwise_weight_gradient(b, x, dy, out, taps)
        return
    for i in range(packs.count):
        c, o = (slice(i * n, min((i + 1) * n, size)) for n, size in ((packs.k, x.shape[0]), (packs.m, dy.shape[0])))
        with b.scope():
            _PackGradient(b, x[c], dy[o], out[:, o], taps, packs).record()


def _are_lanes_faster(
    b: Builder, problem: BlockedGradient, x: HbmView, dy: HbmView, out: HbmView, taps: tuple[Taps, Taps]
) -> bool:
    lanes = _seconds(lanes_seconds, b, x, dy, out, taps)
    return lanes < _seconds(least_seconds, problem, b.sbuf_free, b.chip)


def _are_columns_faster(
    b: Builder, packs: Packs, x: HbmView, dy: HbmView, out: HbmView, taps: tuple[Taps, Taps]
) -> bool:
    depthwise = depthwise_problem(x, dy, out, taps)
    columns = _seconds(lambda: depthwise.seconds(depthwise.choose(b.sbuf_free, b.chip), b.chip))
    problem = _problem(x[: packs.k], dy[: packs.m], out, taps, apart=True)
    return columns < packs.count * _seconds(least_seconds, problem, b.sbuf_free, b.chip)


def _seconds(estimate: Callable[..., float], *given: Any) -> float:
    """An estimate, without end where there is no room."""
    try:
        return estimate(*given)
    except CapacityError:
        return inf


def _problem(x: HbmView, dy: HbmView, out: HbmView, taps: tuple[Taps, Taps], apart: bool = False) -> BlockedGradient:
    return BlockedGradient(x.shape, dy.shape, taps, x.dtype.itemsize, out.dtype.itemsize, apart)


class _Gradient:
    apart = False  # whether the sums are kept apart from the result

    def __init__(
        self,
        b: Builder,
        x: HbmView,
        dy: HbmView,
        out: HbmView,
        taps: tuple[Taps, Taps],
        blocks: GradientBlocks,
    ) -> None:
        """x: of a block of channels."""
        self.b, self.x, self.dy, self.out, self.taps = b, x, dy, out, taps
        self.work = Workspace(b)
        self.c, self.images, self.h, self.w = x.shape
        self.o, self.rows, self.cols = dy.shape[0], dy.shape[2], dy.shape[3]
        self.problem = problem = _problem(x, dy, out, taps, self.apart)
        self.blocks, self.out_blocks, self.group = blocks, blocks.outs, blocks.images
        self.depth, self.elements = ceil(self.c / P), problem.elements
        self.seen, self.padded, self.side = problem.seen, problem.padded, problem.side(self.c)
        self._turn = self._sum = 0

    # -- the loops --------------------------------------------------------------------------------------------------
    def record(self) -> None:
        """All of it."""
        b, dt = self.b, self.x.dtype
        chunks, bufs = len(list(self.problem.chunks(self.group))), self.problem.bufs(self.blocks)
        self.inputs = b.pool((P, self.depth, self.group * self.h * self.w), dt, bufs=bufs, name="input")
        self.gradients = b.pool(
            (P, self.out_blocks, self.group * self.rows * self.cols), dt, bufs=bufs, name="gradient"
        )
        if self.padded:
            shape = (P, self.depth, self.group * self.seen[0] * self.seen[1])
            self.spread = b.pool(shape, dt, bufs=bufs, name="padded")
            for _ in range(bufs):
                b.memset(dst=self.spread.next(), value=0.0, engine=Engine.GPSIMD)
        self.turned_x = b.pool((P, chunks, self.side * self.c), dt, bufs=2, name="turned input")
        self.turned_dy = b.pool((P, chunks, self.out_blocks * P), dt, bufs=bufs, name="turned gradient")
        several = self.problem.several(self.blocks)
        self.sums = b.tile((P, self.out_blocks, self.c, self.elements), float32 if several else self.out.dtype)
        self.result = b.tile(self.sums.shape, self.out.dtype, name="result") if several else self.sums
        self.accumulators = [b.psum((P, BANK), bank=i) for i in range(_TURNED_BANKS, BANKS)]
        self.banks = [b.psum((P, BANK * 4 // dt.itemsize), dt, bank=i) for i in range(_TURNED_BANKS)]
        before: list[Step] = []
        for stage in self._stages():
            interleave(before, stage.prepare)
            before = stage.multiply
        interleave(before, [])

    def _stages(self) -> Iterator[_Stage]:
        """What is transposed, then multiplied, for one step of taps after the other; and what follows."""
        wide = self.out_blocks * P
        for first in range(0, self.o, wide):
            count = min(wide, self.o - first)
            for image in range(0, self.images, self.group):
                yield from self._group_stages(first, count, image, min(self.group, self.images - image))
            yield _Stage([], [partial(self._store, first, count)])

    def _group_stages(self, first: int, count: int, image: int, images: int) -> Iterator[_Stage]:
        """Those of some images, for output channels [first, +count)."""
        chunks = list(self.problem.chunks(images))
        dy, x, turned_dy = self.gradients.next(), self.inputs.next(), self.turned_dy.next()
        spread, pitch = (self.spread.next(), self.seen) if self.padded else (x, (self.h, self.w))
        prepare: list[Step] = [
            partial(self._load, self.dy, dy, first, count, image, images),
            *(partial(self._turn_gradient, dy, turned_dy[:, i], chunk, count) for i, chunk in enumerate(chunks)),
            partial(self._load, self.x, x, 0, self.c, image, images),
            *([partial(self._pad, x, spread, images)] if self.padded else []),
        ]
        for tap in range(0, self.elements, self.side):
            several = min(self.side, self.elements - tap)
            turned = self.turned_x.next()
            prepare += [
                partial(self._turn_input, spread, pitch, turned[:, i], chunk, tap, several)
                for i, chunk in enumerate(chunks)
            ]
            multiply: list[Step] = [
                step
                for block in range(0, count, P)
                for step in self._products(
                    turned, turned_dy, chunks, block, min(P, count - block), (tap, several), image, images
                )
            ]
            yield _Stage(prepare, multiply)
            prepare = []

    def _load(self, view: HbmView, tile: AP, first: int, count: int, image: int, images: int) -> None:
        """[channels, blocks, images and pixels]."""
        pixels = images * view.shape[2] * view.shape[3]
        for block in range(ceil(count / P)):
            height = min(P, count - block * P)
            start = first + block * P
            part = view[start : start + height, image : image + images]
            dma_load(self.b, tile[:height, block, :pixels], part.ap())

    def _pad(self, x: AP, spread: AP, images: int) -> None:
        """The input between zeros, which are there from the start."""
        high, wide = self.seen
        top, left = self.taps[0].low, self.taps[1].low
        first = max(0, -top), max(0, -left)
        rows, cols = min(self.h, high - top) - first[0], min(self.w, wide - left) - first[1]
        for block in range(self.depth):
            height = min(P, self.c - block * P)
            source = x[:height, block].with_dims(
                (self.h * self.w, images), (self.w, rows), (1, cols), skip=first[0] * self.w + first[1]
            )
            target = spread[:height, block].with_dims(
                (high * wide, images), (wide, rows), (1, cols), skip=(top + first[0]) * wide + left + first[1]
            )
            self.work.evacuate(target, source)

    # -- transposes -------------------------------------------------------------------------------------------------
    def _bank(self) -> AP:
        self._turn += 1
        return self.banks[self._turn % len(self.banks)]

    def _turn_gradient(self, dy: AP, target: AP, chunk: PixelChunk, count: int) -> None:
        """Pixels to partitions, all output channels side by side."""
        pixels = self.rows * self.cols
        skip = chunk.image * pixels + chunk.row * self.cols + chunk.col
        dims = (pixels, chunk.images), (self.cols, chunk.rows), (1, chunk.cols)
        pieces = [(dy[: min(P, count - at), at // P].with_dims(*dims, skip=skip), at) for at in range(0, count, P)]
        self._transposed(pieces, target, chunk)

    def _turn_input(
        self, x: AP, pitch: tuple[int, int], target: AP, chunk: PixelChunk, tap: int, several: int
    ) -> None:
        """The input that some taps meet in the pixels of a chunk; all channels side by side, tap after tap."""
        high, wide = pitch
        pieces = []
        for i in range(several):
            row, col = divmod(tap + i, self.taps[1].count)
            top = chunk.row * self.taps[0].stride + row * self.taps[0].dilation
            left = chunk.col * self.taps[1].stride + col * self.taps[1].dilation
            skip = chunk.image * high * wide + top * wide + left
            dims = (
                (high * wide, chunk.images),
                (self.taps[0].stride * wide, chunk.rows),
                (self.taps[1].stride, chunk.cols),
            )
            for at in range(0, self.c, P):
                data = x[: min(P, self.c - at), at // P].with_dims(*dims, skip=skip)
                pieces.append((data, i * self.c + at))
        self._transposed(pieces, target, chunk)

    def _transposed(self, pieces: list[tuple[AP, int]], target: AP, chunk: PixelChunk) -> None:
        """Each piece into its columns of the target; neighbours share a bank and a copy out of it."""
        pixels, width = chunk.pixels, self.banks[0].free
        while pieces:
            begin, bank, end = pieces[0][1], self._bank(), pieces[0][1]
            while pieces and pieces[0][1] == end and end + pieces[0][0].partitions - begin <= width:
                data, at = pieces.pop(0)
                dst = bank[:pixels, at - begin : at - begin + data.partitions]
                self.b.nc_transpose(dst=dst, data=data, engine=Engine.TENSOR)
                end = at + data.partitions
            self.work.evacuate(target[:pixels, begin:end], bank[:pixels, : end - begin])

    # -- products ---------------------------------------------------------------------------------------------------
    def _products(
        self,
        turned: AP,
        turned_dy: AP,
        chunks: list[PixelChunk],
        block: int,
        count: int,
        taps: tuple[int, int],
        image: int,
        images: int,
    ) -> Iterator[Step]:
        """[O, taps and channels] over all chunks, into the sums."""
        tap, several = taps
        whole = several * self.c
        for col in range(0, whole, BANK):
            width = min(BANK, whole - col)
            self._sum += 1
            acc = self.accumulators[self._sum % len(self.accumulators)][:count, :width]
            for i, chunk in enumerate(chunks):
                pixels = chunk.pixels
                yield partial(
                    self.b.nc_matmul,
                    dst=acc,
                    stationary=turned_dy[:pixels, i, block : block + count],
                    moving=turned[:pixels, i, col : col + width],
                    accumulate=i > 0,
                    stop=i == len(chunks) - 1,
                )
            yield partial(self._gather, acc, block, count, tap, several, col, width, image, images)

    def _gather(
        self, acc: AP, block: int, count: int, tap: int, several: int, col: int, width: int, image: int, images: int
    ) -> None:
        """What a group adds; the last one's sum is the result."""
        first, last = image == 0, image + images == self.images

        def part(tile: AP) -> AP:
            whole = tile[:count, block // P]
            if several > 1:
                return whole.with_dims((1, several), (self.elements, self.c), skip=tap)
            return whole.with_dims((self.elements, width), skip=col * self.elements + tap)

        if first:
            self.work.evacuate(part(self.sums), acc)
        else:
            whole = self.result if last and not self.apart else self.sums
            self.work.add(part(whole), acc, part(self.sums))

    def _store(self, first: int, count: int) -> None:
        for at in range(0, count, P):
            height = min(P, count - at)
            view = self.out[:, first + at : first + at + height].permute(1, 0, 2, 3)
            dma_store(self.b, view.ap(), self.result[:height, at // P])


class _PackGradient(_Gradient):
    """The gradient of a pack of groups: all of its channels meet, and those of one group are kept."""

    apart = True

    def __init__(
        self, b: Builder, x: HbmView, dy: HbmView, out: HbmView, taps: tuple[Taps, Taps], packs: Packs
    ) -> None:
        self.alike, self.of_group = packs.alike(b, uint8), packs.inputs
        shape = (P, self.of_group, taps[0].count * taps[1].count)
        self.kept, self.narrow = b.tile(shape, float32, name="kept"), b.tile(shape, out.dtype, name="gradient")
        problem = _problem(x, dy, out, taps, self.apart)
        super().__init__(b, x, dy, out, taps, choose(problem, b.sbuf_free, b.chip))

    def _store(self, first: int, count: int) -> None:
        """A sum over groups, of which all but one are zero: [O, input channels of a group, taps]."""
        n, elements = self.c // self.of_group, self.elements
        sums = self.sums[:count, 0].split(0, n, self.of_group)
        keep = self.alike[:count, :n]
        kept, result = self.kept[:count], self.narrow[:count]
        for e in range(elements):
            every = sums.with_dims((self.of_group * elements, n), (elements, self.of_group), skip=e)
            self.b.select_reduce(dst=every, predicate=keep, on_true=every, on_false=0.0)
            turned = sums.with_dims((elements, self.of_group), (self.of_group * elements, n), skip=e)
            target = kept.with_dims((elements, self.of_group), skip=e)
            self.b.tensor_reduce(dst=target, data=turned, op="add", axes=1)
        self.b.tensor_copy(dst=result, src=kept)
        view = self.out[:, first : first + count].permute(1, 0, 2, 3)
        dma_store(self.b, view.ap(), result)
