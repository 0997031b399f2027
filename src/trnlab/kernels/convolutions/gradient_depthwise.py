# SPDX-License-Identifier: Apache-2.0
"""Gradient of a depthwise convolution by its weight, from products of columns.

A channel meets itself alone: of the products of all channels that a pack of groups takes, one in 128 is wanted. Here
a matmul is of one channel. A partition, a *lane*, is a band of rows of one image; the columns of a row of the
result's gradient are stationary, and the rows of the input that taps meet are streamed past them. So each column is
multiplied by every column, and of the sums over all lanes and rows those of columns that meet are wanted, on
diagonals. A transfer by way of HBM picks these, and brings each channel to a partition of its own, where its columns
are added up. Nothing is transposed.

Letters: C channels of the input, O channels of the result, N images, [H, W] pixels of the input, [Y, X] of the
result's gradient, [R, S] taps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product, zip_longest
from math import ceil
from typing import NamedTuple

from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError
from trnlab.isa.base import Engine
from trnlab.kernels.blocking.estimate import bandwidth
from trnlab.kernels.blocks import BANK, BANKS, P, Workspace, dma_load, dma_store
from trnlab.kernels.convolutions.gradient_plan import LEAST_COLUMNS, SLACK, WAITING, Lanes
from trnlab.kernels.transpose import Step
from trnlab.kernels.view import HbmView, full
from trnlab.kernels.windows import Taps
from trnlab.numerics.dtypes import float32
from trnlab.program.access import AP, hbm_view
from trnlab.program.builder import Builder

_BUFS = 2  # tiles of each operand, and of what is on its way
_TAIL = 3  # transfers that nothing hides: the first load, sums to HBM, and diagonals back
_NS = 1e-9


def depthwise_weight_gradient(b: Builder, x: HbmView, dy: HbmView, out: HbmView, taps: tuple[Taps, Taps]) -> None:
    """Record out[0, o, i, j] = sum over images and pixels of dy[o, n, y, x] and the input that tap (i, j) meets in
    the channel of o.

    x [C, N, H, W], dy [O, N, Y, X], out [1, O, taps], O a multiple of C; x and dy have one format. Sums are fp32.
    Uses the SBUF that is free in `b` and leaves it free. Raises CapacityError where it is too little.
    """
    problem = depthwise_problem(x, dy, out, taps)
    with b.scope():
        _Gradient(b, x, dy, out, problem, problem.choose(b.sbuf_free, b.chip)).record()


def depthwise_problem(x: HbmView, dy: HbmView, out: HbmView, taps: tuple[Taps, Taps]) -> DepthwiseGradient:
    """What an estimate needs to know of it."""
    last = _is_last(x), _is_last(dy)
    return DepthwiseGradient(x.shape, dy.shape, taps, x.dtype.itemsize, out.dtype.itemsize, last)


def _is_last(view: HbmView) -> bool:
    """Whether channels [channels, N, rows, columns] lie side by side in memory."""
    return view.strides[0] == 1 and view.strides[3] != 1


class ColumnPlan(NamedTuple):
    """What is on chip at a time: lanes, columns of the result's gradient in a matmul, channels of the input."""

    lanes: Lanes
    cols: int
    channels: int


