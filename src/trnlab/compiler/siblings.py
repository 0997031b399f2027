# SPDX-License-Identifier: Apache-2.0
"""Products of one operand by several others, which become one call: queries, keys and values of the same rows.

What they share is loaded once, and transposed once on the PE array. Each stays a group of its own, with its own
epilogue, and the columns of all results lie side by side in one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from trnlab.chips.spec import Chip
from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup
from trnlab.compiler.fusing.packing import Unit, are_siblings
from trnlab.compiler.lowerings.dot import arranged, product_of
from trnlab.errors import CapacityError
from trnlab.graph.ir import Value
from trnlab.kernels.blocking.choose import choose, least_seconds
from trnlab.kernels.blocking.problem import MatmulProblem
from trnlab.kernels.blocks import P

BLOCKS = 0.75  # of what a call has of SBUF, for blocks of operands
# Rows of a product from which on it has siblings: with fewer, weights set the pace, and one product begins to compute
# later than the first of several (BERT-base of 128 rows took 0.96 ms instead of 0.80).
LEAST_ROWS = 512
NEAR = 12  # calls between two products at most: results that come earlier are in memory for longer


class _Shared(NamedTuple):
    """What products that are one call have in common, whatever is in its columns."""

    value: Value
    layout: tuple[object, ...]  # how the left operand is seen, and whether its rows are contracted
    right: tuple[object, ...]  # formats of the right one, and whether its rows are contracted


def join_siblings(units: list[Unit], part: Partition, chip: Chip) -> list[Unit]:
    """The units with products of the same left operand put together, where that is estimated to take less time."""
    found: list[Unit] = []
    begun: dict[_Shared, tuple[int, list[MatmulProblem]]] = {}  # the number of a unit, and its products
    for unit in units:
        known = _known(unit[0], part)
        if known is not None:
            shared, problem = known
            at, before = begun.get(shared, (-1, []))
            if at >= 0 and _may_join(found, at, unit[0], part) and _gains([*before, problem], chip):
                found[at] = [*found[at], unit[0]]
                before.append(problem)
                continue
            begun[shared] = len(found), [problem]
        found.append(unit)
    return found


def need_all_of_sbuf(unit: Unit, part: Partition, chip: Chip) -> bool:
    """Whether siblings would load an operand again with half of SBUF."""
    if not are_siblings(unit):
        return False
    known = [_known(group, part) for group in unit]
    return not _comes_once(_whole([problem for each in known if each is not None for problem in each[1:]]), chip, 2)


def _known(group: FusionGroup, part: Partition) -> tuple[_Shared, MatmulProblem] | None:
    """What a group's product is, if it is one of matrices that may have siblings."""
    problem = product_of(group, part) if group.anchor.name == "dot_general" else None
    if problem is None or problem.n % P or problem.m < LEAST_ROWS:
        return None
    attrs, (lhs, rhs) = group.anchor.attrs, group.anchor.operands
    left, _, rows, left_k = arranged(part.strided(lhs), attrs, "lhs")
    layout = left.base, left.offset, left.shape, left.strides, rows, left_k, attrs.get("lhs_cast", "")
    right = rhs.dtype, problem.dtype, problem.rhs_k_rows, problem.k
    return _Shared(part.shared(lhs), layout, right), problem


def _may_join(units: list[Unit], at: int, group: FusionGroup, part: Partition) -> bool:
    """Whether a group may run as part of the unit numbered `at`: nothing from there on must run before it."""
    later = units[at:]
    return len(later) <= NEAR and not any(
        part.dependencies.runs_before(other.id, group.id) for unit in later for other in unit
    )


def _gains(problems: Sequence[MatmulProblem], chip: Chip) -> bool:
    """Whether one product takes less than several, each with half of SBUF; and brings each operand
    on chip once, for what comes again has been transposed in vain."""
    whole = _whole(problems)
    if not (_comes_once(whole, chip, 1) or _comes_once(whole, chip, 2)):
        return False
    return _seconds(whole, chip, 1) < sum(_seconds(problem, chip, 2) for problem in problems)


def _whole(problems: Sequence[MatmulProblem]) -> MatmulProblem:
    """The product whose columns are those of all."""
    return replace(problems[0], n=sum(problem.n for problem in problems))


def _budget(chip: Chip, parts: int) -> int:
    """Bytes of a partition for blocks in one of so many parts of SBUF, beside the tiles of epilogues."""
    return int(chip.sbuf.usable_bytes_per_partition / parts * BLOCKS)


def _comes_once(problem: MatmulProblem, chip: Chip, parts: int) -> bool:
    """Whether both operands are loaded once, with one of so many parts of SBUF."""
    try:
        return choose(problem, _budget(chip, parts), chip).loads == (1, 1)
    except CapacityError:
        return False


def _seconds(problem: MatmulProblem, chip: Chip, parts: int) -> float:
    """What it costs with one of so many parts of SBUF; without end where that is too little."""
    try:
        return least_seconds(problem, _budget(chip, parts), chip)
    except CapacityError:
        return float("inf")
