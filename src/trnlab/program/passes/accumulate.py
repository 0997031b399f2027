# SPDX-License-Identifier: Apache-2.0
"""Sums in PSUM: a product that is only added to a sum in PSUM is accumulated there by the matmul itself.

    t = nisa.nc_matmul(x, w)        # may be copied to SBUF first, since engines do not read two operands from PSUM
    total += t

The name `t` says nothing about where the product lies. The PE array adds to PSUM at no cost, and so does the
hardware's compiler.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from trnlab import isa
from trnlab.isa.base import Memory
from trnlab.numerics.dtypes import float32
from trnlab.program.passes.draft import COVERS, OFFSET, OPCODE, OWNER, PATTERN, READS, START, WRITES, Draft

_NEAR = 64  # instructions between a product and its sum


def accumulate_in_psum(draft: Draft) -> None:
    """Let matmuls add where their product would only be added."""
    matmul, copy, add = (isa.REGISTRY[name].opcode for name in ("nc_matmul", "tensor_copy", "tensor_tensor"))
    products = np.flatnonzero(draft.rows[:, OPCODE] == matmul)
    if not len(products) or not (draft.rows[:, OPCODE] == add).any():
        return
    uses = _uses(draft)
    first = draft.first
    for i in products.tolist():
        k = int(first[i])  # the destination comes first
        found = _sum_of(draft, uses, i, k, copy, add)
        if found is None:
            continue
        gone, target, starts = found
        draft.references[k, 1:] = draft.references[target, 1:]
        draft.access[k] = WRITES if starts else READS | WRITES
        draft.set_attributes(i, {"accumulate": not starts})
        draft.deleted[gone] = True


def _uses(draft: Draft) -> dict[int, list[int]]:
    """The operands of each tile, in order."""
    uses: dict[int, list[int]] = defaultdict(list)
    for k, owner in enumerate(draft.owner.tolist()):
        if owner in draft.movable:
            uses[owner].append(k)
    return uses


def _sum_of(
    draft: Draft, uses: dict[int, list[int]], i: int, k: int, copy: int, add: int
) -> tuple[list[int], int, bool] | None:
    """Sum of the product that instruction `i` writes to operand `k`: the copies and the addition that alone read
    it, the operand that is the sum, and whether the sum starts with it. None where it is anything else."""
    copied: list[int] = []
    of, opcode = draft.of_list, draft.rows[:, OPCODE]
    if draft.access[k] != WRITES | COVERS or draft.buffers[int(draft.owner[k])].dtype is not float32:
        return None
    while True:
        mine = uses.get(int(draft.owner[k]), [])
        if len(mine) != 2 or mine[0] != k:
            return None
        reader = of[mine[1]]
        if opcode[reader] == add:
            break
        dst = int(draft.first_list[reader])
        if opcode[reader] != copy or draft.access[dst] != WRITES | COVERS or copied:
            return None
        if draft.buffers[int(draft.owner[dst])].dtype is not float32:
            return None
        copied.append(reader)
        k = dst
    return _checked(draft, i, copied, reader, mine[1])


def _checked(
    draft: Draft, i: int, copied: list[int], summed: int, product: int
) -> tuple[list[int], int, bool] | None:
    """Whether addition `summed` adds `product` to what it overwrites, a sum in PSUM that nothing between uses."""
    dst, end = draft.first_list[summed], draft.first_list[summed + 1]
    others = [k for k in range(dst + 1, end) if k != product]
    if draft.attributes(summed)["op"] != "add" or len(others) != 1 or summed - i > _NEAR:
        return None
    target = int(draft.owner[dst])
    if draft.buffers[target].memory is not Memory.PSUM or draft.buffers[target].dtype is not float32:
        return None
    if not _same(draft, dst, others[0]):
        return None
    between = [k for k in range(draft.first_list[i], dst) if draft.owner[k] == target]
    if not between:
        return [*copied, summed], dst, False
    if len(between) == 1 and _is_zero(draft, between[0]) and _same(draft, dst, between[0]):
        return [*copied, summed, draft.of_list[between[0]]], dst, True
    return None


def _same(draft: Draft, one: int, other: int) -> bool:
    """Whether two operands are the same elements."""
    place = [PATTERN, OWNER, START, OFFSET]
    return bool((draft.references[one, place] == draft.references[other, place]).all())


def _is_zero(draft: Draft, k: int) -> bool:
    """Whether operand `k` is filled with zero."""
    instruction = draft.of_list[k]
    filled = draft.rows[instruction, OPCODE] == isa.REGISTRY["memset"].opcode
    return bool(filled and draft.attributes(instruction)["value"] == 0)
