# SPDX-License-Identifier: Apache-2.0
"""Seconds of a product in a blocking, roughly and at once: what busy engines and waits for each other add up to.

There are a thousand blockings of a product. This tells those that are worth going through (`pipeline`) from
the others, side by side in arrays.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.kernels.blocking.problem import BlockedOperand, Blocking, Count, MatmulProblem, doubles
from trnlab.kernels.blocks import BANK, P

Seconds = Any  # a number, or an array of them for as many blockings


def _at_the_end(blocking: Blocking) -> Seconds:
    """The share of the results that are finished by the last piece that comes: nothing is left that hides them."""
    blocks = blocking.resident.blocks * blocking.streamed.blocks
    return 1 / blocks / np.where(blocking.chunks == 1, blocking.resident.pieces, 1)


class _Flow(NamedTuple):
    """How one operand comes on chip: how many pieces, and for each the seconds of DMA, transposing and copying.

    `jobs`: copies out of PSUM, each of the transposes in one bank.
    """

    side: BlockedOperand
    pieces: Count
    load: Seconds
    turning: Seconds = 0.0
    copying: Seconds = 0.0
    jobs: Count = 0


class _Estimates:
    """Seconds of one problem's blockings on a chip. What hangs on those alone is computed once: choosing looks at a
    thousand of them, several times with other room."""

    def __init__(self, problem: MatmulProblem, chip: Chip) -> None:
        self.problem = problem
        vector, scalar, clock = chip.vector.clock.value, chip.scalar.clock.value, chip.tensor.clock.value
        self.columns = ceil(problem.m / P) * problem.n
        self.k_tiles, self.itemsize, self.raw_itemsize = problem.k_tiles, problem.itemsize, problem.raw_itemsize
        self.accumulators, self.turning = problem.accumulators, problem.turning
        matmuls = ceil(self.k_tiles / 2) if doubles(problem.dtype, chip) else self.k_tiles
        self.pe = self.columns * matmuls * chip.tensor.passes.of(problem.dtype).value / clock
        self.bandwidth = bandwidth(chip)
        self.issue, self.clocks = (chip.vector.issue.value + chip.scalar.issue.value) / 2, vector + scalar
        self.sunk = self.columns * (problem.sink_cost or self._copy_time(BANK)) / BANK
        self.moved = problem.m * problem.n * (problem.sink_moved or self.itemsize)
        self.turn_latency = chip.tensor.latency.value / clock + chip.scalar.latency.value / scalar
        self.square = P * chip.tensor.transpose_passes.of(problem.raw_dtype).value / clock
        self.trigger = chip.dma.trigger.value
        self.latency = (chip.dma.trigger.value + chip.dma.start.value + chip.dma.completion.value) * 1e-9
        self.descriptor_bytes, self.descriptor = chip.dma.descriptor_bytes.value, chip.dma.descriptor.value
        self.engines = chip.dma.engines.value
        self.vector, self.addition = vector, BANK + chip.vector.issue.value  # cycles of a sum of one bank
        self.left = vector / (vector + scalar) if not problem.sink_cost else 1.0  # of Vector, for those

    def __call__(self, blocking: Blocking) -> Seconds:
        """Seconds: of the busiest of PE array, copies and DMA, plus what cannot overlap."""
        problem, resident, streamed, chunks = self.problem, blocking.resident, blocking.streamed, blocking.chunks
        pe, copies, dma, triggers, turns = self.pe, self.sunk, self.moved / self.bandwidth, 0.0, 0.0
        flows = [self._flow(side, times, chunks) for side, times in zip((resident, streamed), blocking.loads)]
        for flow in flows:
            pe, copies = pe + flow.pieces * flow.turning, copies + flow.pieces * flow.copying
            dma, triggers = dma + flow.pieces * flow.load, triggers + flow.pieces * self.trigger * 1e-9
            turns += flow.pieces * flow.jobs * self.turn_latency + flow.pieces * (flow.turning + flow.copying)
        sums = np.where(blocking.spill, (chunks - 1) * self.columns / BANK * self.addition / self.vector, 0.0)
        copies = np.maximum(sums, copies + sums * self.left)
        steps = resident.blocks * streamed.blocks * chunks
        parts = (np.where(blocking.spill, resident.pieces, 1), 1)  # in which a step uses up an operand
        paces = [self._pace(flow, pe / steps / n) for flow, n in zip(flows, parts)]
        waits = [flow.pieces * pace for flow, pace in zip(flows, paces)]
        waits[0] = np.where(blocking.keep, 0.0, waits[0])
        exposed = sum(flow.load for flow in flows) + _exchange(blocking, flows[0].pieces * paces[0], pe)
        if problem.sink_cost:
            sinking = max(self.sunk, self.moved / self.bandwidth)
            exposed += np.minimum(pe, self.sunk) * self._held_back(blocking)
            exposed += np.minimum(np.maximum(pe, dma - self.moved / self.bandwidth), sinking) * _before_results(
                blocking
            )
        else:
            exposed += self.sunk * _at_the_end(blocking)
        if not problem.lhs_k_rows or not problem.rhs_k_rows:
            exposed += steps * 0.5 * self.turn_latency
        return _together(pe, copies, dma, triggers, turns / self.turning, *waits) + exposed

    def _held_back(self, blocking: Blocking) -> Seconds:
        """The share of a block's product that waits until the results of the block before have left PSUM.

        Of several chunks, each goes through all banks of the block, the first of them only as far as banks are free.
        """
        banks = blocking.lhs.products * blocking.rhs.products
        return np.where(blocking.spill, 0.0, (1 - 1 / blocking.chunks) * banks / self.accumulators)

    def _flow(self, side: BlockedOperand, times: Count, chunks: Count) -> _Flow:
        """The flow of an operand that is loaded `times` times over."""
        count = -(-side.size // side.piece) * chunks * times
        depth = -(-self.k_tiles // chunks)
        row = (side.piece if side.k_rows else depth * P) * self.itemsize
        rows = np.minimum(self.problem.k, depth * P) if side.k_rows else side.piece
        descriptors = rows * np.ceil(row / self.descriptor_bytes)
        load = rows * row / self.bandwidth + descriptors * self.descriptor * 1e-9 / self.engines
        if side.k_rows:
            return _Flow(side, count, load)
        room = BANK * 4 // self.raw_itemsize
        across = np.minimum(side.piece, room)  # columns of one copy
        together = np.minimum(depth, np.maximum(1, room // side.piece))  # k tiles of one copy
        jobs = -(-depth // together) * -(-side.piece // across)
        copying = jobs * self._copy_time(across * together)
        return _Flow(side, count, load, -(-side.piece // P) * depth * self.square, copying, jobs)

    def _pace(self, flow: _Flow, step: Seconds) -> Seconds:
        """Seconds from piece to piece: no faster than DMA, nor than tiles come free, `step` after being filled."""
        if not flow.side.k_rows:
            return np.maximum(flow.load, (self.latency + flow.load + flow.turning) / flow.side.raw_tiles)
        pace = np.maximum(flow.load, (self.latency + flow.load + step) / flow.side.tiles)
        return np.where(flow.pieces * self.problem.batch <= flow.side.tiles, flow.load, pace)

    def _copy_time(self, columns: Count) -> Seconds:
        """Seconds of a copy out of PSUM when VectorE and ScalarE share the copies."""
        return (columns + self.issue) / self.clocks


@lru_cache(maxsize=64)
def estimates(problem: MatmulProblem, chip: Chip) -> _Estimates:
    """The estimates of a problem's blockings: a function of a blocking, or of many of which the same side stays."""
    return _Estimates(problem, chip)


def _before_results(blocking: Blocking) -> Seconds:
    """The share of a block's product that is done before its first result: where sums wait in SBUF, all chunks but
    the last."""
    return np.where(blocking.spill, 1 - 1 / blocking.chunks, 0.0)


def _together(*times: Seconds) -> Seconds:
    """Seconds that overlapping work takes: the longest, and more the more of the others are close to it."""
    return sum(time**8 for time in times) ** (1 / 8)


def bandwidth(chip: Chip) -> float:
    """Bytes per second between HBM and SBUF."""
    return min(chip.dma.engines.value * chip.dma.engine_bandwidth.value, chip.hbm.bandwidth.value)


def _exchange(blocking: Blocking, time: Seconds, pe: Seconds) -> Seconds:
    """Seconds that the PE array waits for resident blocks, all of which take `time` to come.

    One block's coming hides behind the work on one streamed block.
    """
    resident = blocking.resident
    load = time / resident.blocks
    work = pe / (resident.blocks * blocking.streamed.blocks)
    spare = resident.tiles / (resident.pieces * blocking.chunks) - 1
    later = np.maximum(0.0, load * (1 - spare) - work)
    return np.where(blocking.keep, np.maximum(0.0, load - work) + (resident.blocks - 1) * later, 0.0)
