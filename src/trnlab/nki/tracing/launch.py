# SPDX-License-Identifier: Apache-2.0
"""Launch grids: which programs of a kernel run, and on which core each.

In the new dialect the grid is the number of cores, kernel[2](...): one program on each of the two cores of a logical
core. In the old one it is any number of programs; they run one after the other on one core, unless the grid says
`nl.nc(2)`, which spreads the programs along one axis over cores.

Sources: nki/get-started/about/lnc.rst (one number, 1 or 2), nki/test/test_nki_spmd_grid.py (nl.nc, nl.spmd_dim) in
aws-neuron/aws-neuron-sdk.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from math import prod
from typing import Any, Self

from trnlab.chips.spec import Chip
from trnlab.errors import UsageError

CORES = 2  # physical cores of a logical core, at most


class Spread(int):
    """A grid dimension whose programs are spread over `cores`: blocks of neighbours, or in turns."""

    cores: int
    in_turns: bool

    def __new__(cls, size: int, cores: int, in_turns: bool = False) -> Self:
        """`size` programs on `cores` cores."""
        made = super().__new__(cls, size)
        made.cores, made.in_turns = cores, in_turns
        return made

    def core_of(self, index: int) -> int:
        """The core that the program with this index along the dimension runs on."""
        return index % self.cores if self.in_turns else index // max(int(self) // self.cores, 1)


@dataclass(frozen=True)
class LaunchGrid:
    """A launch grid: `sizes` as nl.num_programs tells them, and the programs of each core in order."""

    sizes: tuple[int, ...] = ()
    cores: tuple[tuple[tuple[int, ...], ...], ...] = (((),),)

    def check(self, chip: Chip) -> None:
        """Raises UsageError where the chip has no such logical core."""
        if len(self.cores) > 1 and not chip.has("logical_cores"):
            raise UsageError(
                f"{chip.name} cannot run a kernel on {len(self.cores)} cores",
                code="TRN114",
                limit=1,
                got=len(self.cores),
                chip=chip.name,
                remedy="launch it as kernel[1](...), or choose trn2 or later",
            )


ONE_CORE = LaunchGrid()


def one_per_core(grid: Any) -> LaunchGrid:
    """The launch of a kernel of the new dialect. Raises UsageError for more than a number of cores."""
    sizes = tuple(int(g) for g in (grid if isinstance(grid, tuple) else (grid,)))
    if len(sizes) != 1 or not 1 <= sizes[0] <= CORES:
        raise UsageError(
            "the launch grid is the number of cores of a logical core",
            code="TRN114",
            limit="kernel[1] or kernel[2]",
            got=f"kernel{list(sizes)}",
            remedy="loop over tiles within the kernel; nl.program_id(0) tells the core",
        )
    return LaunchGrid(sizes, tuple(((core,),) for core in range(sizes[0])))


def _on_two(dim: Any) -> Any:
    if not isinstance(dim, Spread) or dim.cores <= CORES or dim.cores % CORES:
        return dim
    warnings.warn(
        f"nl.nc({dim.cores}): a logical core has at most {CORES} physical ones, their programs run on {CORES}",
        stacklevel=4,
    )
    return Spread(int(dim), CORES, dim.in_turns)


def programs(grid: Any) -> LaunchGrid:
    """The launch of a kernel of the old dialect. Raises UsageError for more cores than a logical core has.

    nl.nc of more than the two that a logical core has, for which there is no chip, causes a warning: two share them.
    """
    dims = tuple(map(_on_two, grid if isinstance(grid, tuple) else (grid,)))
    sizes = tuple(max(int(g), 1) for g in dims)
    count = prod(g.cores for g in dims if isinstance(g, Spread))
    if count > CORES or any(int(g) % g.cores for g in dims if isinstance(g, Spread)):
        raise UsageError(
            "programs cannot be spread so",
            code="TRN114",
            limit=f"nl.nc(1) or nl.nc({CORES}), in equal parts",
            got=f"{count} cores for a grid of {list(sizes)}",
            remedy="use nl.nc(2) on one axis of an even size",
        )
    cores: list[list[tuple[int, ...]]] = [[] for _ in range(count)]
    for program in itertools.product(*(range(size) for size in sizes)):
        on = [g.core_of(i) for g, i in zip(dims, program) if isinstance(g, Spread) and g.cores > 1]
        cores[on[0] if on else 0].append(program)
    return LaunchGrid(sizes, tuple(tuple(mine) for mine in cores))
