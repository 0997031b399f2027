# SPDX-License-Identifier: Apache-2.0
"""Values that no computed value goes into: rows of a table, random numbers."""

from __future__ import annotations

from trnlab.compiler.emission.emitter import Emitter
from trnlab.graph.ir import Op
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import int32, uint32
from trnlab.program import AP


def gather(e: Emitter, op: Op) -> None:
    """Rows of a table by index: one indirect DMA."""
    table, ids = op.operands
    index = e.loader.load_rows(ids, e.frame, int32)
    e.b.dma_copy(dst=e.dst(op.result), src=e.loader.table(table, e.frame), index=index, engine=Engine.GPSIMD, queue=2)


def random(e: Emitter, op: Op) -> None:
    """Uniform numbers in [0, 1): the top 24 of 32 random bits.

    An element's number is its place in the whole tensor, however the loop is cut into rows and columns.
    """
    bits = e.wide.take(e.frame.rows, e.frame.cols, uint32)
    _draw(e, op, bits, op.attrs["first"])
    e.b.tensor_scalar(dst=bits, data=bits, operand0=8, op0="right_shift")
    e.b.tensor_scalar(dst=e.dst(op.result), data=bits, operand0=2.0**-24, op0="multiply")
    e.give_later(e.wide, bits)


def random_words(e: Emitter, op: Op) -> None:
    """Random bits, numbered likewise."""
    _draw(e, op, e.dst(op.result), 0)


def _draw(e: Emitter, op: Op, dst: AP, first: int) -> None:
    frame, domain = e.frame, e.frame.domain
    start = first + domain.offset + frame.row * domain.cols + frame.col
    e.b.rng(dst=dst, key=e.loader.words(op.operands[0])[: frame.rows], first=start, step=domain.cols)