@dataclass(frozen=True)
class DepthwiseGradient:
    """x [C, N, H, W], dy [O, N, Y, X]; bytes of their elements, and of the result's; whether channels of either lie
    side by side in memory."""

    x: tuple[int, ...]
    dy: tuple[int, ...]
    taps: tuple[Taps, Taps]
    item: int
    out_item: int
    last: tuple[bool, bool] = (False, False)

    @property
    def outputs(self) -> int:
        """Output channels of one of the input."""
        return self.dy[0] // self.x[0]

    @property
    def wide(self) -> int:
        """Columns of the input that taps meet, zeros included."""
        return self.taps[1].reach(self.dy[3])

    @property
    def padded(self) -> bool:
        """Whether taps meet zeros around the input."""
        seen = [t.reach(n) for t, n in zip(self.taps, self.dy[2:])]
        return any(t.low > 0 or n - t.low > size for t, n, size in zip(self.taps, seen, self.x[2:]))

    @cached_property
    def cols(self) -> int:
        """Columns of a row of dy in a matmul: as many as leave a bank of PSUM room for a row of taps, in equal
        parts. 0 where there is none."""
        along, whole = self.taps[1], self.dy[3]
        most = next((n for n in range(min(P, whole), 0, -1) if along.reach(n) <= BANK), 0)
        return ceil(whole / ceil(whole / most)) if most else 0

    def groups(self, plan: ColumnPlan) -> int:
        """How many groups of images come one after the other."""
        return self.x[1] // plan.lanes.images

    def width(self, plan: ColumnPlan) -> int:
        """Sums of a column of dy: all columns that some column of it meets, in each row of taps."""
        return self.taps[0].count * self.taps[1].reach(plan.cols)

    def bytes(self, plan: ColumnPlan) -> int:
        """Bytes of a partition."""
        (down, along), (_, _, rows) = self.taps, plan.lanes
        pixels = down.reach(rows) * self.wide + self.outputs * rows * self.dy[3]
        sums = plan.channels * self.outputs * self.width(plan)
        picked = down.count * along.count * (plan.cols + 2) * 4 + down.count * along.count * self.out_item
        loaded = self.groups(plan) * plan.channels * pixels * self.item
        return _BUFS * (loaded + sums * 4 + picked) + SLACK

    def seconds(self, plan: ColumnPlan, chip: Chip) -> float:
        """About what it takes: the engine that is busy the longest, and something of what others are."""
        (down, along), lanes, outs = self.taps, plan.lanes, self.dy[0]
        reach, parts = along.reach(plan.cols), ceil(self.dy[3] / plan.cols)
        rows_of_taps = min(down.count, BANK // reach)
        steps = outs * parts * self.groups(plan) * lanes.rows * ceil(down.count / rows_of_taps)
        array = steps * max(LEAST_COLUMNS, rows_of_taps * reach) / chip.tensor.clock.value
        copies = outs * parts * (self.width(plan) + LEAST_COLUMNS) / chip.scalar.clock.value
        lines = self.x[1] * lanes.bands * down.reach(lanes.rows)
        runs = lines * (self.x[3] * self.x[0] / plan.channels if self.last[0] else self.x[0])
        pixels = self.x[1] * self.dy[2] * self.dy[3]
        runs += pixels * self.x[0] / plan.channels if self.last[1] else self.x[1] * lanes.bands * outs
        loaded = (lines * self.x[3] * self.x[0] + outs * pixels) * self.item
        served = lanes.images * lanes.bands / P  # of the DMA engines, each of which has partitions of its own
        picked = outs * parts * plan.cols * down.count
        summed = 4 * (outs * parts * plan.cols * self.width(plan) + picked * along.count)
        each = chip.dma.descriptor.value * _NS / chip.dma.engines.value
        transfers = (loaded / bandwidth(chip) + runs * each) / served
        transfers += summed / bandwidth(chip) + picked * (1 if along.dilation == 1 else along.count) * each
        engines = array, copies, transfers
        # Bands of a tile are loaded one after the other, and the last channels' diagonals are waited for.
        waits = ceil(self.x[0] / plan.channels) * lanes.bands + _TAIL
        return max(*engines, waits * _transfer(chip)) + _TAIL * _transfer(chip) + WAITING * sum(engines)

    def choose(self, room: int, chip: Chip) -> ColumnPlan:
        """The plan that takes the least time of those that fit into `room` bytes of a partition. Raises
        CapacityError."""
        filled = (self._filled(lanes, room) for lanes in self._lanes())
        fitting = [plan for plan in filled if plan is not None]
        if not fitting:
            raise CapacityError(
                "a depthwise convolution's gradient needs more SBUF or PSUM than there is",
                code="TRN501",
                limit=f"{room} B per partition",
                got=f"rows of {self.wide} columns",
                remedy="make the image smaller",
            )
        return min(fitting, key=lambda plan: self.seconds(plan, chip))

    def fits(self, room: int) -> bool:
        """Whether some plan does."""
        return any(self._filled(lanes, room) is not None for lanes in self._lanes())

    def _lanes(self) -> Iterator[Lanes]:
        images, rows = self.x[1], self.dy[2]
        for together in (n for n in range(1, min(images, P) + 1) if images % n == 0):
            for bands in range(1, min(rows, P // together) + 1):
                if bands == ceil(rows / ceil(rows / bands)):
                    yield Lanes(together, bands, ceil(rows / bands))

    def _filled(self, lanes: Lanes, room: int) -> ColumnPlan | None:
        """With as many channels as there is room for."""
        if not self.cols:
            return None
        most = min(P, self.x[0])
        counts = sorted({ceil(most / n) for n in range(1, most + 1)}, reverse=True)
        plans = (ColumnPlan(lanes, self.cols, n) for n in counts)
        return next((plan for plan in plans if self.bytes(plan) <= room), None)


def _transfer(chip: Chip) -> float:
    """Seconds from the trigger of a transfer from HBM until those that wait for it begin, beyond its bytes."""
    dma = chip.dma
    stagger = dma.stagger_read.value * dma.engines.value
    return _NS * float(dma.trigger.value + dma.start.value + dma.read_latency.value + dma.completion.value + stagger)


class _Rows(NamedTuple):
    """Rows of a band, and from one band to the next; zeros above and to the left of an image."""

    tall: int
    step: int
    top: int
    left: int


class _Unit(NamedTuple):
    """Sums in a bank: an output channel, rows of taps [row, +rows), and where they begin."""

    out: int
    row: int
    rows: int
    at: int


class _Bands:
    """An operand [channels, N, rows, columns]: a band of rows of an image to a partition, zeros around included. In a
    tile channels lie apart, or beside each other, as they do in memory."""

    def __init__(self, b: Builder, view: HbmView, plan: ColumnPlan, channels: int, rows: _Rows, wide: int) -> None:
        """channels: held at a time; wide: columns of a row."""
        self.b, self.view, self.lanes, self.rows, self.wide = b, view, plan.lanes, rows, wide
        self.last, self.groups = _is_last(view), view.shape[1] // plan.lanes.images
        # elements from one channel, and from one column, to the next
        self.apart, self.pitch = (1, channels) if self.last else (rows.tall * wide, 1)
        shape = P, self.groups, channels * rows.tall * wide
        self.pool = b.pool(shape, view.dtype, bufs=_BUFS, name="operand")

    def loads(self, tile: AP, first: int, count: int) -> Iterator[Step]:
        """Those of channels [first, +count).

        Transfers to one part of a tile wait for each other, though they are to other partitions: so bands are loaded
        by turns, each one's turn being another part of the channels, or of the rows.
        """
        bands, total = self.lanes.bands, self.rows.tall if self.last else count
        size = ceil(total / bands)
        parts = [(at, min(at + size, total)) for at in range(0, total, size)]
        for group, turn, (i, part) in product(range(self.groups), range(bands), enumerate(parts)):
            rows, channels = (part, (0, count)) if self.last else ((0, self.rows.tall), part)
            yield partial(self._load, tile[:, group], first, channels, rows, group, (turn + i) % bands)

    def _load(
        self, tile: AP, first: int, channels: tuple[int, int], rows: tuple[int, int], group: int, band: int
    ) -> None:
        images, left = self.lanes.images, self.rows.left
        low = self.rows.top - band * self.rows.step
        top, bottom = max(low, rows[0]), min(rows[1], self.view.shape[2] + low)
        start, stop = max(left, 0), min(self.wide, self.view.shape[3] + left)
        if top >= bottom or start >= stop:
            return
        part = self.view[
            first + channels[0] : first + channels[1],
            group * images : (group + 1) * images,
            top - low : bottom - low,
            start - left : stop - left,
        ]
        across = self.apart, channels[1] - channels[0]
        dims = (self.wide * self.pitch, bottom - top), (self.pitch, stop - start)
        skip = channels[0] * self.apart + (top * self.wide + start) * self.pitch
        target = tile[band * images : (band + 1) * images]
        target = target.with_dims(*((*dims, across) if self.last else (across, *dims)), skip=skip)
        dma_load(self.b, target, part.permute(*((1, 2, 3, 0) if self.last else (1, 0, 2, 3))).ap())

    def at(self, tile: AP, lanes: int, group: int, channel: int, pixel: int, *dims: tuple[int, int]) -> AP:
        """Pixels of a channel, from one of each lane on, in steps of pixels."""
        steps = [(step * self.pitch, count) for step, count in dims]
        return tile[:lanes, group].with_dims(*steps, skip=channel * self.apart + pixel * self.pitch)


class _Gradient:
    def __init__(
        self, b: Builder, x: HbmView, dy: HbmView, out: HbmView, problem: DepthwiseGradient, plan: ColumnPlan
    ) -> None:
        self.b, self.x, self.dy, self.out, self.problem, self.plan = b, x, dy, out, problem, plan
        self.work, (self.down, self.along), self.lanes = Workspace(b), problem.taps, plan.lanes
        self.groups, self.wide, self.width = problem.groups(plan), problem.wide, problem.width(plan)
        self.outs, self.cols = dy.shape[0], dy.shape[3]
        self.elements, self.starts = self.down.count * self.along.count, range(0, self.cols, plan.cols)
        self.banks = [b.psum((P, BANK), bank=i) for i in range(BANKS)]
        self._turn = 0

    def record(self) -> None:
        """All of it. What is picked goes through HBM, and is asked for a block of channels later."""
        each = self.plan.channels * self.problem.outputs
        self._make_tiles(each)
        picked = 0
        for first in range(0, self.outs, each):
            count = min(each, self.outs - first)
            operands = self._load(first, count)
            while picked + P <= first:
                self._pick(picked, P)
                picked += P
            for part in range(len(self.starts)):
                self._multiply(operands, part, first, count)
        for at in range(picked, self.outs, P):
            self._pick(at, min(P, self.outs - at))

    def _make_tiles(self, each: int) -> None:
        b, elements = self.b, self.elements
        rows, low = self.lanes.rows, (self.down.low, self.along.low)
        seen = _Rows(self.down.reach(rows), rows * self.down.stride, *low)
        self.inputs = _Bands(b, self.x, self.plan, self.plan.channels, seen, self.wide)
        for _ in range(_BUFS if self.problem.padded else 0):
            b.memset(dst=self.inputs.pool.next(), value=0.0, engine=Engine.GPSIMD)
        self.gradients = _Bands(b, self.dy, self.plan, each, _Rows(rows, rows, 0, 0), self.cols)
        self.sums = b.pool((P, each * self.width), float32, bufs=_BUFS, name="sums")
        self.diagonals = b.pool((P, self.plan.cols * elements), float32, bufs=_BUFS, name="diagonals")
        self.totals = b.pool((P, 2, elements), float32, bufs=_BUFS, name="totals")
        self.results = b.pool((P, elements), self.out.dtype, bufs=_BUFS, name="result")
        self.pairs = [self._pairs(min(self.plan.cols, self.cols - start)) for start in self.starts]

    def _pairs(self, cols: int) -> HbmView:
        """The sums of so many columns of dy by all columns that they meet, in HBM."""
        shape = self.outs, cols, self.down.count * self.along.reach(cols)
        return full(self.b.scratch("pairs of columns", shape, float32))

    def _load(self, first: int, count: int) -> tuple[AP, AP]:
        """The channels of the input that some output channels see, and the gradients of these."""
        x, dy, several = self.inputs.pool.next(), self.gradients.pool.next(), self.problem.outputs
        loads = self.inputs.loads(x, first // several, count // several), self.gradients.loads(dy, first, count)
        for each in zip_longest(*loads):
            for load in filter(None, each):
                load()
        return x, dy

    # -- products ---------------------------------------------------------------------------------------------------
    def _multiply(self, operands: tuple[AP, AP], part: int, first: int, count: int) -> None:
        """Some columns of dy, of some output channels, by all columns that they meet."""
        start = self.starts[part]
        cols, at = min(self.plan.cols, self.cols - start), 0
        reach = self.along.reach(cols)
        sums = self.sums.next()[:cols]
        for units in self._units(count, reach):
            bank = self.banks[self._turn % BANKS][:cols]
            self._turn += 1
            for unit in units:
                acc = bank.with_dims((reach, unit.rows), (1, reach), skip=unit.at)
                self._add_up(operands, acc, unit, start, cols)
            width = units[-1].at + units[-1].rows * reach
            self.work.evacuate(sums[:, at : at + width], bank[:, :width])
            at += width
        view = self.pairs[part][first : first + count].permute(1, 0, 2)
        dma_store(self.b, view.ap(), sums[:, :at])

    def _units(self, count: int, reach: int) -> Iterator[list[_Unit]]:
        """Those of so many output channels, by banks, in the order in which they lie in memory."""
        units, at, rows = list[_Unit](), 0, BANK // reach
        for out, row in product(range(count), range(0, self.down.count, rows)):
            several = min(rows, self.down.count - row)
            if at + several * reach > BANK:
                yield units
                units, at = [], 0
            units.append(_Unit(out, row, several, at))
            at += several * reach
        yield units

    def _add_up(self, operands: tuple[AP, AP], acc: AP, unit: _Unit, start: int, cols: int) -> None:
        """Over all lanes and their rows. The last band may have fewer of these."""
        x, dy = operands
        steps = list(product(range(self.groups), range(self.lanes.rows)))
        for group, row in steps:
            lanes = self.lanes.images * ceil((self.dy.shape[2] - row) / self.lanes.rows)
            line, at = row * self.down.stride + unit.row * self.down.dilation, row * self.cols + start
            dims = (self.down.dilation * self.wide, unit.rows), (1, self.along.reach(cols))
            channel, pixel = unit.out // self.problem.outputs, line * self.wide + start * self.along.stride
            self.b.nc_matmul(
                dst=acc,
                stationary=self.gradients.at(dy, lanes, group, unit.out, at, (1, cols)),
                moving=self.inputs.at(x, lanes, group, channel, pixel, *dims),
                accumulate=(group, row) != steps[0],
                stop=(group, row) == steps[-1],
            )

    # -- diagonals --------------------------------------------------------------------------------------------------
    def _pick(self, first: int, count: int) -> None:
        """The sums of columns that meet, of output channels [first, +count), added up."""
        totals = self.totals.next()[:count]
        for part in range(len(self.starts)):
            tile, each = self._diagonals(part, first, count), totals[:, min(part, 1)]
            self.b.tensor_reduce(dst=each, data=tile, op="add", axes=1, engine=Engine.VECTOR)
            if part:
                self.b.tensor_tensor(dst=totals[:, 0], data1=totals[:, 0], data2=each, op="add", engine=Engine.VECTOR)
        result = self.results.next()[:count]
        self.b.tensor_copy(dst=result, src=totals[:, 0], engine=Engine.VECTOR)
        dma_store(self.b, self.out[:, first : first + count].permute(1, 0, 2, 3).ap(), result)

    def _diagonals(self, part: int, first: int, count: int) -> AP:
        """[output channels, taps, columns of dy] of a part of these columns."""
        pairs, taps = self.pairs[part], self.along.count
        cols, (pitch, width, _) = pairs.shape[1], pairs.strides
        tile, reach = self.diagonals.next()[:count, : cols * self.elements], self.along.reach(cols)
        dims = (pitch, count), (width + self.along.stride, cols), (self.along.dilation, taps)
        for row in range(self.down.count):
            target = tile[:, row * cols * taps : (row + 1) * cols * taps]
            dma_load(self.b, target, hbm_view(pairs.base, first * pitch + row * reach, dims))
        return tile.with_dims((cols * taps, self.down.count), (1, taps), (taps, cols))
