# SPDX-License-Identifier: Apache-2.0
"""How a gradient by the weight is cut into parts that fit on chip, for `gradient_lanes`: which images and
bands of rows are lanes, what is held, loaded and added up at a time. The forms that fit are compared by their times.

Letters: C channels of the input, O channels of the result, N images; [H, W] pixels of the input, [Y, X] of dy.
Rows and columns of the input that some tap meets are counted in *steps*, from the first that is met, zeros around the
input included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil, gcd, inf
from typing import NamedTuple

from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError
from trnlab.kernels.blocks import BANK, BANKS, P
from trnlab.kernels.windows import Taps

_TURNED_BANKS = 2  # of PSUM, to transpose into, at least; the others add up
LEAST_COLUMNS = 64  # a matmul takes no less time than for so many
_TURNING = 2  # what a transposed column costs, copy out of PSUM included, against one of a product
_RUN_BYTES = 1024  # of memory, that a transfer should find together
WAITING = 0.25  # of its work, that an engine waits for others where loads come in time
_QUEUES = 4  # that loads take turns on
SLACK = 2048  # bytes of a partition that are left to the rounding of addresses


class Lanes(NamedTuple):
    """So many images at a time, each in bands of so many rows of the result's gradient."""

    images: int
    bands: int
    rows: int


class TapPlaces(NamedTuple):
    """Places of the input that taps meet along one dimension: pixel i and tap j meet i * pixel + j * tap, each `size`
    elements of the input further than the one before."""

    pixel: int
    tap: int
    size: int

    def reach(self, pixels: int, taps: int) -> int:
        """Steps from the first that is met to behind the last."""
        return (pixels - 1) * self.pixel + (taps - 1) * self.tap + 1


class Along(NamedTuple):
    """Where steps fall along one dimension: step i on element i * size - low."""

    size: int
    low: int

    def inside(self, first: int, count: int, elements: int) -> tuple[int, int]:
        """Those of the steps [first, +count) that fall on one of so many elements; the first and the one behind
        them."""
        start = max(first, ceil(self.low / self.size))
        return start, max(start, min(first + count, ceil((elements + self.low) / self.size)))

    def element(self, step: int) -> int:
        """Where a step falls."""
        return step * self.size - self.low


class TapSums(NamedTuple):
    """Sums of `taps` taps from (row, col) on for up to 128 output channels from `out` on, in a bank of PSUM."""

    out: int
    outs: int
    row: int
    col: int
    taps: int
    bank: int
    at: int


class AccumulationPass(NamedTuple):
    """What adds up at a time: input channels [first, +channels), output channels [out, +outs)."""

    first: int
    channels: int
    units: list[TapSums]

    @property
    def out(self) -> int:
        """The first output channel."""
        return min(u.out for u in self.units)

    @property
    def outs(self) -> int:
        """How many output channels."""
        return max(u.out + u.outs for u in self.units) - self.out


class GradientTiling(NamedTuple):
    """How the gradient of a convolution's weights is cut into tiles."""

    lanes: Lanes
    channels: int  # of the input, at a time
    held: bool  # whether all that is transposed stays on chip
    whole: bool  # whether images are loaded whole, else `loaded` rows of all bands
    cols: int  # columns of the result's gradient at a time
    loaded: int
    bufs: int  # loads in flight


class Room(NamedTuple):
    """Room of an operand on chip: rows of a band, `kept` of them transposed, of `wide` steps and so many channels;
    raw ones of so many images lie as `lines` rows of `pitch` elements for each."""

    tall: int
    wide: int
    kept: int
    channels: int
    images: int
    lines: int
    pitch: int
    bufs: int

    def elements(self) -> int:
        """Elements of a partition."""
        raw = ceil(self.channels / P) * self.images * self.lines * self.pitch
        return self.bufs * raw + self.kept * self.wide * self.channels


