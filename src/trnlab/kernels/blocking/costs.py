# SPDX-License-Identifier: Apache-2.0
"""What the steps of a blocked product cost on a chip, for `pipeline`: by the timing simulator's own rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import inf

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import Engine, Work
from trnlab.kernels.blocking import pipeline as steps
from trnlab.kernels.blocking.problem import AHEAD, BlockedOperand, Blocking, MatmulProblem, doubles
from trnlab.kernels.blocks import ANNOUNCED, BANK, P
from trnlab.numerics.dtypes import dtype
from trnlab.sim.timing.cost import dma_cost, work_cost
from trnlab.units import PS_PER_NS, PS_PER_S

LONGEST = 1 << 11  # tiles and chunks that are gone through, of a longer product


def block_seconds(problem: MatmulProblem, blocking: Blocking, chip: Chip, limit: float = inf) -> float:
    """What a product in a blocking costs: both of `block_times`, for its neighbours could have had the DMA engines.
    In steps of training the least sum is fastest (ADR 148). Without end where it is sure to be more than `limit`."""
    return sum(block_times(problem, blocking, chip, limit))


def block_times(problem: MatmulProblem, blocking: Blocking, chip: Chip, limit: float = inf) -> tuple[float, float]:
    """Seconds that a product in a blocking takes between others of its kind, and those for which it holds the DMA
    engines. limit: of their sum; the first is without end where it is sure to be more."""
    resident, streamed = blocking.resident, blocking.streamed
    across = _followed(streamed, blocking.chunks * resident.products, 4 if blocking.chunks == 1 else 2)
    along = _followed(resident, across * blocking.chunks * streamed.products, 2)
    sides = np.array([_side(side, blocking.depth, problem, chip) for side in (resident, streamed)], np.int64)
    whole = sides[:, steps.SIZE].prod()
    sides[:, steps.SIZE] = np.minimum(sides[:, steps.SIZE], (along * resident.block, across * streamed.block))
    count = along * across * blocking.chunks * resident.pieces
    groups = np.empty((count, steps.BANK + 1), np.int64)
    pieces = np.empty((2, count, steps.FREED + 1), np.int64)
    scale = whole / sides[:, steps.SIZE].prod() / PS_PER_S
    most = int(min(limit / scale + 1, steps.NEVER))
    product, costs = _product(problem, blocking, chip), _costs(problem, chip)
    time, moving = steps.block_time(sides, product, costs, groups, pieces, most)
    return float(time * scale) if time < steps.NEVER else inf, float(moving * scale)


def waits_for_memory(problem: MatmulProblem, loaded: int, stored: int, chip: Chip) -> bool:
    """Whether DMA engines that turn round for each tile of the result, between what is loaded for it and what is
    stored, work for longer than the PE array: bytes of an element."""
    if not chip.dma.turnaround.value:
        return False
    works = (Work("dma.copy", n * BANK, P, P, 2, problem.raw_dtype) for n in (loaded, stored))
    load = dma_cost(next(works), chip, Engine.SYNC, from_hbm=True, to_hbm=False)
    store = dma_cost(next(works), chip, Engine.GPSIMD, from_hbm=False, to_hbm=True)
    product = Work("pe.matmul", BANK, P, P, problem.itemsize, problem.dtype, psum=1)
    return load.share + load.turn + store.share + store.turn > problem.k_tiles * work_cost(product, chip).busy


def _followed(side: BlockedOperand, tiles: int, least: int) -> int:
    """How many blocks of an operand are gone through, of which each tile is one of so many products."""
    return int(min(side.blocks, max(least, LONGEST // (tiles * side.products))))


def _product(problem: MatmulProblem, blocking: Blocking, chip: Chip) -> steps.Ints:
    """What `pipeline` has to know of the product and the chip beside sizes and costs."""
    found = np.zeros(steps.PAIRS + 1, np.int64)
    found[steps.LHS_RESIDENT], found[steps.K], found[steps.DEPTH] = blocking.lhs_resident, problem.k, blocking.depth
    found[steps.KEEP], found[steps.SPILL] = blocking.keep, blocking.spill
    found[steps.BANKS], found[steps.TURNING] = problem.accumulators, problem.turning
    found[steps.ROOM] = BANK * 4 // problem.raw_itemsize
    found[steps.AHEAD], found[steps.ANNOUNCED] = AHEAD, ANNOUNCED
    found[steps.APART], found[steps.PAIRS] = chip.has("parallel_ports"), doubles(problem.dtype, chip)
    return found


def _side(side: BlockedOperand, depth: int, problem: MatmulProblem, chip: Chip) -> tuple[int, ...]:
    """An operand, and what the load of a piece costs."""
    if side.k_rows:
        rows, run, item = min(problem.k, depth * P), side.piece * problem.itemsize, problem.itemsize
    else:
        rows, run, item = side.piece, min(problem.k, depth * P) * problem.raw_itemsize, problem.raw_itemsize
    work = Work("dma.copy", run, rows, min(rows, P), item, problem.dtype)
    cost = dma_cost(work, chip, Engine.SYNC, from_hbm=True, to_hbm=False)
    sizes = side.size, side.block, side.piece, side.tiles, side.raw_tiles, int(side.k_rows), side.unit
    return *sizes, cost.share, cost.turn, (cost.lanes - 1) * cost.stagger


@lru_cache(maxsize=256)
def _costs(problem: MatmulProblem, chip: Chip) -> steps.Ints:
    """What each instruction costs, in picoseconds."""
    raw, item = problem.raw_dtype, problem.raw_itemsize
    found = np.zeros(steps.STORE_TURN + 1, np.int64)
    found[steps.MATMUL], found[steps.MATMUL_COLUMNS], found[steps.PE_LATENCY] = _by_columns(
        lambda n: Work("pe.matmul", n, P, P, dtype(problem.dtype).itemsize, problem.dtype, psum=1), chip
    )
    found[steps.TRANSPOSE] = work_cost(Work("pe.transpose", P, P, P, item, raw, psum=1), chip).busy
    found[steps.COPY], found[steps.COPY_COLUMNS], found[steps.COPY_LATENCY] = _by_columns(
        lambda n: Work("scalar.activation", n, 0, P, item, raw, psum=8), chip
    )
    found[steps.SUM], found[steps.SUM_COLUMNS], found[steps.SUM_LATENCY] = _by_columns(
        lambda n: Work("vector.tensor_tensor", n, 1, P, 4, "float32", psum=2), chip
    )
    found[steps.RESULT] = round(problem.sink_cost * PS_PER_S * steps.FULL / BANK)
    load = dma_cost(Work("dma.copy", P * 2, P, P, 2, raw), chip, Engine.SYNC, from_hbm=True, to_hbm=False)
    found[steps.TRIGGER], found[steps.START], found[steps.INTERVAL] = load.trigger, load.start, load.interval
    found[steps.COMPLETION] = round(chip.dma.completion.value * PS_PER_NS)
    run = steps.FULL * (problem.sink_moved or problem.itemsize)
    store = dma_cost(Work("dma.copy", run, P, P, 2, raw), chip, Engine.GPSIMD, from_hbm=False, to_hbm=True)
    found[steps.STORE_TRIGGER], found[steps.STORE_START] = store.trigger, store.start
    found[steps.STORE_COLUMNS], found[steps.STORE_TURN] = store.share, store.turn
    return found


def _by_columns(work: Callable[[int], Work], chip: Chip) -> tuple[int, int, int]:
    """An instruction's time beyond its columns, that of so many columns as costs are given by, and its latency."""
    some, half = work_cost(work(BANK), chip), work_cost(work(BANK // 2), chip)
    columns = (some.busy - half.busy) * steps.FULL // (BANK - BANK // 2)
    return some.busy - columns * BANK // steps.FULL, columns, some.latency
