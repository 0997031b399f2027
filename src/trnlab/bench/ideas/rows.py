# SPDX-License-Identifier: Apache-2.0
"""Loads of whole rows: blocks of a tensor that lie side by side are loaded once, in one transfer of long rows.

    for k in range(8):                                  rows = nl.load(x[0:128, 0:1024])        # once
        t = nl.load(x[0:128, 128 * k : 128 * (k + 1)])  ... rows[:, 128 * k : 128 * (k + 1)]

A descriptor moves one contiguous run, and short ones cost as much as longer ones. Blocks that are loaded again are
loaded once. The tile lives until its last reader, so there has to be room for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from trnlab import isa
from trnlab.bench.ideas.change import DMA_GUIDE, PERF_GUIDE, KernelChange, placed
from trnlab.chips.spec import Chip
from trnlab.errors import ConstraintError
from trnlab.isa.base import Engine, Memory
from trnlab.program.access import AP, Buffer, whole
from trnlab.program.lifting import lifted, on_chip
from trnlab.program.passes.draft import ENGINE, LEFT_OPEN, Draft
from trnlab.program.routine import Routine
from trnlab.program.text import operands_of

LENGTHS = (0, 1024, 2048, 4096, 8192)  # bytes of a row at most; 0: as long as it is
TENSORS = 4  # tensors that are tried by themselves, those with most loads first
_COPY = isa.REGISTRY["dma_copy"]
_QUEUE, _LINE = 2, 5  # columns of `Draft.rows`


class _Rows(NamedTuple):
    """What blocks share that can be in one transfer: rows of a tensor, and how they are loaded."""

    tensor: int
    first_row: int
    rows: int
    step: int  # bytes between rows
    width: int  # bytes of a block in HBM
    form: tuple[Any, ...]  # formats, first partition, attributes, engine


@dataclass
class _Blocks:
    """Loads of some rows: at which byte of the row, the instructions and their tiles."""

    at: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def chunks(self, width: int, longest: int) -> Iterator[list[int]]:
        """Runs of blocks side by side of at most `longest` bytes, that save a transfer."""
        run: list[int] = []
        for byte in sorted(self.at):
            full = longest and (len(run) + 1) * width > longest
            if run and (byte != run[-1] + width or full):
                yield run
                run = []
            run.append(byte)
        yield run


def changes(routine: Routine) -> list[KernelChange]:
    """Loads of whole rows of all tensors, and of each one, in rows of several lengths."""
    loads: dict[int, int] = defaultdict(int)
    for rows, blocks in _found(routine).items():
        loads[rows.tensor] += sum(len(each) for each in blocks.at.values())
    some = sorted(loads, key=lambda t: -loads[t])[:TENSORS]
    sets = [tuple(some), *((t,) for t in some)] if len(some) > 1 else [tuple(some)]
    return [_change(routine, chosen, longest) for chosen in sets if chosen for longest in LENGTHS]


def _change(routine: Routine, tensors: tuple[int, ...], longest: int) -> KernelChange:
    names = ", ".join(routine.buffers[t].name for t in tensors)
    size = f"rows of up to {longest} bytes" if longest else "whole rows"
    return KernelChange(
        f"load-rows:{names.replace(', ', '+')}" + (f":{longest}" if longest else ""),
        f"{size} of {names} are loaded in one transfer, once",
        "blocks that lie side by side are loaded one by one, or again",
        f"{DMA_GUIDE}:34-41 (4 KiB a partition and more; overhead of each transfer); {PERF_GUIDE}:75",
        f"load {names} in {size} before the loops that use it, and index the tile where blocks were loaded",
        make=partial(load_rows, tensors=tensors, longest=longest),
    )


def load_rows(routine: Routine, chip: Chip, *, tensors: tuple[int, ...], longest: int) -> Routine | None:
    """The routine with these loads joined; None where there are none, or no room."""
    found = {rows: blocks for rows, blocks in _found(routine).items() if rows.tensor in tensors}
    runs = [
        (rows, blocks, run)
        for rows, blocks in found.items()
        for run in blocks.chunks(rows.width, longest)
        if sum(len(blocks.at[byte]) for byte in run) > 1
    ]
    if not runs or routine.prints or routine.after:
        return None
    b = lifted(routine, chip)
    draft = Draft(b, on_chip(b))
    try:
        _apply(draft, routine, runs)
    except ConstraintError:
        return None
    return placed(draft)


def _found(routine: Routine) -> dict[_Rows, _Blocks]:
    """Loads of all of a tile that nobody else writes, from tensors that the kernel only reads."""
    copies = np.flatnonzero((routine.opcode == _COPY.opcode) & (np.diff(routine.first_operand) == 2)).tolist()
    if routine.prints or not copies:
        return {}
    written = _writes(routine)
    found: dict[_Rows, _Blocks] = defaultdict(_Blocks)
    for i in copies:
        (_, dst), (_, src) = operands_of(routine, i)
        tile, tensor = dst.buffer, src.buffer
        good = tensor.kind == "param" and not written[tensor.id] and tile.memory is Memory.SBUF
        if good and written[tile.id] == 1 and dst == whole(tile) and _is_run(src) and src.partition_step > 0:
            row, byte = divmod(src.offset, src.partition_step)
            width = src.free * src.dtype.itemsize
            form = (src.dtype, tile.dtype, tile.first_partition, *_issued(routine, i))
            if tile.nbytes == src.free * tile.dtype.itemsize and byte + width <= src.partition_step:
                key = _Rows(tensor.id, row, src.partitions, src.partition_step, width, form)
                found[key].at[byte].append((i, tile.id))
    return found


def _issued(routine: Routine, i: int) -> tuple[int, ...]:
    """How a transfer is issued."""
    columns = (routine.attr, routine.engine, routine.left_open)  # queues take turns
    return tuple(int(column[i]) if len(column) else 0 for column in columns)


def _writes(routine: Routine) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many operands write each buffer."""
    roles = {code: [spec.role == "dst" for spec in instr.operands] for code, instr in isa.BY_OPCODE.items()}
    of = np.repeat(routine.opcode, np.diff(routine.first_operand)).tolist()
    writing = [roles[code][role] for code, role in zip(of, routine.operands[:, 0].tolist())]
    counts: np.ndarray[Any, np.dtype[np.int64]] = np.bincount(
        routine.operands[writing, 1], minlength=len(routine.buffers)
    )
    return counts


