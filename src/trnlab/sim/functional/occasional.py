# SPDX-License-Identifier: Apache-2.0
"""Instructions that few programs have: each is a loop of its own, compiled when one first comes.

The interpreter's function is the largest that is compiled on a machine that has nothing, and every program waits for
it. What these kernels need is in arrays that the interpreter has; only addresses pass, as between all loops.
"""

from __future__ import annotations

from trnlab.loops.kinds import i64
from trnlab.sim.functional.arguments import address, columns, numbers, operands, packed_operands, two_walks
from trnlab.sim.functional.copying import convert_view, copy_view, is_one_run, may_overlap
from trnlab.sim.functional.kernels import (
    AFFINE_SELECT,
    DROPOUT,
    DST,
    FLAG,
    GATHER,
    IOTA,
    MOVE_ROWS,
    OP0,
    TRANSPOSING_MATMUL,
    A,
    B,
    affine_select,
    dropout,
    iota,
    numbered_bits,
    row_index,
)
from trnlab.sim.functional.linking import exported, jit
from trnlab.sim.functional.matmul import transposing_matmul
from trnlab.sim.functional.native import copy_bytes
from trnlab.sim.functional.views import ADDR, CODE, ITEM, PITCH, F, P

# What an instruction ends with: DONE, an instruction for Python, or an error (with numbers in report[1:]).
DONE, TO_PYTHON, BAD_ROW = range(3)


@jit
def move(dst, src, walks, scratch, block, key):
    """Copy bits within one format, else convert."""
    if dst[CODE] == src[CODE]:
        copy_view(dst, src, walks)
    else:
        convert_view(dst, src, walks, scratch, block, key)


@jit
def gather(views, walks, scratch, block, key, report):
    """dst[p] = src[index[p]]; False when a row does not exist. The views are left as they were."""
    dst, src, index = views[DST], views[A], views[B]
    rows, table, start, target = dst[P], src[P], src[ADDR], dst[ADDR]
    done = 0
    dst[P] = src[P] = 1
    while done < rows:
        row = row_index(index, done)
        if not 0 <= row < table:
            report[1], report[2], report[3] = done, row, table
            break
        src[ADDR], dst[ADDR] = start + row * src[PITCH], target + done * dst[PITCH]
        move(dst, src, walks, scratch, block, key)
        done += 1
    dst[P], src[P], src[ADDR], dst[ADDR] = rows, table, start, target
    return done == rows


@jit
def move_rows(views, ints, walks, report):
    """dst[p] = src[index[p]], or dst[index[p]] = src[p], bit for bit; rows that do not exist may be left out.

    False, and nothing written, where they may not. The views are left as they were.
    """
    scatters = ints[OP0] != 0
    table, tile = views[DST if scatters else A], views[A if scatters else DST]
    index, rows, count = views[B], tile[P], table[P]
    for p in range(rows if ints[FLAG] == 0 else 0):
        row = row_index(index, p)
        if not 0 <= row < count:
            report[1], report[2], report[3] = p, row, count
            return False
    start, first = table[ADDR], tile[ADDR]
    table[P] = tile[P] = 1
    dense = is_one_run(table, walks[0]) and is_one_run(tile, walks[1])
    for p in range(rows):
        row = row_index(index, p)
        if not 0 <= row < count:
            continue
        if dense:
            place, own = start + row * table[PITCH], first + p * tile[PITCH]
            copy_bytes(place if scatters else own, own if scatters else place, tile[F] * tile[ITEM])
        else:
            table[ADDR], tile[ADDR] = start + row * table[PITCH], first + p * tile[PITCH]
            copy_view(views[DST], views[A], walks)
    table[P], tile[P], table[ADDR], tile[ADDR] = count, rows, start, first
    return True


@exported(i64(i64, i64, i64, i64, i64, i64))
def gather_loop(views, walks, scratch, block, key, report):
    """As `gather`."""
    return DONE if gather(operands(views), two_walks(walks), scratch, block, key, columns(report)) else BAD_ROW


@exported(i64(i64, i64, i64, i64))
def move_rows_loop(views, ints, walks, report):
    """As `move_rows`, unless the views overlap."""
    views = operands(views)
    if may_overlap(views[DST], views[A]):
        return TO_PYTHON
    return DONE if move_rows(views, columns(ints), two_walks(walks), columns(report)) else BAD_ROW


@exported(i64(i64, i64, i64, i64, i64, i64))
def transposing_matmul_loop(views, packed, panels, scratch, block, key):
    """As `transposing_matmul`."""
    views = operands(views)
    done = transposing_matmul(views[DST], views[A], views[B], packed_operands(packed), panels, scratch, block, key)
    return DONE if done else TO_PYTHON


@exported(i64(i64, i64, i64, i64, i64))
def iota_loop(views, ints, scratch, block, key):
    """As `iota`."""
    iota(operands(views), columns(ints), scratch, block, key)
    return DONE


@exported(i64(i64, i64, i64, i64, i64, i64))
def affine_select_loop(views, ints, floats, scratch, block, key):
    """As `affine_select`."""
    affine_select(operands(views), columns(ints), numbers(floats), scratch, block, key)
    return DONE


@exported(i64(i64, i64, i64, i64, i64, i64, i64))
def dropout_loop(views, present, ints, floats, scratch, block, key):
    """As `dropout`."""
    dropout(operands(views), columns(present), columns(ints), numbers(floats), scratch, block, key)
    return DONE


@exported(i64(i64, i64, i64))
def numbered_bits_loop(views, ints, scratch):
    """As `numbered_bits`."""
    numbered_bits(operands(views), columns(ints), scratch)
    return DONE


@jit
def occasional(kind, views, present, ints, floats, packed, walks, scratch, block, panels, key, report):
    """One instruction of such a kind; DONE, or why not."""
    tiles, form = address(views), address(ints)
    if kind == GATHER:
        return gather_loop(tiles, address(walks), scratch, 4 * block, key, address(report))
    if kind == MOVE_ROWS:
        return move_rows_loop(tiles, form, address(walks), address(report))
    if kind == TRANSPOSING_MATMUL:
        return transposing_matmul_loop(tiles, address(packed), panels, scratch, 4 * block, key)
    if kind == IOTA:
        return iota_loop(tiles, form, scratch, block, key)
    if kind == AFFINE_SELECT:
        return affine_select_loop(tiles, form, address(floats), scratch, block, key)
    if kind == DROPOUT:
        return dropout_loop(tiles, address(present), form, address(floats), scratch, block, key)
    return numbered_bits_loop(tiles, form, scratch)
