# SPDX-License-Identifier: Apache-2.0
"""How a matmul is cut into blocks that fit on chip: of all blockings the one that takes the least time.

All that fit are estimated (`estimate`), and the best of them, as far as their loops differ, are gone through
piece by piece (`pipeline`): estimates of the best fifty differ by less than their error. A stack whose compiler does
not (`stacks.Stack.blockings`) has the best by its estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, inf
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError
from trnlab.kernels.blocking.costs import block_seconds
from trnlab.kernels.blocking.estimate import estimates
from trnlab.kernels.blocking.problem import BlockedOperand, Blocking, Count, MatmulProblem, raw_bytes, tile_bytes
from trnlab.kernels.blocks import BANK, P

FOLLOWED = 40  # blockings that are gone through piece by piece
_DEPTHS = (32, 16, 12, 8, 6, 4, 3, 2, 1)
_WIDTHS = (2048, 1024, 512, 256, 128)
# Of several chunks, a resident block keeps all, or loads them again for each streamed one, or its sums wait in SBUF.
_KEPT, _AGAIN, _SPILLED = range(3)


@lru_cache(maxsize=1024)
def choose(problem: MatmulProblem, budget: int, chip: Chip, followed: bool = True) -> Blocking:
    """The blocking that takes the least time among those that fit in `budget` bytes per partition.

    followed: whether the best are gone through, or the best by its estimate is taken. Raises CapacityError when not
    even the smallest blocks fit.
    """
    most = FOLLOWED if followed else 1
    if problem.accumulators < 1:
        raise CapacityError(
            f"a matmul of {problem.m} x {problem.k} x {problem.n} has no bank for its results",
            code="TRN502",
            limit=f"{problem.banks} banks",
            got=f"{problem.sums + problem.turning} for sums and to transpose into",
            chip=chip.name,
            remedy="give the routine more banks of PSUM",
        )
    found = [_deeper(each, problem, budget) for each in _worth_following(problem, budget, chip, most)]
    if not found:
        raise CapacityError(
            f"a matmul of {problem.m} x {problem.k} x {problem.n} has no room for its blocks",
            code="TRN501",
            limit=f"{budget} bytes per partition left",
            got="at least two tiles of each operand",
            chip=chip.name,
            remedy="give the routine more SBUF, or release tiles before the call",
        )
    return _fastest(problem, found, chip) if len(found) > 1 else found[0]


def _fastest(problem: MatmulProblem, found: list[Blocking], chip: Chip) -> Blocking:
    """The first of those that cost the least. Each is gone through until it is sure to cost more than one before."""
    best, least = found[0], inf
    for blocking in found:
        seconds = block_seconds(problem, blocking, chip, least)
        if seconds < least:
            best, least = blocking, seconds
    return best


def least_seconds(problem: MatmulProblem, budget: int, chip: Chip, followed: bool = True) -> float:
    """What a product costs in the blocking that `choose` finds with the same arguments, for comparing. Raises
    CapacityError, as it does."""
    blocking = choose(problem, budget, chip, followed)
    return block_seconds(problem, blocking, chip) if followed else float(estimates(problem, chip)(blocking))


def _worth_following(problem: MatmulProblem, budget: int, chip: Chip, most: int = FOLLOWED) -> list[Blocking]:
    """The best `most` of all blockings by their estimates: of those with the same loops the best alone."""
    estimate = estimates(problem, chip)
    many = [_candidates(problem, budget, lhs_resident) for lhs_resident in (True, False)]
    seconds = np.concatenate([estimate(each) for each in many])
    found: dict[object, Blocking] = {}
    for i in np.argsort(seconds, kind="stable").tolist():
        count = len(many[0].depth)
        each = _picked(many[i >= count], i - count if i >= count else i)
        resident, streamed = each.resident, each.streamed
        loops = each.lhs_resident, each.depth, streamed.piece, resident.block, resident.piece, each.keep, each.spill
        found.setdefault(loops, each)
        if len(found) == most:
            break
    return list(found.values())


def _deeper(found: Blocking, problem: MatmulProblem, budget: int) -> Blocking:
    """The blocking with as many tiles for the larger operand, or for what of it waits to be transposed, as there are
    pieces, and room: they are loaded while the call before works."""
    name = "rhs" if problem.n >= problem.m or problem.open_rows else "lhs"
    side: BlockedOperand = getattr(found, name)
    room = budget - found.sbuf_bytes(problem.itemsize, problem.raw_itemsize)
    pieces = ceil(side.size / side.piece) * found.chunks
    if side.k_rows:
        more = min(pieces - side.tiles, room // tile_bytes(side.piece, found.depth, problem.itemsize))
        grown = replace(side, tiles=side.tiles + max(more, 0))
    else:
        raw = raw_bytes(side.piece, found.depth, problem.raw_itemsize)
        grown = replace(side, raw_tiles=side.raw_tiles + max(min(pieces - side.raw_tiles, room // raw), 0))
    return replace(found, rhs=grown) if name == "rhs" else replace(found, lhs=grown)


def _candidates(problem: MatmulProblem, budget: int, lhs_resident: bool) -> Blocking:
    """All blockings that fit in `budget` bytes per partition, in arrays."""
    sizes = ((problem.m, P, problem.lhs_k_rows), (problem.n, BANK, problem.rhs_k_rows))
    resident, streamed = sizes if lhs_resident else sizes[::-1]
    k_tiles = problem.k_tiles
    depth, width, tiles, raw, piece, use = _combined(
        sorted({min(d, k_tiles) for d in _DEPTHS} | ({k_tiles} if k_tiles <= 128 else set())),
        _widths(*streamed[:2]),
        (8, 4, 3, 2) if problem.batch > 1 else (4, 3, 2),
        (0,) if streamed[2] else (3, 2, 1),
        _widths(*resident[:2]),
        (_KEPT, _AGAIN, _SPILLED),
    )
    taken = tiles * tile_bytes(width, depth, problem.itemsize) + raw * raw_bytes(width, depth, problem.raw_itemsize)
    passing = BlockedOperand(*streamed, width, width, tiles, raw)
    found = _with_residents(problem, passing, resident, lhs_resident, depth, budget - taken, piece, use)
    return _picked(found, found.open_rows <= problem.open_rows) if problem.open_rows else found


def _combined(*choices: Sequence[int]) -> tuple[Count, ...]:
    """All combinations, the last choice changing fastest."""
    return tuple(each.ravel() for each in np.meshgrid(*choices, indexing="ij"))


def _with_residents(
    problem: MatmulProblem,
    streamed: BlockedOperand,
    size: tuple[int, int, bool],
    lhs_resident: bool,
    depth: Count,
    left: Count,
    piece: Count,
    use: Count,
) -> Blocking:
    """Those of which a resident block has room in the `left` bytes beside the streamed tiles."""
    chunks, across = -(-problem.k_tiles // depth), -(-size[0] // piece)
    raw = np.full_like(depth, 0 if size[2] else 2)
    space = left - raw * raw_bytes(piece, depth, problem.raw_itemsize)
    tile = tile_bytes(piece, depth, problem.itemsize)
    in_psum = np.where(chunks == 1, across, problem.accumulators // streamed.products * size[1] // piece)
    rows, cols = (piece, streamed.block) if lhs_resident else (streamed.block, piece)
    sums = -(-rows // P) * tile_bytes(cols, 1, 4)  # of one piece
    kept, again = np.minimum(in_psum, space // tile // chunks), np.minimum(in_psum, space // tile // 2)
    most = np.choose(use, (kept, again, (space - 3 * tile) // sums))
    fits = (left > 0) & (most >= 1) & ((chunks > 1) | (use == _KEPT)) & ((use != _SPILLED) | (most > in_psum))
    blocks = -(-across // np.clip(most, 1, across))
    pieces = -(-across // blocks)  # blocks of about equal size
    turns = np.choose(use, (pieces * chunks * np.where(blocks > 1, 2, 1), 3 * pieces, 3))
    tiles = np.where(use == _SPILLED, 3, np.minimum(space // tile, turns))
    side = BlockedOperand(*size, pieces * piece, piece, tiles, raw)
    lhs, rhs = (side, streamed) if lhs_resident else (streamed, side)
    return _picked(Blocking(lhs, rhs, lhs_resident, depth, chunks, use == _KEPT, use == _SPILLED), fits)


def _picked(found: Blocking, which: Any) -> Blocking:
    """Those of many for which an array says so, or the one of a number."""

    def of(values: Any) -> Any:
        return values[which].item() if isinstance(which, int) else values[which]

    def side(many: BlockedOperand) -> BlockedOperand:
        changed = of(many.block), of(many.piece), of(many.tiles), of(many.raw_tiles)
        return BlockedOperand(many.size, many.unit, many.k_rows, *changed)

    how = of(found.depth), of(found.chunks), of(found.keep), of(found.spill)
    return Blocking(side(found.lhs), side(found.rhs), found.lhs_resident, *how)


def _widths(size: int, unit: int) -> list[int]:
    """Widths of pieces worth trying: multiples of the unit, or the whole operand if it is smaller."""
    return sorted({min(w, size) for w in _WIDTHS if w % unit == 0 or w >= size} | ({size} if size < unit else set()))
