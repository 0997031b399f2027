# SPDX-License-Identifier: Apache-2.0
"""Loads: a block of HBM that is loaded again is taken from the tile that holds it already.

A matmul that loads both operands in its inner loop loads each block of one as often as the other has columns of
blocks. The hardware's compiler keeps a tensor on chip where all blocks of it that are loaded repeatedly fit into SBUF
beside the other tiles: bf16 kernels of public repositories run at the speed of the PE array, which would wait for
that many loads. A block that is loaded again soon, as rows of an image under a window that moves, is found there, too
(`loads_window`). All other loads are made: the vendor's tutorial of a matmul shows the time of every one, of blocks
that come again after 160 KiB of others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from typing import NamedTuple

import numpy as np

from trnlab import isa
from trnlab.isa.base import Memory
from trnlab.isa.collectives.meeting import Meeting
from trnlab.program.passes.draft import (
    COVERS,
    OFFSET,
    OPCODE,
    OWNER,
    PATTERN,
    READS,
    START,
    WRITES,
    Draft,
)

Store = tuple[int, int | None]  # an instruction, and the tensor that it may change; None: any
_ALIGN = 64  # bytes; tiles start on multiples


class Load(NamedTuple):
    """Instruction `at` fills all of `tile` with a block of `tensor`; `block` is what decides what it then holds."""

    at: int
    tile: int
    tensor: int
    block: tuple[int, ...]


def keep_loaded(draft: Draft) -> None:
    """Bind readers of blocks that are loaded again to the tile that has them, and delete the load."""
    if draft.b.prints:
        return
    loads, stores = _loads(draft), _stores(draft)
    kept = _resident(draft, _repeated(draft, loads, stores, everywhere=True))
    names = np.arange(len(draft.buffers))
    for load, tile in _repeated(draft, loads, stores, kept):
        names[load.tile], draft.deleted[load.at] = tile, True
    reads = draft.access & READS != 0
    draft.references[reads, OWNER] = names[draft.owner[reads]]


def _loads(draft: Draft) -> list[Load]:
    """Loads of all of a tile that is written once, in order."""
    writes = np.bincount(draft.owner, draft.access & WRITES != 0, len(draft.buffers))
    copies = np.flatnonzero((draft.rows[:, OPCODE] == isa.REGISTRY["dma_copy"].opcode) & ~draft.deleted)
    found = []
    for i in copies.tolist():
        dst, end = draft.first_list[i], draft.first_list[i + 1]
        tile, tensor = (draft.buffers[int(draft.owner[k])] for k in (dst, dst + 1))
        whole = draft.access[dst] == WRITES | COVERS and tile.id in draft.movable and writes[tile.id] == 1
        if end - dst == 2 and whole and tile.memory is Memory.SBUF and tensor.memory is Memory.HBM:
            into, source = draft.references[dst], draft.references[dst + 1]
            place = (tile.dtype.code, tile.nbytes, tile.first_partition, tile.partitions, int(into[PATTERN]))
            block = (*place, *(int(source[column]) for column in (PATTERN, START, OFFSET)))
            found.append(Load(i, tile.id, tensor.id, block))
    return found


def _repeated(
    draft: Draft, loads: list[Load], stores: list[Store], kept: Container[int] = (), *, everywhere: bool = False
) -> list[tuple[Load, int]]:
    """Loads of what an earlier tile still holds, and which: nobody has written the tensor since, and it is one of
    those that are kept, or there were few loads in between. everywhere: all tensors are kept.
    """
    known: dict[int, dict[tuple[int, ...], tuple[int, int]]] = defaultdict(dict)  # by tensor: a tile, its last use
    again, waiting, loaded = [], 0, 0
    for load in loads:
        while waiting < len(stores) and stores[waiting][0] < load.at:
            tensor = stores[waiting][1]
            waiting += 1
            if tensor is None:
                known.clear()
            else:
                known.pop(tensor, None)
        tile, used = known[load.tensor].get(load.block, (load.tile, loaded))
        near = loaded - used <= draft.policy.loads_window
        if tile != load.tile and (everywhere or near or load.tensor in kept):
            again.append((load, tile))
        else:
            tile = load.tile
            loaded += draft.buffers[tile].nbytes
        known[load.tensor][load.block] = tile, loaded
    return again


def _stores(draft: Draft) -> list[Store]:
    """Instructions that may change HBM, in order, and which tensor; None for all, where cores or ranks meet."""
    in_hbm = np.array([b.memory is Memory.HBM for b in draft.buffers], np.bool_)
    written = np.flatnonzero(in_hbm[draft.owner] & (draft.access & WRITES != 0))
    stores: list[Store] = [(draft.of_list[k], int(draft.owner[k])) for k in written.tolist()]
    meetings = [code for code, instr in isa.BY_OPCODE.items() if isinstance(instr, Meeting)]
    stores += [(i, None) for i in np.flatnonzero(np.isin(draft.rows[:, OPCODE], meetings)).tolist()]
    return sorted(stores, key=lambda store: store[0])


def _resident(draft: Draft, again: list[tuple[Load, int]]) -> set[int]:
    """The tensors whose repeated blocks all fit into SBUF, in the order in which they are first loaded again."""
    blocks: dict[int, set[int]] = defaultdict(set)
    for load, tile in again:
        blocks[load.tensor].add(tile)
    if not blocks:
        return set()
    loaded = {load.tile for load, _ in again}.union(*blocks.values())
    room = draft.b.sbuf_limit * draft.policy.loads_share // 100 - _peak(draft, loaded)
    kept = set()
    for tensor, tiles in blocks.items():
        need = sum(-(-draft.buffers[tile].nbytes // _ALIGN) * _ALIGN for tile in tiles)
        if need <= room:
            kept.add(tensor)
            room -= need
    return kept


def _peak(draft: Draft, left_out: set[int]) -> int:
    """Bytes per partition that the other tiles in SBUF need at once, as the kernel orders its instructions."""
    alive = ~draft.deleted[draft.of]
    owner, of = draft.owner[alive], draft.of[alive]
    size = np.array(
        [
            0 if b.id in left_out or b.memory is not Memory.SBUF else -(-b.nbytes // _ALIGN) * _ALIGN
            for b in draft.buffers
        ],
        np.int64,
    )
    change = np.zeros(len(draft) + 1, np.int64)
    first = np.full(len(draft.buffers), len(draft), np.int64)
    last = np.full(len(draft.buffers), -1, np.int64)
    np.minimum.at(first, owner, of)
    np.maximum.at(last, owner, of)
    used = last >= 0
    np.add.at(change, first[used], size[used])
    np.add.at(change, last[used] + 1, -size[used])
    return int(np.cumsum(change).max(initial=0))
