# SPDX-License-Identifier: Apache-2.0
"""Merging: iterations that do the same, side by side, are one instruction.

    for i in nl.affine_range(64):           # 64 instructions of three elements: one of [64, 3]
        p = nisa.tensor_tensor(x[:, i : i + 3], w, op=nl.multiply)
        y[:, i] = nisa.tensor_reduce(nl.add, p, axis=1)

The hardware's compiler splits such a loop into one for each instruction, and makes one instruction of those that have
the same form at equal distances. Tiles that each iteration has for itself become columns of one tile. It merges over
a whole loop, if the result has at most `merge_columns` columns, or not at all; results of the PE array, over as many
iterations as share a bank of PSUM. See ADR 30.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trnlab import isa
from trnlab.errors import ConstraintError
from trnlab.isa.base import Engine
from trnlab.loops import compiled
from trnlab.program.access import AP, MAX_FREE_DIMS, Pattern, pattern, pattern_of
from trnlab.program.passes.draft import ATTR, ENGINE, OPCODE, PATTERN, ROLE, START, WORK, Bools, Draft, Ints
from trnlab.program.passes.merge_plan import Code, MergePlan, code_of, fixed_instructions, plan, some, tiles_of
from trnlab.program.passes.nests import Nest, nests
from trnlab.program.strided import Dims


class Forms(NamedTuple):
    """Instructions over several iterations: whether the chip takes them, their work; per operand its number, and its
    pattern."""

    legal: Bools
    work: Ints
    operands: Ints
    patterns: Ints


class Merged(NamedTuple):
    """What becomes of the loops of a nest."""

    ids: Ints  # the instructions in their new order
    size: Ints  # per instruction, of how many it is made; 0 for those that go into another
    # group, place: of each buffer, the group of tiles that it is one of (-1: none), and which
    group: Ints
    place: Ints


def merge_iterations(draft: Draft) -> None:
    """Merge the iterations of all loops, inner ones first."""
    if draft.b.prints or draft.b.dependencies or draft.b.spans is None:
        return
    inside = np.zeros(len(draft), np.bool_)
    for nest in nests(draft, draft.b.spans, fixed_instructions(draft)):
        size = _merge_nest(draft, nest, inside) if nest.length.any() else np.ones(len(draft), np.int64)
        inside |= _left_inside(nest, size)


def _merge_nest(draft: Draft, nest: Nest, inside: Bools) -> Ints:
    """Merge the iterations of these loops; returns of how many instructions each one is made now."""
    code, tiles = code_of(draft, inside), tiles_of(draft)
    found = plan(draft, nest, code, tiles, draft.policy.merge_columns)
    chosen = np.flatnonzero(found.width)
    forms = _forms(draft, nest.ids[nest.match[chosen]], found.width[chosen], found.step)
    found.width[chosen[~forms.legal]] = 0
    if not found.width.any():
        return np.ones(len(draft), np.int64)
    merged = _merged(nest, code, found)
    _apply(draft, found, merged)
    size: Ints = merged.size
    return size


def _left_inside(nest: Nest, size: Ints) -> Bools:
    """Instructions that remain inside of these loops, so that loops around them cannot merge them either: all but
    those that were made of all iterations, and those that only the first one has.
    """
    change = np.zeros(len(nest.ids) + 1, np.int64)
    first, last = nest.iterations[:-1], nest.iterations[1:] - 1
    np.add.at(change, nest.begin[first], last - first + 1)
    np.add.at(change, nest.end[last], first - last - 1)
    iterations = np.cumsum(change)[:-1]
    aligned = np.zeros(len(change), np.int64)
    np.add.at(aligned, nest.begin[first], np.minimum(nest.length, 1))
    np.add.at(aligned, nest.end[last], -np.minimum(nest.length, 1))
    once = (np.cumsum(aligned)[:-1] > 0) & (nest.slot % 2 == 0)
    left = np.zeros(len(size), np.bool_)
    left[nest.ids] = (iterations > 0) & (size[nest.ids] != iterations) & ~once
    return left


def _apply(draft: Draft, found: MergePlan, merged: Merged) -> None:
    """Change the draft: new forms of instructions, tiles side by side, order."""
    ones = np.flatnonzero(merged.size > 1)
    forms = _forms(draft, ones, merged.size[ones], found.step)
    assert forms.legal.all(), "what is legal for many iterations is legal for fewer"
    draft.rows[ones, WORK] = forms.work
    draft.references[forms.operands, PATTERN] = forms.patterns
    draft.order[~draft.deleted[draft.order]] = merged.ids
    draft.deleted |= merged.size == 0
    grouped = merged.group >= 0
    if grouped.any():
        leaders = np.flatnonzero(grouped & (merged.place == 0))
        leaders = leaders[np.argsort(merged.group[leaders])]
        counts = np.bincount(merged.group[grouped])
        draft.put_side_by_side(leaders, counts, merged.group, merged.place)


def _forms(draft: Draft, ones: Ints, sizes: Ints, step: Ints) -> Forms:
    """What these instructions are over so many iterations, between which their operands step so many bytes."""
    first = draft.first
    counts = first[ones + 1] - first[ones]
    ends = np.cumsum(counts)
    operands = np.arange(int(counts.sum())) + np.repeat(first[ones] - (ends - counts), counts)
    partition = draft.columns().first_partition[draft.owner[operands]]
    partition += draft.references[operands, START]
    keys = np.column_stack([draft.references[operands][:, [ROLE, PATTERN]], step[operands], partition]).tolist()
    owners, rows = draft.owner[operands].tolist(), draft.rows[ones][:, [OPCODE, ENGINE, ATTR]].tolist()
    known: dict[Any, tuple[int, list[int]]] = {}
    works, patterns, begin = [], [], 0
    for row, size, end in zip(rows, sizes.tolist(), ends.tolist()):
        key = (*row, size, *(n for operand in keys[begin:end] for n in operand))
        if key not in known:
            known[key] = _form(draft, row, size, keys[begin:end], owners[begin:end])
        works.append(known[key][0])
        patterns += known[key][1]
        begin = end
    work = np.array(works, np.int64)
    return Forms(work >= 0, work, operands, np.array(patterns, np.int64))


def _form(draft: Draft, row: list[int], size: int, keys: list[list[int]], owners: list[int]) -> tuple[int, list[int]]:
    """Work and patterns of one instruction over `size` iterations; -1 for the work of one that the chip refuses."""
    instr, attrs = isa.BY_OPCODE[row[0]], dict(draft.b.attributes[row[2]])
    operands: dict[str, AP] = {}
    numbers = []
    for (role, number, step, start), owner in zip(keys, owners):
        spec, old, buffer = instr.operands[role], pattern(number), draft.buffers[owner]
        kept = attrs["axes"] if instr.name == "tensor_reduce" and spec.role == "src" else 0
        dims = old.dims if spec.is_scalar else _repeated(old, step, size, kept)
        if dims is None:
            return -1, [number for _, number, _, _ in keys]
        start -= buffer.first_partition
        operands[spec.name] = AP(buffer, old.dtype, start, old.partitions, old.partition_step, 0, dims)
        form = pattern_of(int(buffer.memory), old.dtype.code, old.partitions, old.partition_step, dims)
        numbers.append(number if spec.is_scalar else form.number)
    try:
        work = isa.validate(instr, operands, attrs, Engine(row[1]), draft.b.chip, None)
    except ConstraintError:
        return -1, numbers
    return draft.b.work_index(work), numbers


def _repeated(old: Pattern, step: int, size: int, kept: int) -> Dims | None:
    """A pattern, `size` times with `step` bytes between, the last `kept` dimensions apart from the others; None where
    there are too many dimensions, or the step is no number of elements.
    """
    every, rest = divmod(step, old.dtype.itemsize)
    outer, inner = old.dims[: len(old.dims) - kept], old.dims[len(old.dims) - kept :]
    outer = tuple(dim for dim in outer if dim[1] > 1)
    if outer and every == outer[0][0] * outer[0][1]:
        dims = ((outer[0][0], outer[0][1] * size), *outer[1:], *inner)
    else:
        dims = ((every, size), *outer, *inner)
    return None if rest or len(dims) > MAX_FREE_DIMS else dims


@compiled
def _merged(nest: Nest, code: Code, found: MergePlan) -> Merged:  # pragma: no cover
    """Split the loops at what is merged, and merge it. Fills in the steps of the instructions that stay for all."""
    ids, size = nest.ids.copy(), np.ones(code.opcode.shape[0], np.int64)
    buffers = 0
    for k in range(code.owner.shape[0]):
        buffers = max(buffers, code.owner[k] + 1)
    merged = Merged(ids, size, np.full(buffers, -1, np.int64), np.zeros(buffers, np.int64))
    groups = 0
    for loop in range(nest.length.shape[0]):
        if some(found.width, nest.positions[loop], nest.positions[loop + 1]):
            first, last = nest.iterations[loop], nest.iterations[loop + 1]
            for start in range(first, last, found.together[loop]):
                stop = min(start + found.together[loop], last)
                groups = _split(nest, code, found, merged, loop, start, stop, groups)
    return merged


@compiled
def _split(
    nest: Nest, code: Code, found: MergePlan, merged: Merged, loop: int, start: int, stop: int, groups: int
) -> int:  # pragma: no cover
    """Order iterations start..stop (excluded): up to a merged position all of them, then it, then what follows.

    Returns the number of groups of tiles that there are now.
    """
    top, slots = nest.positions[loop], 2 * nest.length[loop] + 1
    at, out, slot = nest.begin[start:stop].copy(), nest.begin[start], 0
    while slot < slots:
        cut = slot
        while cut < slots and not (cut % 2 and found.width[top + cut // 2]):
            cut += 1
        for i in range(stop - start):
            while at[i] < nest.end[start + i] and nest.slot[at[i]] < cut:
                merged.ids[out] = nest.ids[at[i]]
                at[i] += 1
                out += 1
        if cut < slots:
            model, each = nest.ids[nest.match[top + cut // 2]], found.width[top + cut // 2]
            for i in range(0, stop - start, each):
                part = np.empty(min(each, stop - start - i), np.int64)
                for j in range(part.shape[0]):
                    part[j] = nest.ids[at[i + j]]
                groups = _merge(code, found, merged, model, part, groups)
                for j in range(part.shape[0]):
                    merged.ids[out + j] = part[j]
                out += part.shape[0]
            for i in range(stop - start):
                at[i] += 1
        slot = cut + 1
    return groups


@compiled
def _merge(
    code: Code, found: MergePlan, merged: Merged, model: int, part: Ints, groups: int
) -> int:  # pragma: no cover
    """Make one instruction of these, like `model`, unless their tiles cannot lie side by side; returns `groups`."""
    if part.shape[0] == 1:
        return groups
    begin, size = code.begins[part[0]], code.begins[part[0] + 1] - code.begins[part[0]]
    for operand in range(size):
        if code.owner[begin + operand] != code.owner[code.begins[part[1]] + operand]:
            joined = _join(code, merged, part, operand, groups)
            if joined < 0:
                return groups
            groups += joined
    for i in range(1, part.shape[0]):
        merged.size[part[i]] = 0
    merged.size[part[0]] = part.shape[0]
    for operand in range(size):
        found.step[begin + operand] = found.step[code.begins[model] + operand]
    return groups


@compiled
def _join(code: Code, merged: Merged, part: Ints, operand: int, groups: int) -> int:  # pragma: no cover
    """Put the tiles of an operand side by side, in order: 1 for a new group, 0 where they are so, -1 for others."""
    first = code.owner[code.begins[part[0]] + operand]
    group = merged.group[first]
    for i in range(part.shape[0]):
        tile = code.owner[code.begins[part[i]] + operand]
        if merged.group[tile] != group or (group >= 0 and merged.place[tile] != merged.place[first] + i):
            return -1
    if group >= 0:
        return 0
    for i in range(part.shape[0]):
        tile = code.owner[code.begins[part[i]] + operand]
        merged.group[tile], merged.place[tile] = groups, i
    return 1
