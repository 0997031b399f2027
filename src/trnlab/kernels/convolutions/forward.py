# SPDX-License-Identifier: Apache-2.0
"""Convolution as an implicit matrix product: the elements of the window add up in PSUM, nothing is copied.

Channels are contracted on the PE array; the moving operand is the input itself, shifted by one element of the window
after the other, the stationary one the weights of that element. What a window sees outside of the input is left out
of its matmul, so that no zeros are stored or streamed. A spread input (the gradient of a strided convolution) has a
phase for each residue of its places, with only those elements of the window that meet input there.

Letters: N images, K input channels (contracted), M output channels, [H, W] input, [Y, X] places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import (
    ANNOUNCED,
    BANK,
    BANKS,
    P,
    Sink,
    ViewSource,
    Workspace,
    dma_load,
    dma_store,
)
from trnlab.kernels.packs import PackedWeights, Packs
from trnlab.kernels.view import HbmView
from trnlab.kernels.windows import OutputPhase, Slide, WindowTap
from trnlab.program.access import AP
from trnlab.program.builder import Builder
from trnlab.program.pool import TilePool

_WEIGHTS_SHARE, _INPUT_SHARE = 0.45, 0.35  # of the free SBUF; what is left is the results'
_INPUTS, _RESULTS, _RAW = 2, 3, 2  # tiles of each in flight; of weights before they are turned


def convolution(
    b: Builder,
    x: HbmView,
    weight: HbmView,
    out: HbmView,
    slides: tuple[Slide, Slide],
    sink: Sink | None = None,
    groups: int = 1,
) -> None:
    """Record out[n, m, y, x] = sum over channels and the window, in fp32, rounded once to the format of `out`.

    x [N, K, H, W], weight [M, K / groups, window], out [N, M, Y, X]; x and weight have one format. With a sink, which
    needs an input that is not spread, the sums go there as a matrix [M, N Y X] instead. Uses the SBUF that is free in
    `b` and leaves it free. Raises CapacityError where it is too little.
    """
    packs = Packs(groups, x.shape[1] // groups, out.shape[1] // groups) if groups > 1 else None
    if packs is not None and not packs.together:
        assert sink is None, "the rows of a tile are not those of one group"
        for k, m in packs.each():
            convolution(b, x[:, k], weight[m], out[:, m], slides)
        return
    with b.scope():
        _Convolver(b, x, weight, out, slides, sink, packs).record()


@dataclass(frozen=True)
class _Block:
    """Images [image, +images) and rows of places [start, stop), in steps of a phase, with the input rows for them."""

    image: int
    images: int
    start: int
    stop: int
    low: int
    high: int


class _Weights:
    """The stationary operands: [K, M] for each element of the window, of some output channels."""

    def __init__(self, b: Builder, work: Workspace, weight: HbmView, channels: int) -> None:
        """`channels`: output channels held at a time."""
        self.b, self.work, self.weight = b, work, weight
        k, *window = weight.shape[1:]
        self.elements, self.depth, self.held = window[0] * window[1], ceil(k / P), channels
        self.direct = weight.strides[1] >= weight.strides[0]
        # whether channels follow each other in memory, and elements of the window lie outside, as in [Y, X, K, M]
        self.outside = self.elements > 1 and min(weight.strides[:2]) < min(map(abs, weight.strides[2:]))
        shape: tuple[int, ...] = (P, self.depth, self.elements, channels)
        if self.direct and not self.outside:
            shape = (P, self.depth, channels * self.elements)
        self.tile = b.tile(shape, weight.dtype, name="weights")
        self.first = 0

    def load(self, first: int, count: int) -> None:
        """Bring output channels [first, +count) on chip."""
        self.first = first
        if self.direct:
            self._load_direct(first, count)
            return
        for at in range(first, first + count, P):
            self._turn(at, min(P, first + count - at))

    def _load_direct(self, first: int, count: int) -> None:
        """Input channels lie in rows: a transfer for each block of them and of output channels, so that the first
        products need not wait for the last weights."""
        depth = self.weight.shape[1]
        for channel, at in product(range(0, depth, P), range(0, count, P)):
            height, cols = min(P, depth - channel), min(P, count - at)
            part = self.weight[first + at : first + at + cols, channel : channel + height]
            tile = self.tile[:height, channel // P]
            if self.outside:
                dma_load(self.b, tile[:, :, at : at + cols], part.permute(1, 2, 3, 0).ap())
            else:
                start, stop = at * self.elements, (at + cols) * self.elements
                ViewSource(part.permute(1, 0, 2, 3)).load(self.b, tile[:, start:stop], 0, 0)

    @cached_property
    def _several(self) -> int:
        """Input channels of raw weights that are on chip at a time: all, or as many blocks as there is room for when
        the first are loaded, which is after all other tiles were placed."""
        k, each = self.weight.shape[1], _RAW * self.elements * self.weight.dtype.itemsize
        room = self.b.sbuf_free // each
        return k if k <= room else max(P, room // P * P)

    def _turn(self, at: int, rows: int) -> None:
        """Output channels lie in rows: transpose the block of each element and 128 input channels."""
        k = self.weight.shape[1]
        for first in range(0, k, self._several):
            count = min(self._several, k - first)
            raw = self.work.pool(
                "raw weights", (P, self._several * self.elements), self.weight.dtype, bufs=_RAW
            ).next()[:rows, : count * self.elements]
            if self.outside:
                channels = self.weight[at : at + rows, first : first + count].permute(0, 2, 3, 1)
                dma_load(self.b, raw.split(0, self.elements, count), channels.ap())
            else:
                ViewSource(self.weight).load(self.b, raw, at, first * self.elements)
            element, channel = (count, 1) if self.outside else (1, self.elements)
            for start in range(0, count, P):
                dims = (element, self.elements), (channel, min(P, count - start))
                self._turn_block(raw.with_dims(*dims, skip=start * channel), at, first + start)

    def _turn_block(self, raw: AP, at: int, channel: int) -> None:
        """Turn raw weights [M, elements, input channels], of input channels from `channel` on."""
        dt, (rows, _, height) = self.weight.dtype, raw.shape
        side = BANK * 4 // dt.itemsize // P  # transposes that fit into a bank
        for e in range(0, self.elements, side):
            several = min(side, self.elements - e)
            bank = self.b.psum((P, side, P), dt)
            for i in range(several):
                self.b.nc_transpose(dst=bank[:height, i, :rows], data=raw[:, e + i], engine=Engine.TENSOR)
            target = self.tile[:height, channel // P, e : e + several, at - self.first : at - self.first + rows]
            self.work.evacuate(target, bank[:height, :several, :rows])

    def at(self, kb: int, height: int, element: int, m: int, count: int) -> AP:
        """[K, M] of one element of the window: 128 (or `height`) input channels, output channels [m, +count)."""
        m -= self.first
        if self.direct and not self.outside:
            skip = m * self.elements + element
            return self.tile[:height, kb].with_dims((self.elements, count), skip=skip)
        return self.tile[:height, kb, element, m : m + count]


class _Convolver:
    def __init__(
        self,
        b: Builder,
        x: HbmView,
        weight: HbmView,
        out: HbmView,
        slides: tuple[Slide, Slide],
        sink: Sink | None,
        packs: Packs | None,
    ) -> None:
        self.b, self.x, self.out, self.slides, self.sink = b, x, out, slides, sink
        self.work = Workspace(b)
        self.phases = slides[0].phases(), slides[1].phases()
        self.images, self.k = x.shape[:2]
        self.m = out.shape[1]
        self.packs = packs
        self.high, self.wide = (P, P) if self.packs is None else (self.packs.k, self.packs.m)  # of a block of weights
        self.depth = ceil(self.k / self.high)
        self.rows, self.cols = self.phases[0][0].places, self.phases[1][0].places
        free = b.sbuf_free
        self.channels = self._channels(weight, int(free * _WEIGHTS_SHARE))
        elements = weight.shape[2] * weight.shape[3] * weight.dtype.itemsize
        held = (self.channels * (self.depth if self.packs is None else 1) + _RAW * min(self.k, P)) * elements
        self.together, self.tile_rows = self._of_a_tile(free - held)
        self.band = self._band(int(free * _INPUT_SHARE) // _INPUTS, free - held)
        self.weights: _Weights | PackedWeights = (
            _Weights(b, self.work, weight, self.channels)
            if self.packs is None
            else PackedWeights(b, self.work, weight, self.packs, self.channels)
        )
        self.banks = [b.psum((P, BANK), bank=i) for i in range(BANKS)]
        self._turn = 0

    def _of_a_tile(self, left: int) -> tuple[int, int]:
        """Images, and rows of places in steps of a phase, of a tile of PSUM: as many as a bank holds, or as their
        input and results fit `left`. A spread input is far smaller than its results, which a bank says nothing of."""
        images = min(self.images, max(1, BANK // (self.rows * self.cols)))
        rows = min(self.rows, BANK // self.cols)
        while self._bytes(images, rows) > left and images * rows > 1:
            images, rows = (ceil(images / 2), rows) if images > 1 else (1, ceil(rows / 2))
        return images, rows

    def _band(self, room: int, left: int) -> int:
        """Rows of places, in steps of a phase, whose input fits `room`, and whose results what is left beside that
        and the weights: all, or a multiple of those of a tile."""
        band = self.rows
        while (
            self._input_bytes(self.together, band) > room or self._bytes(self.together, band) > left
        ) and band > self.tile_rows:
            band = max(self.tile_rows, (band // 2 + self.tile_rows - 1) // self.tile_rows * self.tile_rows)
        return band

    def _bytes(self, images: int, band: int) -> int:
        """Bytes of a partition for the tiles of so many images and rows, all that are in flight."""
        return _INPUTS * self._input_bytes(images, band) + _RESULTS * self._result_bytes(images, band)

    def _input_bytes(self, images: int, band: int) -> int:
        tallest = max(self._input_rows(a, min(a + band, self.rows)) for a in range(0, self.rows, band))
        return self.depth * images * tallest * self.x.shape[3] * self.x.dtype.itemsize

    def _result_bytes(self, images: int, band: int) -> int:
        """Bytes of a tile of results; a sink takes them as they come."""
        places = images * min(band * self.slides[0].spread, self.slides[0].places) * self.slides[1].places
        return places * self.out.dtype.itemsize if self.sink is None else 0

    def _input_rows(self, start: int, stop: int) -> int:
        low, high = self._reach(start, stop)
        return max(high - low, 1)

    def _reach(self, start: int, stop: int) -> tuple[int, int]:
        needed = [phase.rows(start, stop) for phase in self.phases[0]]
        needed = [(a, z) for a, z in needed if a < z]
        return (min(a for a, _ in needed), max(z for _, z in needed)) if needed else (0, 0)

    def _channels(self, weight: HbmView, room: int) -> int:
        """Output channels whose weights fit: all, or a multiple of those of a block."""
        depth = self.depth if self.packs is None else 1
        each = depth * weight.shape[2] * weight.shape[3] * weight.dtype.itemsize
        return min(self.m, max(self.wide, room // each // self.wide * self.wide))

    def _contracted(self, m: int) -> range:
        """The blocks of input channels that output channels from m on see."""
        return range(self.depth) if self.packs is None else range(m // self.wide, m // self.wide + 1)

    def record(self) -> None:
        """All of it."""
        width = max(self._input_rows(a, min(a + self.band, self.rows)) for a in range(0, self.rows, self.band))
        shape = (P, self.depth, self.together * width * self.x.shape[3])
        inputs = self.work.pool("input", shape, self.x.dtype, bufs=_INPUTS)
        if self.sink is None:
            height = min(self.band * self.slides[0].spread, self.slides[0].places)
            shape = (P, self.together, height * self.slides[1].places)
            self.results = self.b.pool(shape, self.out.dtype, bufs=_RESULTS, name="result")
        else:
            self.sink.open(self.b, self.work, BANK)
        self._to_announce = [place for place in self._places() if self.sink is not None]
        self._announced = self._stored = 0
        for first in range(0, self.m, self.channels):
            count = min(self.channels, self.m - first)
            self.weights.load(first, count)
            for block, tile in self._loaded(inputs):
                for m in range(first, first + count, self.wide):
                    compute = self._compute if self.sink is None else self._hand_on
                    compute(block, tile, m, min(self.wide, first + count - m))
        if self.sink is not None:
            self.sink.close(self.b)

    def _blocks(self) -> Iterator[_Block]:
        for image in range(0, self.images, self.together):
            for start in range(0, self.rows, self.band):
                stop = min(start + self.band, self.rows)
                yield _Block(image, min(self.together, self.images - image), start, stop, *self._reach(start, stop))

    def _loaded(self, inputs: TilePool) -> Iterator[tuple[_Block, AP]]:
        """Blocks with their input on chip; that of the next one is on its way, ahead of the results of this one."""
        ahead: tuple[_Block, AP] | None = None
        for block in self._blocks():
            tile = inputs.next()
            self._load(block, tile)
            if ahead is not None:
                yield ahead
            ahead = block, tile
        if ahead is not None:
            yield ahead

    def _load(self, block: _Block, tile: AP) -> None:
        if block.low == block.high:
            return
        for kb in range(self.depth):
            height, first = self._height(kb), kb * self.high
            view = self.x[block.image : block.image + block.images, first : first + height, block.low : block.high]
            count = block.images * (block.high - block.low) * self.x.shape[3]
            dma_load(self.b, tile[:height, kb, :count], view.permute(1, 0, 2, 3).ap())

    def _places(self) -> Iterator[tuple[int, int, int, int]]:
        """Row, column, rows and columns of the tiles that a sink is handed, in their order."""
        for first in range(0, self.m, self.channels):
            last = min(first + self.channels, self.m)
            for block, m in product(self._blocks(), range(first, last, self.wide)):
                for start in range(block.start, block.stop, self.tile_rows):
                    rows = block.images * (min(start + self.tile_rows, block.stop) - start)
                    column = (block.image * self.rows + start) * self.cols
                    yield m, column, min(self.wide, last - m), rows * self.cols

    def _hand_on(self, block: _Block, tile: AP, m: int, channels: int) -> None:
        """All places of a block, of some output channels, to the sink."""
        assert self.sink is not None, "no result without one"
        (rows,), (cols,) = self.phases
        for start in range(block.start, block.stop, self.tile_rows):
            stop = min(start + self.tile_rows, block.stop)
            while self._announced < min(self._stored + ANNOUNCED, len(self._to_announce)):
                self.sink.announce(self.b, *self._to_announce[self._announced])
                self._announced += 1
            acc = self._sums(block, tile, (rows, cols), (start, stop), m, channels)
            row, column, _, width = self._to_announce[self._stored]
            self.sink.store(self.b, acc.with_dims((1, width)), row, column)
            self._stored += 1

    def _compute(self, block: _Block, tile: AP, m: int, channels: int) -> None:
        """All places of a block, of some output channels."""
        spread, width = self.slides[0].spread, self.slides[1].places
        top, bottom = block.start * spread, min(block.stop * spread, self.slides[0].places)
        result = self.results.next()[:channels, : block.images, : (bottom - top) * width]
        for start in range(block.start, block.stop, self.tile_rows):
            for rows, cols in product(*self.phases):
                stop = min(start + self.tile_rows, block.stop, rows.places)
                if start >= stop or not cols.places:
                    continue
                acc = self._sums(block, tile, (rows, cols), (start, stop), m, channels)
                skip = (start * spread + rows.residue - top) * width + cols.residue
                pitch = result.dims[0][0]
                target = result.with_dims(
                    (pitch, block.images),
                    (spread * width, stop - start),
                    (self.slides[1].spread, cols.places),
                    skip=skip,
                )
                self.work.evacuate(target, acc)
        view = self.out[block.image : block.image + block.images, m : m + channels, top:bottom]
        dma_store(self.b, view.permute(1, 0, 2, 3).ap(), result)

    def _sums(
        self,
        block: _Block,
        tile: AP,
        phases: tuple[OutputPhase, OutputPhase],
        span: tuple[int, int],
        m: int,
        channels: int,
    ) -> AP:
        """One PSUM tile [M, images, rows, columns], finished."""
        (rows, cols), (start, stop) = phases, span
        height, width = stop - start, cols.places
        acc = self.banks[self._turn % BANKS][:channels].with_dims(
            (height * width, block.images), (width, height), (1, width)
        )
        self._turn += 1
        pairs = _covering_first([(y, x) for y in rows.taps for x in cols.taps if _meets(y, start, stop)], span, width)
        begun = False
        if not pairs or not _covers(pairs[0], span, width):
            self.b.memset(dst=acc, value=0.0, engine=Engine.VECTOR)
            begun = True
        blocks = self._contracted(m)
        last = len(pairs) * len(blocks) - 1
        for i, (kb, (y, x)) in enumerate(product(blocks, pairs)):
            top, bottom = max(y.start, start), min(y.stop, stop)
            dst = acc[:, :, top - start : bottom - start, x.start : x.stop]
            self.b.nc_matmul(
                dst=dst,
                stationary=self._stationary(kb, y, x, m, channels),
                moving=self._moving(block, tile, kb, phases, (y, x), (top, bottom)),
                accumulate=begun,
                stop=i == last,
            )
            begun = True
        return acc

    def _height(self, kb: int) -> int:
        """Input channels of a block."""
        return min(self.high, self.k - kb * self.high)

    def _stationary(self, kb: int, y: WindowTap, x: WindowTap, m: int, channels: int) -> AP:
        return self.weights.at(kb, self._height(kb), y.element * self.slides[1].window + x.element, m, channels)

    def _moving(
        self,
        block: _Block,
        tile: AP,
        kb: int,
        phases: tuple[OutputPhase, OutputPhase],
        taps: tuple[WindowTap, WindowTap],
        span: tuple[int, int],
    ) -> AP:
        """The input elements that one element of the window meets."""
        (rows, cols), (y, x), width = phases, taps, self.x.shape[3]
        first_row = y.first + span[0] * rows.step - block.low
        first_col = x.first + x.start * cols.step
        return tile[: self._height(kb), kb].with_dims(
            ((block.high - block.low) * width, block.images),
            (rows.step * width, span[1] - span[0]),
            (cols.step, x.stop - x.start),
            skip=first_row * width + first_col,
        )


def _meets(tap: WindowTap, start: int, stop: int) -> bool:
    return max(tap.start, start) < min(tap.stop, stop)


def _covers(taps: tuple[WindowTap, WindowTap], rows: tuple[int, int], cols: int) -> bool:
    """Whether these elements of the window meet input in every place."""
    y, x = taps
    return y.start <= rows[0] and y.stop >= rows[1] and x.start == 0 and x.stop == cols


def _covering_first(
    pairs: Sequence[tuple[WindowTap, WindowTap]], rows: tuple[int, int], cols: int
) -> list[tuple[WindowTap, WindowTap]]:
    """The first one of a sum writes, the others add: it must reach every place."""
    return sorted(pairs, key=lambda taps: not _covers(taps, rows, cols))
