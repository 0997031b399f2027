# SPDX-License-Identifier: Apache-2.0
"""Tiles of kernels are cut where their accesses begin and end, so that only what shares bytes waits."""

from __future__ import annotations

import numpy as np

from trnlab import chips
from trnlab.isa.base import Engine, Memory
from trnlab.program import Builder
from trnlab.program.access import operand_records
from trnlab.program.parse import parse_routine
from trnlab.program.routine import COL
from trnlab.program.slots import put_in_slots, slots_with
from trnlab.program.text import routine_text
from trnlab.sim.timing import time_routine

TRN2 = chips.get("trn2")


def blocks(count, width, *, whole_reads=0):
    """VectorE fills a tile block by block, ScalarE reads each block, then VectorE reads the whole tile."""
    b = Builder("blocks", TRN2)
    tile = b.unplaced((128, count * width), "float32", Memory.SBUF)
    other = b.unplaced((128, count * width), "float32", Memory.SBUF)
    b.settle({tile.buffer.id: 0, other.buffer.id: tile.buffer.nbytes})
    for i in range(count):
        part = slice(i * width, (i + 1) * width)
        b.memset(dst=tile[:, part], value=1.0, engine=Engine.VECTOR)
        b.activation(dst=other[:, part], data=tile[:, part], op="exp")
    for _ in range(whole_reads):
        b.tensor_scalar(dst=other, data=tile, op0="multiply", operand0=2.0, engine=Engine.VECTOR)
    return b.build()


def slots_of(routine):
    return {tuple(row) for row in routine.operands[:, [COL["first"], COL["last"]]].tolist()}


def test_a_block_is_written_while_the_one_before_is_read():
    """VectorE never waits for ScalarE: the writes follow each other without a gap."""
    timeline = time_routine(blocks(8, 512), TRN2)
    writes = np.flatnonzero(timeline.engine == Engine.VECTOR)
    assert (timeline.start[writes][1:] == timeline.end[writes][:-1]).all()


def test_what_reads_all_of_a_tile_waits_for_every_block():
    timeline = time_routine(blocks(8, 512, whole_reads=1), TRN2)
    assert timeline.start[-1] > timeline.done[:-1].max()


def test_accesses_that_share_bytes_share_a_slot():
    """Blocks that overlap by half: neighbours have a slot in common, others have none."""
    b = Builder("overlap", TRN2)
    tile = b.unplaced((128, 100), "float32", Memory.SBUF)
    b.settle({tile.buffer.id: 0})
    for i in range(4):
        b.memset(dst=tile[:, 20 * i : 20 * i + 40], value=0.0, engine=Engine.VECTOR)
    ranges = [set(range(first, last + 1)) for first, last in b.build().operands[:, [COL["first"], COL["last"]]]]
    for i, one in enumerate(ranges):
        for j, other in enumerate(ranges):
            assert bool(one & other) == (abs(i - j) < 2)


def test_the_slots_of_an_operand_stay_few():
    """A thousand columns written one by one and read a thousand times as a whole: no million of slots to look at."""
    routine = blocks(1000, 1, whole_reads=1000)
    touched = routine.operands[:, COL["last"]] - routine.operands[:, COL["first"]] + 1
    assert touched.mean() < 32
    assert len(slots_of(blocks(1000, 1))) == 2000  # without the readers, each column has its own


def test_text_keeps_the_cuts():
    routine = blocks(4, 16, whole_reads=1)
    again = parse_routine(routine_text(routine))
    assert (again.operands == routine.operands).all()
    assert again.sbuf_cuts.tolist() == routine.sbuf_cuts.tolist()


def test_operands_have_the_slots_of_their_bytes():
    """Against NumPy, by the words of `Routine`: banks of PSUM, intervals of SBUF, pieces of tensors in HBM."""
    rng, b = np.random.default_rng(0), Builder("k", TRN2)
    b.param("x", (4096, 96), "float32")
    for width in (300, 17, 4000):
        b.tile((128, width), "float32")
    b.param("y", (7,), "float32")
    b.psum((128, 700))
    b.psum((128, 9))
    buffers = b.build().buffers
    operands = np.zeros((500, len(COL)), np.int64)
    owner = operands[:, COL["buffer"]] = rng.integers(0, len(buffers), 500)
    sizes = np.array([buffer.nbytes for buffer in buffers])[owner]
    operands[:, COL["first"]], operands[:, COL["last"]] = np.sort(rng.integers(0, sizes, (2, 500)), axis=0)
    cuts = np.unique([0, *(byte for t in buffers[1:4] for byte in (t.address, t.address + t.nbytes))])
    slots = slots_with(buffers, cuts, TRN2.psum)
    found = operands.copy()
    put_in_slots(buffers, found, TRN2.psum, slots)
    for column in (COL["first"], COL["last"]):
        for row, byte in enumerate(operands[:, column].tolist()):
            buffer = buffers[owner[row]]
            wanted = {
                Memory.HBM: slots.hbm[buffer.id] + byte // max(buffer.slot_bytes, 1),
                Memory.PSUM: (buffer.address + byte) // TRN2.psum.bank_bytes_per_partition,
                Memory.SBUF: TRN2.psum.num_banks - 1 + int((cuts <= buffer.address + byte).sum()),
            }[buffer.memory]
            assert found[row, column] == wanted
    found[:, [COL["first"], COL["last"]]] = operands[:, [COL["first"], COL["last"]]]
    assert (found == operands).all()


def test_records_of_operands_say_what_their_access_patterns_do():
    b = Builder("k", TRN2)
    x, tile = b.param("x", (300, 96), "float32"), b.tile((128, 64), "bfloat16")
    patterns = [
        x,
        x[5:69, 3:40],
        tile,
        tile[32:64, 7:9],
        tile.split(0, 4, 16).permute(1, 0),
        tile[:, 5].cast("uint16"),
    ]
    references = np.array([[role, *ap.recorded()[0]] for role, ap in enumerate(patterns)], np.int64)
    for role, (ap, record) in enumerate(zip(patterns, operand_records(references).tolist())):
        padded = [(0, 1)] * (4 - len(ap.dims)) + list(ap.dims)
        place = [role, ap.buffer.id, ap.dtype.code, ap.start_partition, ap.partitions, ap.partition_step, ap.offset]
        steps = [n for dim in padded for n in dim]
        assert record == [*place, *steps, *ap.extent(), int(ap.memory is Memory.HBM)]
