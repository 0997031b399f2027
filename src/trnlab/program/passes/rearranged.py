# SPDX-License-Identifier: Apache-2.0
"""Rearranged tiles: what was only loaded, transposed and copied is not rearranged a second time.

A kernel whose products need one operand transposed often transposes it again in every iteration of an outer loop. The
hardware's compiler keeps the first: profiles of two public kernels count the transposes of one iteration, though that
fills SBUF, from where tiles are then spilled (ADR 125). Only tiles of arrays that the kernel declares outside of its
loops are kept so: where the tile is one of an iteration, a public attention transposes it in every one. Unlike
`reuse`, this looks at tiles that several instructions put together, at what was computed in any loop, and through
loads that are made again.

A tile counts where all that fills it moves elements, and fills it before anybody reads it. Its value is what fills
it: operation, place, and the values of the sources. Tensors in HBM have one while nobody in the kernel writes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab import isa
from trnlab.isa.base import Memory
from trnlab.program.passes.draft import (
    ATTR,
    OFFSET,
    OPCODE,
    OWNER,
    PATTERN,
    READS,
    ROLE,
    START,
    WRITES,
    Draft,
)

_MOVES = ("dma_copy", "nc_transpose", "tensor_copy")
_PRODUCT, _LOAD = (isa.REGISTRY[name].opcode for name in ("nc_matmul", "dma_copy"))


def keep_rearranged(draft: Draft) -> None:
    """Bind readers of a tile to an earlier one that was filled alike, and delete what nobody reads any more."""
    if draft.b.prints:
        return
    settled = _settled(draft)
    same = _filled_alike(draft, settled)
    if not same:
        return
    names = np.arange(len(draft.buffers))
    names[list(same)] = list(same.values())
    reads = draft.access & READS != 0
    draft.references[reads, OWNER] = names[draft.owner[reads]]
    _delete_unread(draft, list(same), settled)


def _settled(draft: Draft) -> list[int]:
    """By buffer: the last instruction that fills it, where all do so before it is read; else -1. Such a tile never
    changes for those who read it. A tensor that is not written has been filled before the first.
    """
    count, of = len(draft.buffers), draft.of
    alive = ~draft.deleted[of]
    reads, writes = alive & (draft.access & READS != 0), alive & (draft.access & WRITES != 0)
    first_read = np.full(count, len(draft), np.int64)
    np.minimum.at(first_read, draft.owner[reads], of[reads])
    last_write = np.full(count, -1, np.int64)
    np.maximum.at(last_write, draft.owner[writes], of[writes])
    columns = draft.columns()
    filled = (columns.movable != 0) & (columns.memory != Memory.HBM) & (last_write < first_read)
    found: list[int] = np.where(filled, last_write, -1).tolist()
    return found


def _filled_alike(draft: Draft, settled: list[int]) -> dict[int, int]:
    """Tiles in SBUF that transposes or copies filled as they did an earlier one."""
    moves, constant = _moves(draft), _constant(draft)
    value: dict[int, int] = {}  # of a tile that is complete: the first one like it
    parts: dict[int, list[Any] | None] = {}  # what fills a tile; None for what is computed
    known: dict[Any, int] = {}
    same: dict[int, int] = {}
    references, access, begins = draft.references.tolist(), draft.access.tolist(), draft.first_list
    for i, (row, deleted) in enumerate(zip(draft.rows.tolist(), draft.deleted.tolist())):
        if deleted:
            continue
        operands = range(begins[i], begins[i + 1])
        for k in [k for k in operands if access[k] & WRITES]:
            tile = references[k][OWNER]
            if settled[tile] < 0:
                continue
            sources = [_source(references[s], value, constant) for s in operands if s != k]
            plain = moves[i] and access[k] & READS == 0 and None not in sources
            if plain and parts.setdefault(tile, []) is not None:
                place = (row[OPCODE], row[ATTR], *_place(references[k]))
                parts[tile].append((place, tuple(sources)))  # type: ignore[union-attr]
            else:
                parts[tile] = None
            if settled[tile] == i:
                buffer, filled = draft.buffers[tile], parts.pop(tile)
                form = (buffer.memory, buffer.dtype, buffer.nbytes, buffer.partitions, buffer.first_partition)
                value[tile] = tile if filled is None else known.setdefault((form, *filled), tile)
                on_chip = row[OPCODE] != _LOAD and buffer.memory is Memory.SBUF
                if value[tile] != tile and on_chip and tile in draft.b.arrays:
                    same[tile] = value[tile]
    return same


def _moves(draft: Draft) -> list[bool]:
    """By instruction: whether it only moves elements, as a product with the identity that is said to be one does."""
    turns = [bool(dict(attrs).get("is_transpose")) for attrs in draft.b.attributes]
    opcode = draft.rows[:, OPCODE]
    found = np.isin(opcode, [isa.REGISTRY[name].opcode for name in _MOVES])
    found |= (opcode == _PRODUCT) & np.array(turns, np.bool_)[draft.rows[:, ATTR]]
    moves: list[bool] = found.tolist()
    return moves


def _constant(draft: Draft) -> set[int]:
    """Tensors in HBM that the kernel never writes."""
    written = set(draft.owner[draft.access & WRITES != 0].tolist())
    return {b.id for b in draft.buffers if b.memory is Memory.HBM and b.id not in written}


def _source(reference: list[int], value: dict[int, int], constant: set[int]) -> Any:
    """What is read where: None where that may change."""
    owner = reference[OWNER]
    if owner in constant:
        return reference[ROLE], owner, *_place(reference)
    return (reference[ROLE], value[owner], *_place(reference)) if owner in value else None


def _place(reference: list[int]) -> tuple[int, ...]:
    """Where in its buffer an operand lies."""
    return reference[PATTERN], reference[START], reference[OFFSET]


def _delete_unread(draft: Draft, unread: list[int], settled: list[int]) -> None:
    """Delete the moves that filled these tiles, and those whose results only they read."""
    of, owner, access = draft.of_list, draft.owner.tolist(), draft.access.tolist()
    moves = _moves(draft)
    readers: dict[int, int] = {}
    makers: dict[int, list[int]] = {}
    for k, tile in enumerate(owner):
        if draft.deleted[of[k]]:
            continue
        if access[k] & READS:
            readers[tile] = readers.get(tile, 0) + 1
        if access[k] & WRITES:
            makers.setdefault(tile, []).append(of[k])
    waiting = unread
    while waiting:
        tile = waiting.pop()
        made = makers.get(tile, [])
        if settled[tile] < 0 or readers.get(tile, 0) or not all(moves[i] for i in made):
            continue
        for i in made:
            draft.deleted[i] = True
            for k in range(draft.first_list[i], draft.first_list[i + 1]):
                if access[k] & READS:
                    readers[owner[k]] -= 1
                    if readers[owner[k]] == 0:
                        waiting.append(owner[k])
        makers.pop(tile, None)