@dataclass(frozen=True)
class WeightGradientProblem:
    """x [C, N, H, W], dy [O, N, Y, X]; bytes of their elements, and of the result's."""

    x: tuple[int, int, int, int]
    dy: tuple[int, int, int, int]
    taps: tuple[Taps, Taps]
    item: int
    out_item: int

    @cached_property
    def steps(self) -> tuple[TapPlaces, TapPlaces]:
        """Along rows and columns."""
        return steps_of(self.taps[0]), steps_of(self.taps[1])

    @property
    def elements(self) -> int:
        """Taps in all."""
        return self.taps[0].count * self.taps[1].count

    @property
    def halves(self) -> bool:
        """Whether each operand has one half of the partitions, and of the DMA engines."""
        return max(self.x[0], self.dy[0]) <= P // 2

    # -- passes -----------------------------------------------------------------------------------------------------
    def passes(self, most: int) -> Iterator[AccumulationPass]:
        """As many sums at a time as PSUM has room for, of up to `most` input channels."""
        for first in range(0, self.x[0], most):
            units: list[TapSums] = []
            channels, bank, at = min(most, self.x[0] - first), 0, 0
            for out, outs, row, col, count in self._sums(channels):
                if at + count * channels > BANK:
                    bank, at = bank + 1, 0
                if bank == BANKS - _TURNED_BANKS:
                    yield AccumulationPass(first, channels, units)
                    units, bank = [], 0
                units.append(TapSums(out, outs, row, col, count, bank, at))
                at += count * channels
            yield AccumulationPass(first, channels, units)

    def _sums(self, channels: int) -> Iterator[tuple[int, int, int, int, int]]:
        """What one matmul adds to: output channels, and neighbouring taps; long ones before what shares a bank."""
        taps = self.taps[1].count
        several = min(taps, BANK // channels)
        for out in range(0, self.dy[0], P):
            outs = min(P, self.dy[0] - out)
            parts = product(range(self.taps[0].count), range(0, taps, several))
            found = [(out, outs, row, col, min(several, taps - col)) for row, col in parts]
            yield from sorted(found, key=lambda unit: -unit[-1])

    # -- SBUF -------------------------------------------------------------------------------------------------------
    def rooms(self, form: GradientTiling, passes: list[AccumulationPass]) -> tuple[Room, Room]:
        """Rooms of the input, and of the result's gradient."""
        (down, along), lanes, held = self.steps, form.lanes, form.held
        reach = down.reach(1, self.taps[0].count)
        x = Room(
            down.reach(lanes.rows, self.taps[0].count),
            along.reach(form.cols, self.taps[1].count),
            reach + (down.pixel if lanes.rows > 2 else reach),
            self.x[0] if held else max(p.channels for p in passes),
            0,
            form.loaded * down.pixel,
            0,
            form.bufs,
        )
        outs = self.dy[0] if held else max(p.outs for p in passes)
        dy = Room(lanes.rows, form.cols, 2, outs, 0, form.loaded, 0, form.bufs)
        steps = lanes.rows * down.pixel, lanes.rows
        met = Along(down.size, self.taps[0].low), Along(1, 0)
        one, other = (
            _laid_out(room, form, shape, rows, step, size)
            for room, shape, rows, step, size in zip((x, dy), (self.x, self.dy), met, steps, (along.size, 1))
        )
        return one, other

    def results(self, passes: list[AccumulationPass]) -> int:
        """Tiles for results that are being completed."""
        return max(len({u.out for u in p.units}) for p in passes) + 1

    def bytes(self, form: GradientTiling, passes: list[AccumulationPass]) -> int:
        """Bytes of a partition."""
        operands = sum(room.elements() for room in self.rooms(form, passes)) * self.item
        result = max(p.channels for p in passes) * self.elements * self.out_item
        return operands + self.results(passes) * result + SLACK

    # -- time -------------------------------------------------------------------------------------------------------
    def seconds(self, form: GradientTiling, passes: list[AccumulationPass], chip: Chip) -> float:
        """About what a form takes: the engine that is busy the longest, or all in turn where loads do not overlap."""
        rounds = ceil(self.x[1] / form.lanes.images) * ceil(self.dy[3] / form.cols)
        brought = rounds * (1 if form.held else len(passes))
        x, dy = self.rooms(form, passes)
        turned = sum(room.tall * room.wide * _columns(room.channels) for room in (x, dy)) * brought
        sums = sum(max(LEAST_COLUMNS, u.taps * p.channels) for p in passes for u in p.units)
        products = rounds * form.lanes.rows * form.cols * sums
        array = (turned + products) / chip.tensor.clock.value
        copies = turned / chip.scalar.clock.value / (2 if chip.has("parallel_ports") else 1)
        each = [self._load_seconds(form, room, chip) for room in (x, dy)]
        loads = brought * (max(each) if self.halves else sum(each))
        busy = max(array, copies, loads) if form.bufs > 1 else max(array, copies) + loads
        return busy + WAITING * (array + copies + loads)

    def _load_seconds(self, form: GradientTiling, room: Room, chip: Chip) -> float:
        """Seconds to load all rows of all bands: descriptors of one engine, and their bytes."""
        if form.whole:
            runs, rows = room.images, room.lines
        else:
            runs, rows = room.images * ceil(room.tall / room.lines), min(room.lines, room.tall)
        dma = chip.dma
        size = rows * room.pitch * self.item
        each = ceil(size / dma.descriptor_bytes.value) * dma.descriptor.value * 1e-9
        per_engine = ceil(room.channels / P) * dma.partitions_per_engine.value
        transfers = ceil(room.channels / P) * (1 if form.whole else form.lanes.bands * ceil(room.tall / room.lines))
        spacing = dma.queue_interval.value * 1e-9 / _QUEUES
        return max(per_engine * runs * (each + size / dma.engine_bandwidth.value), transfers * spacing)


def _laid_out(room: Room, form: GradientTiling, shape: tuple[int, ...], rows: Along, band: int, size: int) -> Room:
    """With images, lines and their pitch; `band`: steps from one band to the next, `size`: of a step along rows."""
    kept = room.tall if form.held else room.kept
    if form.whole:
        reach = rows.element((form.lanes.bands - 1) * band + room.tall - 1) + 1
        above = max(rows.low, 0)
        lines = max(reach, shape[2]) + above
        return room._replace(kept=kept, images=form.lanes.images, lines=lines, pitch=shape[3])
    images, lines = form.lanes.images * form.lanes.bands, min(room.tall, room.lines)
    return room._replace(kept=kept, images=images, lines=lines, pitch=min(shape[3], (room.wide - 1) * size + 1))


def _columns(channels: int) -> int:
    return ceil(channels / P) * max(LEAST_COLUMNS, min(channels, P))


def choose(problem: WeightGradientProblem, room: int, chip: Chip) -> tuple[GradientTiling, list[AccumulationPass]]:
    """The form that takes the least time of those that fit into `room` bytes of a partition. Raises CapacityError."""
    best, found, least = inf, None, inf
    for channels in (n for n in (BANK, BANK // 2, P) if n == P or n // 2 < problem.x[0]):
        passes = list(problem.passes(channels))
        for form in _forms(problem, channels, len(passes)):
            needed = problem.bytes(form, passes)
            least = min(least, needed)
            if needed <= room and (seconds := problem.seconds(form, passes, chip)) < best:
                best, found = seconds, (form, passes)
    if found is None:
        raise CapacityError(
            "a convolution's gradient needs more SBUF than there is",
            code="TRN501",
            limit=f"{room} B per partition",
            got=f"{least} B",
            remedy="make the window smaller",
        )
    return found


def _forms(problem: WeightGradientProblem, channels: int, passes: int) -> Iterator[GradientTiling]:
    _, images, rows, cols = problem.dy
    for lanes in _lanes(images, rows):
        most = min(lanes.rows, ceil(_RUN_BYTES / (cols * problem.item)))
        loads = [n for n in range(most, 0, -1) if n == ceil(most / ceil(most / n))]
        once = passes > 1 and lanes.images >= images
        for held, bufs in product((True, False) if once else (False,), (2, 1)):
            yield GradientTiling(lanes, channels, held, True, cols, lanes.rows, bufs)
            for loaded in loads:
                yield GradientTiling(lanes, channels, held, False, cols, loaded, bufs)
        parts = [n for n in range(2, cols + 1) if n == ceil(cols / ceil(cols / n))]
        for part in parts:
            yield GradientTiling(lanes, channels, False, False, ceil(cols / part), 1, 2)


def steps_of(taps: Taps) -> TapPlaces:
    """The coarsest steps that fall on all places that are met."""
    size = gcd(taps.stride, taps.dilation) if taps.count > 1 else taps.stride
    return TapPlaces(taps.stride // size, taps.dilation // size if taps.count > 1 else 1, size)


def pays(x: tuple[int, ...], dy: tuple[int, ...], taps: tuple[Taps, Taps]) -> bool:
    """Whether there is less to do for x [C, N, H, W] and dy [O, N, Y, X] than with neighbouring pixels of an image on
    partitions, as `gradient` has them otherwise."""
    (c, images), (o, _, rows, cols) = x[:2], dy
    down, along = (steps_of(t) for t in taps)
    elements, blocks = taps[0].count * taps[1].count, ceil(o / P)
    wide = along.reach(cols, taps[1].count)

    def work(lanes: Lanes) -> float:
        tall = down.reach(lanes.rows, taps[0].count)
        turned = tall * wide * max(c, LEAST_COLUMNS) + lanes.rows * cols * max(o, LEAST_COLUMNS)
        products = lanes.rows * cols * blocks * max(elements * c, LEAST_COLUMNS)
        return ceil(images / lanes.images) * (_TURNING * turned + products)

    chunks = max(1, images * rows * cols / P)
    by_taps = chunks * (_TURNING * (elements * c + o) + blocks * max(elements * c, LEAST_COLUMNS))
    return min(map(work, _lanes(images, rows))) <= by_taps


def _lanes(images: int, rows: int) -> Iterator[Lanes]:
    """As many images at a time as there is room for, with each number of bands that leaves none empty."""
    for bands in range(1, min(rows, P) + 1):
        if bands == ceil(rows / ceil(rows / bands)):
            together = min(images, P // bands)
            yield Lanes(ceil(images / ceil(images / together)), bands, ceil(rows / bands))
