# SPDX-License-Identifier: Apache-2.0
"""How a matmul is cut into blocks that fit on chip: of all blockings the one that takes the least time.

All that fit are estimated (`estimate`), and the best of them, as far as their loops differ, are gone through
piece by piece (`pipeline`): estimates of the best fifty differ by less than their error. A stack whose compiler does
not (`stacks.Stack.blockings`) has the best by its estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from heapq import nsmallest
from itertools import product
from math import ceil

from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError
from trnlab.kernels.blocking.costs import block_seconds
from trnlab.kernels.blocking.estimate import estimates
from trnlab.kernels.blocking.problem import BlockedOperand, Blocking, MatmulProblem, raw_bytes, tile_bytes
from trnlab.kernels.blocks import BANK, P

FOLLOWED = 40  # blockings that are gone through piece by piece
_DEPTHS = (32, 16, 12, 8, 6, 4, 3, 2, 1)
_WIDTHS = (2048, 1024, 512, 256, 128)


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
    if len(found) == 1:
        return found[0]
    return min(found, key=lambda blocking: block_seconds(problem, blocking, chip))


def least_seconds(problem: MatmulProblem, budget: int, chip: Chip, followed: bool = True) -> float:
    """What a product costs in the blocking that `choose` finds with the same arguments, for comparing. Raises
    CapacityError, as it does."""
    blocking = choose(problem, budget, chip, followed)
    return block_seconds(problem, blocking, chip) if followed else estimates(problem, chip)(blocking)


def _worth_following(problem: MatmulProblem, budget: int, chip: Chip, most: int = FOLLOWED) -> list[Blocking]:
    """The best `most` of all blockings by their estimates: of those with the same loops the best alone."""
    estimate, best = estimates(problem, chip), dict[object, tuple[float, int, Blocking]]()
    for number, each in enumerate(_candidates(problem, budget)):
        resident, streamed = each.resident, each.streamed
        loops = each.lhs_resident, each.depth, streamed.piece, resident.block, resident.piece, each.keep, each.spill
        found = estimate(each), number, each
        if loops not in best or found < best[loops]:
            best[loops] = found
    return [each for _, _, each in nsmallest(most, best.values())]


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


def _candidates(problem: MatmulProblem, budget: int) -> Iterator[Blocking]:
    k_tiles = problem.k_tiles
    depths = sorted({min(d, k_tiles) for d in _DEPTHS} | ({k_tiles} if k_tiles <= 128 else set()))
    for lhs_resident in (True, False):
        sizes = ((problem.m, P, problem.lhs_k_rows), (problem.n, BANK, problem.rhs_k_rows))
        resident, streamed = sizes if lhs_resident else sizes[::-1]
        for depth in depths:
            for width in _widths(*streamed[:2]):
                tile = tile_bytes(width, depth, problem.itemsize)
                raw_tile = raw_bytes(width, depth, problem.raw_itemsize)
                for tiles, raw in product(
                    (8, 4, 3, 2) if problem.batch > 1 else (4, 3, 2), (0,) if streamed[2] else (3, 2, 1)
                ):
                    left = budget - tiles * tile - raw * raw_tile
                    if left > 0:
                        side = BlockedOperand(*streamed, width, width, tiles, raw)
                        yield from _residents(problem, side, resident, lhs_resident, depth, left)


def _residents(
    problem: MatmulProblem,
    streamed: BlockedOperand,
    size: tuple[int, int, bool],
    lhs_resident: bool,
    depth: int,
    left: int,
) -> Iterator[Blocking]:
    """What can be resident in the `left` bytes beside the streamed tiles."""
    chunks = ceil(problem.k_tiles / depth)
    for piece in _widths(*size[:2]):
        raw = 0 if size[2] else 2
        space = left - raw * raw_bytes(piece, depth, problem.raw_itemsize)
        tile = tile_bytes(piece, depth, problem.itemsize)
        across = ceil(size[0] / piece)
        in_psum = across if chunks == 1 else problem.accumulators // streamed.products * size[1] // piece
        rows, cols = (piece, streamed.block) if lhs_resident else (streamed.block, piece)
        sums = ceil(rows / P) * tile_bytes(cols, 1, 4)  # of one piece
        options = [(min(in_psum, space // tile // chunks), True, False)]
        if chunks > 1:
            options.append((min(in_psum, space // tile // 2), False, False))
            options.append(((space - 3 * tile) // sums, False, True))
        for most, keep, spill in options:
            if most < 1 or (spill and most <= in_psum):
                continue
            blocks = ceil(across / min(most, across))
            pieces = ceil(across / blocks)  # blocks of about equal size
            tiles = 3 if spill else min(space // tile, pieces * (2 * chunks if keep and blocks > 1 else chunks))
            if not keep and not spill:
                tiles = min(space // tile, 3 * pieces)
            side = BlockedOperand(*size, pieces * piece, piece, tiles, raw)
            lhs, rhs = (side, streamed) if lhs_resident else (streamed, side)
            found = Blocking(lhs, rhs, lhs_resident, depth, chunks, keep, spill)
            if not problem.open_rows or found.open_rows <= problem.open_rows:
                yield found


def _widths(size: int, unit: int) -> list[int]:
    """Widths of pieces worth trying: multiples of the unit, or the whole operand if it is smaller."""
    return sorted({min(w, size) for w in _WIDTHS if w % unit == 0 or w >= size} | ({size} if size < unit else set()))