def _is_run(ap: AP) -> bool:
    """Whether the elements of a row lie side by side, in order."""
    expected = 1
    for step, count in reversed(ap.dims):
        if count != 1 and step != expected:
            return False
        expected *= count
    return True


def _apply(draft: Draft, routine: Routine, runs: list[tuple[_Rows, _Blocks, list[int]]]) -> None:
    """Record the joined loads in the places of the first of each, and bind all readers to their tiles."""
    count, buffers = len(draft), len(draft.buffers)
    group, place = np.full(buffers, -1, np.int64), np.zeros(buffers, np.int64)
    leaders, sizes, firsts = [], [], []
    for number, (_, blocks, run) in enumerate(runs):
        loads = [(i, tile, n) for n, byte in enumerate(run) for i, tile in blocks.at[byte]]
        for i, tile, n in loads:
            group[tile], place[tile], draft.deleted[i] = number, n, True
        firsts.append(min(i for i, _, _ in loads))
        leaders.append(loads[0][1])
        sizes.append(len(run))
    draft.put_side_by_side(np.array(leaders), np.array(sizes), group, place)
    for number, (rows, _, run) in enumerate(runs):
        _record(draft, routine, rows, run, draft.buffers[buffers + number], firsts[number])
    draft.take_in()
    order = np.arange(count, dtype=np.int64)
    order[firsts] = count + np.arange(len(runs))
    for number, first in enumerate(firsts):
        draft.deleted[count + number] = False
        for column in (LEFT_OPEN, _LINE, _QUEUE):
            draft.rows[count + number, column] = draft.rows[first, column]
    draft.order = order


def _record(draft: Draft, routine: Routine, rows: _Rows, run: list[int], tile: Buffer, first: int) -> None:
    source = draft.buffers[rows.tensor]
    fmt = rows.form[0]
    columns = len(run) * rows.width // fmt.itemsize
    src = AP(source, fmt, 0, rows.rows, rows.step, rows.first_row * rows.step + run[0], ((1, columns),))
    dst = replace(whole(tile), dims=((1, columns),))
    attrs = dict(routine.attr_table[int(routine.attr[first])])
    draft.b.append(_COPY, Engine(int(draft.rows[first, ENGINE])), None, {**attrs, "dst": dst, "src": src})
