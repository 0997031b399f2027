# SPDX-License-Identifier: Apache-2.0
"""Renaming: a tile that an instruction overwrites as a whole holds a new value, and needs not lie where the old one did.

A kernel that declares its tiles before a loop and fills them again in every iteration has one place for each. The
hardware's compiler gives every value a place of its own, so that the next load does not wait for the last reader.
Here, too, a write that covers all of a tile, by an instruction that does not read it, starts a new version: another
buffer, placed by itself.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit

from trnlab import isa
from trnlab.program.access import REFERENCE, Buffer, operand_records
from trnlab.program.builder import COLUMNS, END, Builder
from trnlab.program.routine import COL

Ints = np.ndarray[Any, np.dtype[np.int64]]
READS, WRITES, COVERS = 1, 2, 4  # bits of what an instruction does to an operand


def rename_overwritten(b: Builder, movable: frozenset[int]) -> None:
    """Give each version of the tiles `movable` a buffer of its own; the first keeps the tile's."""
    rows, references = b.recorded()
    if not len(references):
        return
    candidate = np.zeros(len(b.buffers), np.bool_)
    candidate[list(movable - {p.operand[COL["buffer"]] for p in b.prints})] = True
    owner, origins = references[:, 2].copy(), np.empty(len(references), np.int64)
    count = _split(rows[:, END], owner, access_of(rows, references, b), candidate, len(b.buffers), origins)
    for version, origin in enumerate(origins[:count].tolist()):
        old = b.buffers[origin]
        b.buffers.append(replace(old, id=len(b.buffers), name=f"{old.name}'{version}"))
    b.rebind(owner)


def access_of(rows: Ints, references: Ints, b: Builder) -> Ints:
    """What is done to each operand: READS, WRITES, and COVERS where all of its buffer is written."""
    opcode = np.repeat(rows[:, 0], np.diff(rows[:, END], prepend=0))
    attrs = np.repeat(rows[:, 4], np.diff(rows[:, END], prepend=0))
    role = references[:, 0]
    access = _roles()[opcode, role].astype(np.int64)
    for code, attr in {(int(c), int(a)) for c, a in zip(opcode[access == READS | WRITES], attrs[access == READS | WRITES])}:
        if not isa.BY_OPCODE[code].reads_destination(dict(b.attributes[attr])):
            access[(opcode == code) & (attrs == attr) & (access == READS | WRITES)] = WRITES
    return access | np.where((access & WRITES != 0) & covers(references, b.buffers), COVERS, 0)


def covers(references: Ints, buffers: list[Buffer]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which operands are all of their buffer: every partition, and every byte of each exactly once."""
    records = operand_records(references)
    owner = records[:, COL["buffer"]]
    nbytes = np.array([x.nbytes for x in buffers], np.int64)[owner]
    partitions = np.array([x.partitions for x in buffers], np.int64)[owner]
    packed = np.array([_is_packed(tuple(r)) for r in records[:, COL["step0"] : COL["count3"] + 1].tolist()])
    elements = records[:, [COL[f"count{d}"] for d in range(4)]].prod(axis=1)
    whole = (records[:, COL["first"]] == 0) & (records[:, COL["last"]] == nbytes - 1)
    rows = (records[:, COL["start_partition"]] == 0) & (records[:, COL["partitions"]] == partitions)
    size = (nbytes // np.maximum(elements, 1)) * elements == nbytes
    return np.asarray(whole & rows & size & packed & (records[:, COL["is_hbm"]] == 0))


@lru_cache(maxsize=4096)
def _is_packed(dims: tuple[int, ...]) -> bool:
    """Whether the pattern (step and count of each dimension) touches adjacent elements, each once."""
    expected = 1
    for step, count in sorted(pair for pair in zip(dims[::2], dims[1::2]) if pair[1] != 1):
        if step != expected:
            return False
        expected *= count
    return True


@lru_cache(maxsize=1)
def _roles() -> np.ndarray[Any, np.dtype[np.int8]]:
    """READS and WRITES of each operand role, by opcode; destinations that may be read count as both."""
    widest = max(len(instr.operands) for instr in isa.BY_OPCODE.values())
    roles = np.zeros((max(isa.BY_OPCODE) + 1, widest), np.int8)
    for code, instr in isa.BY_OPCODE.items():
        for i, spec in enumerate(instr.operands):
            roles[code, i] = READS if spec.role != "dst" else READS | WRITES if spec.rw else WRITES
    return roles


@njit(cache=True)
def _split(ends: Ints, owner: Ints, access: Ints, candidate: Any, buffers: int, origins: Ints) -> int:
    """Replace each buffer of `owner` by its version; the versions are numbered from `buffers` on.

    Returns how many were made, and in `origins` of what.
    """
    version = np.arange(buffers)
    used = np.zeros(buffers, np.bool_)
    count, first = 0, 0
    for i in range(ends.shape[0]):
        for k in range(first, ends[i]):
            tile = owner[k]
            if access[k] & 4 and candidate[tile] and used[tile]:
                unread = True
                for other in range(first, ends[i]):
                    if owner[other] == tile and access[other] & 1:
                        unread = False
                if unread:
                    version[tile], origins[count] = buffers + count, tile
                    count += 1
        for k in range(first, ends[i]):
            used[owner[k]] = True
        for k in range(first, ends[i]):
            owner[k] = version[owner[k]]
        first = ends[i]
    return count


assert REFERENCE == 5
assert COLUMNS > END
