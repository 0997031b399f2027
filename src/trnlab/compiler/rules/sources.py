# SPDX-License-Identifier: Apache-2.0
"""Values that no computed value goes into: rows of a table, random numbers."""

from __future__ import annotations

from trnlab.compiler.emitter import Emitter
from trnlab.graph.ir import Op
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import int32, uint32


def gather(e: Emitter, op: Op) -> None:
    """Rows of a table by index: one indirect DMA."""
    table, ids = op.operands
    index = e.loader.load_rows(ids, e.frame, int32)
    e.b.dma_copy(dst=e.dst(op.result), src=e.loader.table(table, e.frame), index=index, engine=Engine.GPSIMD, queue=2)


def random(e: Emitter, op: Op) -> None:
    """Uniform numbers in [0, 1) from the hardware's generator: the top 24 of 32 random bits.

    Every row of every sweep has a seed of its own, seed + its number among all rows and streams of the graph, so
    the numbers do not depend on how the loop is cut.
    """
    frame, stream = e.frame, op.attrs["stream"]
    chunks = -(-frame.domain.cols // frame.cols)
    first = (stream * frame.domain.rows + frame.row) * chunks + frame.col // frame.cols + frame.domain.offset
    seed, number = (e.narrow.take(frame.rows, 1, int32) for _ in range(2))
    bits = e.wide.take(frame.rows, frame.cols, uint32)
    e.b.iota(dst=number, pattern=((0, 1),), offset=first % 2**30, channel_multiplier=chunks)
    e.b.tensor_tensor(
        dst=seed, data1=e.ap(op.operands[0]), data2=number, op="add", engine=Engine.GPSIMD,
    )  # fmt: skip
    e.b.rng(dst=bits, seed=seed)
    e.b.tensor_scalar(dst=bits, data=bits, operand0=8, op0="right_shift")
    e.b.tensor_scalar(dst=e.dst(op.result), data=bits, operand0=2.0**-24, op0="multiply")
    for space, tile in ((e.narrow, seed), (e.narrow, number), (e.wide, bits)):
        e.give_later(space, tile)
