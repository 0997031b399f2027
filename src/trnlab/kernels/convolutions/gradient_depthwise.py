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
from functools import cached_property
from itertools import product
from math import ceil
from typing import NamedTuple

from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError
from trnlab.isa.base import Engine
from trnlab.kernels.blocking.estimate import bandwidth
from trnlab.kernels.blocks import BANK, BANKS, P, Workspace, dma_load, dma_store
from trnlab.kernels.convolutions.gradient_plan import LEAST_COLUMNS, SLACK, WAITING, Lanes
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
    problem = DepthwiseGradient(x.shape, dy.shape, taps, x.dtype.itemsize, out.dtype.itemsize)
    with b.scope():
        _Gradient(b, x, dy, out, problem, problem.choose(b.sbuf_free, b.chip)).record()


class ColumnPlan(NamedTuple):
    """What is on chip at a time: lanes, columns of the result's gradient in a matmul, channels of the input."""

    lanes: Lanes
    cols: int
    channels: int


@dataclass(frozen=True)
class DepthwiseGradient:
    """x [C, N, H, W], dy [O, N, Y, X]; bytes of their elements, and of the result's."""

    x: tuple[int, ...]
    dy: tuple[int, ...]
    taps: tuple[Taps, Taps]
    item: int
    out_item: int

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
        """Of images, one after the other."""
        return self.x[1] // plan.lanes.images

    def width(self, plan: ColumnPlan) -> int:
        """Sums of a column of dy: all columns that some column of it meets, in each row of taps."""
        return self.taps[0].count * self.taps[1].reach(plan.cols)

    def bytes(self, plan: ColumnPlan) -> int:
        """Of a partition."""
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
        lines = self.x[0] * self.x[1] * lanes.bands * down.reach(lanes.rows)
        loaded = (lines * self.x[3] + outs * self.x[1] * self.dy[2] * self.dy[3]) * self.item
        served = lanes.images * lanes.bands / P  # of the DMA engines, each of which has partitions of its own
        picked = outs * parts * plan.cols * down.count
        summed = 4 * (outs * parts * plan.cols * self.width(plan) + picked * along.count)
        each = chip.dma.descriptor.value * _NS / chip.dma.engines.value
        transfers = (loaded / bandwidth(chip) + (lines + outs * self.x[1] * lanes.bands) * each) / served
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


class _Unit(NamedTuple):
    """Sums in a bank: an output channel, rows of taps [row, +rows), and where they begin."""

    out: int
    row: int
    rows: int
    at: int


class _Gradient:
    def __init__(
        self, b: Builder, x: HbmView, dy: HbmView, out: HbmView, problem: DepthwiseGradient, plan: ColumnPlan
    ) -> None:
        self.b, self.x, self.dy, self.out, self.problem, self.plan = b, x, dy, out, problem, plan
        self.work, (self.down, self.along), self.lanes = Workspace(b), problem.taps, plan.lanes
        self.groups, self.wide, self.width = problem.groups(plan), problem.wide, problem.width(plan)
        self.tall = self.down.reach(self.lanes.rows)
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
        b, dt, elements = self.b, self.x.dtype, self.elements
        self.inputs = b.pool(
            (P, self.groups, self.plan.channels, self.tall * self.wide), dt, bufs=_BUFS, name="input"
        )
        for _ in range(_BUFS if self.problem.padded else 0):
            b.memset(dst=self.inputs.next(), value=0.0, engine=Engine.GPSIMD)
        self.gradients = b.pool((P, self.groups, each, self.lanes.rows * self.cols), dt, bufs=_BUFS, name="gradient")
        self.sums = b.pool((P, each * self.width), float32, bufs=_BUFS, name="sums")
        self.diagonals = b.pool((P, self.plan.cols * elements), float32, bufs=_BUFS, name="diagonals")
        self.totals = b.pool((P, 2, elements), float32, bufs=_BUFS, name="totals")
        self.results = b.pool((P, elements), self.out.dtype, bufs=_BUFS, name="result")
        self.pairs = [self._pairs(min(self.plan.cols, self.cols - start)) for start in self.starts]

    def _pairs(self, cols: int) -> HbmView:
        """The sums of so many columns of dy by all columns that they meet, in HBM."""
        shape = self.outs, cols, self.down.count * self.along.reach(cols)
        return full(self.b.scratch("pairs of columns", shape, float32))

    # -- loads ------------------------------------------------------------------------------------------------------
    def _load(self, first: int, count: int) -> tuple[AP, AP]:
        """The channels of the input that some output channels see, and the gradients of these.

        Transfers to one part of a tile wait for each other, though they are to other partitions: so bands are loaded
        by turns, each one's turn being another part of the channels.
        """
        x, dy, several = self.inputs.next(), self.gradients.next(), self.problem.outputs
        bands, channels = self.lanes.bands, count // several
        size = ceil(channels / bands)
        parts = [slice(at, min(at + size, channels)) for at in range(0, channels, size)]
        for group, turn, (i, part) in product(range(self.groups), range(bands), enumerate(parts)):
            band = (turn + i) % bands
            outs = slice(part.start * several, part.stop * several)
            self._load_input(x[:, group, part], first // several + part.start, group, band)
            self._load_gradient(dy[:, group, outs], first + outs.start, group, band)
        return x, dy

    def _load_input(self, tile: AP, first: int, group: int, band: int) -> None:
        count = tile.dims[0][1]
        images, low = self.lanes.images, self.down.low - band * self.lanes.rows * self.down.stride
        top, bottom = _inside(low, self.tall, self.x.shape[2])
        left, right = _inside(self.along.low, self.wide, self.x.shape[3])
        if top >= bottom or left >= right:
            return
        rows, cols = slice(top - low, bottom - low), slice(left - self.along.low, right - self.along.low)
        part = self.x[first : first + count, group * images : (group + 1) * images, rows, cols]
        target = tile[band * images : (band + 1) * images].with_dims(
            (self.tall * self.wide, count),
            (self.wide, bottom - top),
            (1, right - left),
            skip=top * self.wide + left,
        )
        dma_load(self.b, target, part.permute(1, 0, 2, 3).ap())

    def _load_gradient(self, tile: AP, first: int, group: int, band: int) -> None:
        count = tile.dims[0][1]
        images, start = self.lanes.images, band * self.lanes.rows
        stop = min(start + self.lanes.rows, self.dy.shape[2])
        part = self.dy[first : first + count, group * images : (group + 1) * images, start:stop]
        target = tile[band * images : (band + 1) * images, :, : (stop - start) * self.cols]
        dma_load(self.b, target, part.permute(1, 0, 2, 3).ap())

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
            data = x[:lanes, group, unit.out // self.problem.outputs]
            self.b.nc_matmul(
                dst=acc,
                stationary=dy[:lanes, group, unit.out, at : at + cols],
                moving=data.with_dims(*dims, skip=line * self.wide + start * self.along.stride),
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


def _inside(low: int, count: int, size: int) -> tuple[int, int]:
    """Of so many places, place i on element i - low, those that are on one."""
    return max(low, 0), min(count, size + low)
