# SPDX-License-Identifier: Apache-2.0
"""The registers of the sequencers: 32-bit numbers for addresses, loop bounds and conditions.

A virtual register is a tile [1, 1] of its own, which whoever records the program keeps; the vendor's compiler places
it in one of the 64 registers of a sequencer, or in several. What is not initialised holds all bits set.

Source: nki.isa.register_alloc, register_move, register_load, register_store; nki-language-guide.rst:526 (formats).
"""

from __future__ import annotations

from trnlab.isa.base import DMA_MEMORIES, SBUF_ONLY, Engine, OperandSpec, Work

SEQUENCERS = (Engine.SYNC, Engine.TENSOR, Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
HELD = frozenset({"int32", "uint32", "float32"})
LOADED = HELD | {"int16", "uint16", "int8", "uint8"}
COST, LOAD, STORE = ("sequencer.register",), ("sequencer.load",), ("sequencer.store",)

REGISTER = OperandSpec("dst", "dst", SBUF_ONLY, shape=("1", "1"), dtypes=HELD)
SOURCE = OperandSpec("src", "src", SBUF_ONLY, shape=("1", "1"), dtypes=HELD)
MEMORY = DMA_MEMORIES
ANYWHERE = tuple(range(32))  # a sequencer reaches memory by address, without the engines' rule of first partitions


def one_register(kind: tuple[str] = COST) -> Work:
    """The work of any instruction on registers."""
    return Work(kind[0], 1, 0, 1)
