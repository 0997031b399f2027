# SPDX-License-Identifier: Apache-2.0
"""The fused Mamba kernels of the vendor's tutorial: a selective scan in fp32, 16 states, channels on the partitions.

For each tile of 128 channels and each state: deltaA = exp(A * delta) on ScalarE, deltaU = delta * u,
deltaBu = deltaU * B, a scan over time, scanC = scan * C, and a sum, all on VectorE. B and C are one row for all
channels: a matmul of ones spreads them over the partitions.

What the hardware's compiler did beyond the source is read off the published times. v1 loads everything in the inner
loop; in v2 and v3 delta and u are loaded once per channel tile, and deltaU, which no state changes, is computed once.
Rows of one PSUM bank are read from there (N cycles); longer ones are copied to SBUF first, B by VectorE and C by
ScalarE, and then read at half the rate. When the eight tiles of an iteration do not fit in SBUF, those that are too
many go to HBM and back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from trnlab.chips import Chip
from trnlab.isa.base import Engine
from trnlab.program import AP, Builder, Pool, Routine

P, BANK, BANKS = 128, 512, 4  # fp32 columns of a PSUM bank; banks that are copied at a time
LONGEST = 4096  # steps that one instruction works on where the kernel does not cut them
SPILLING = 512  # the same where tiles are spilled
BUFFERS = (3, 2, 2, 2)  # of deltaA, deltaBu, scan and scanC while several iterations are under way
SPILLED_BUFFERS = (4, 3, 3, 2)  # the same where tiles go to HBM and back
TILES = 8  # of an iteration: delta, u, deltaU, the sum, deltaA, deltaBu, scan, scanC
FLOAT = "float32"
DONE = object()


def mamba(chip: Chip, *, version: int, channels: int, steps: int, states: int = 16) -> Routine:
    """Version 1, 2 or 3 for batch 1; the third works on 512 steps at a time."""
    kernel = _Mamba(chip, version, channels, steps, states)
    for tile in range(channels // P):
        kernel.channel_tile(tile)
    while kernel.under_way:
        kernel.advance()
    return kernel.b.build()


class _Mamba:
    """The state of the recording.

    span: steps of one instruction. spilled: tiles of an iteration that go to HBM. pipelined: VectorE works on four
    iterations in turn, so that it need not wait for its own results.
    """

    def __init__(self, chip: Chip, version: int, channels: int, steps: int, states: int) -> None:
        b = self.b = Builder(f"mamba_v{version}", chip)
        self.version, self.steps, self.states = version, steps, states
        excess = TILES * steps * 4 - b.sbuf_free
        self.spilled = 0 if version == 3 else max(-(-excess // (steps * 4)), 0)
        self.span = BANK if version == 3 else SPILLING if self.spilled else steps
        shape = (channels, steps)
        self.delta_hbm, self.u_hbm, self.out = (b.param(n, shape, FLOAT) for n in ("delta", "u", "out"))
        self.a_hbm = b.param("A", (channels, states), FLOAT)
        self.b_hbm, self.c_hbm = (b.param(n, (states, steps), FLOAT, slot_rows=1) for n in "BC")
        self.ones = b.tile((1, P), FLOAT, name="ones")
        b.memset(dst=self.ones, value=1.0, engine=Engine.VECTOR)
        bufs = 2 if steps < LONGEST else 1
        self.delta, self.u, self.sum = (b.pool((P, steps), FLOAT, bufs=bufs, name=n) for n in ("delta", "u", "sum"))
        self.delta_u = b.tile((P, steps), FLOAT, name="delta_u", slots=steps // self.span)
        self.a = b.pool((P, 1), FLOAT, bufs=4, name="a")
        self.rows = b.pool((1, BANK), FLOAT, bufs=4, name="row")
        rows = (2, 2) if self.span > BANK else (0, 0)  # B and C in SBUF
        buffers: tuple[int, ...] = (SPILLED_BUFFERS if self.spilled else BUFFERS) + rows
        self.pipelined = sum(buffers) * self.span * 4 <= b.sbuf_free
        buffers = buffers if self.pipelined else (1,) * len(buffers)
        self.work = [b.pool((P, self.span), FLOAT, bufs=n, name="work") for n in buffers]
        self.hbm = [
            Pool([b.scratch(f"spill{n}", (P, self.span), FLOAT) for _ in range(4)]) for n in range(self.spilled)
        ]
        self.reached_tiles = b.pool((P, 1), FLOAT, bufs=2, name="reached")
        self.reached = self.reached_tiles.next()  # where the scan of a state stands
        self.under_way: deque[Iterator[Any]] = deque()

    def load(self, tile: AP, source: AP) -> AP:
        """Through SyncE's queue."""
        self.b.dma_copy(dst=tile, src=source, engine=Engine.SYNC, queue=0)
        return tile

    def channel_tile(self, tile: int) -> None:
        """All states of 128 channels."""
        b, rows = self.b, slice(tile * P, (tile + 1) * P)
        total = self.sum.next()
        b.memset(dst=total, value=0.0, engine=Engine.VECTOR)
        delta = u = None
        for state in range(self.states):
            if delta is None or u is None or self.version == 1:
                delta = self.load(self.delta.next(), self.delta_hbm[rows])
                u = self.load(self.u.next(), self.u_hbm[rows])
            a = self.load(self.a.next(), self.a_hbm[rows, state : state + 1])
            for first in range(0, self.steps, self.span):
                part = slice(first, first + self.span)
                if self.version == 1 or state == 0:
                    b.tensor_tensor(dst=self.delta_u[:, part], data1=delta[:, part], data2=u[:, part], op="multiply")
                ends = state == self.states - 1 and part.stop == self.steps
                self.begin(self.stages(delta[:, part], a, state, part, total, self.out[rows] if ends else None))
        while self.under_way and len(self.sum.tiles) == 1:  # the next tile needs this one's place
            self.advance()

    def begin(self, stages: Iterator[Any]) -> None:
        """Take up an iteration; those under way advance by one stage."""
        self.under_way.append(stages)
        self.advance()
        while self.under_way and not self.pipelined:
            self.advance()

    def advance(self) -> None:
        """One stage of each iteration. The scans come last, so that none follows what it or its successor reads."""
        scan = 2 if self.spilled else 1  # its stage
        newest_first = list(reversed(self.under_way))
        for stages in newest_first[:scan] + newest_first[scan + 1 :] + newest_first[scan : scan + 1]:
            if next(stages, DONE) is DONE:
                self.under_way.remove(stages)

    def stages(self, delta: AP, a: AP, state: int, part: slice, total: AP, out: AP | None) -> Iterator[Any]:
        """One state over the steps `part`, a stage per instruction of VectorE; `out`: where the finished sum goes."""
        b = self.b
        delta_a, delta_bu, scanned, weighted = (self.work[i].next() for i in range(4))
        b.activation(dst=delta_a, data=delta, scale=a, op="exp")
        a_place = self.put_away(delta_a, 0)
        row = self.spread(self.b_hbm, state, part, Engine.VECTOR, 4)
        b.tensor_tensor(dst=delta_bu, data1=self.delta_u[:, part], data2=row, op="multiply")
        bu_place = self.put_away(delta_bu, 1)
        yield
        self.bring_back(delta_a, a_place)
        self.bring_back(delta_bu, bu_place)
        if self.spilled:
            yield
        b.tensor_tensor_scan(dst=scanned, data0=delta_a, data1=delta_bu, initial=self.reached if part.start else 0.0)
        scan_place = self.put_away(scanned, 2)
        yield
        if part.stop < self.steps:
            self.reached = self.reached_tiles.next()
            b.tensor_copy(dst=self.reached, src=scanned[:, self.span - 1 : self.span], engine=Engine.VECTOR)
        self.bring_back(scanned, scan_place)
        if self.spilled:
            yield
        row = self.spread(self.c_hbm, state, part, Engine.SCALAR, 5)
        b.tensor_tensor(dst=weighted, data1=scanned, data2=row, op="multiply")
        yield
        b.tensor_tensor(dst=total[:, part], data1=total[:, part], data2=weighted, op="add")
        if out is not None:
            b.dma_copy(dst=out, src=total, engine=Engine.SCALAR, queue=0)

    def put_away(self, tile: AP, number: int) -> AP | None:
        """To HBM, if this tile of the iteration is one of those that do not fit; returns where it is there."""
        if number >= self.spilled:
            return None
        place = self.hbm[number].next()
        self.b.dma_copy(dst=place, src=tile, engine=Engine.GPSIMD, queue=number)
        return place

    def bring_back(self, tile: AP, place: AP | None) -> None:
        """What `put_away` sent to HBM; the tile stands for the one that it would come back to."""
        if place is not None:
            self.b.dma_copy(dst=tile, src=place, engine=Engine.SYNC, queue=1)

    def spread(self, source: AP, state: int, part: slice, copier: Engine, number: int) -> AP:
        """One row of B or C in all partitions: in PSUM, or where it is longer than a bank copied to SBUF."""
        if self.span == BANK:
            return self._bank(self.b.psum((P, BANK)), source[state : state + 1, part])
        row = self.work[number].next()
        width = min(self.span, BANKS * BANK)
        for first in range(0, self.span, width):
            banks = self.b.psum((P, width))
            for i in range(0, width, BANK):
                begin = part.start + first + i
                self._bank(banks[:, i : i + BANK], source[state : state + 1, begin : begin + BANK])
            target = row[:, first : first + width]
            if copier is Engine.SCALAR:
                self.b.activation(dst=target, data=banks, op="copy")
            else:
                self.b.tensor_copy(dst=target, src=banks, engine=copier)
        return row

    def _bank(self, bank: AP, source: AP) -> AP:
        row = self.rows.next()
        # what is brought back holds up SyncE until it has arrived in HBM
        self.b.dma_copy(dst=row, src=source, engine=Engine.SCALAR if self.spilled else Engine.SYNC, queue=1)
        self.b.nc_matmul(dst=bank, stationary=self.ones, moving=row)
        return bank
