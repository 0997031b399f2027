# SPDX-License-Identifier: Apache-2.0
"""Single instructions and short chains of them."""

from __future__ import annotations

from trnlab.chips import Chip
from trnlab.isa.base import Engine
from trnlab.program import Builder, Routine


def load_exp_store(chip: Chip, *, partitions: int, columns: int, load: str, dge: str) -> Routine:
    """out = exp(x) of a bf16 tile: a load triggered by engine `load`, exp on ScalarE, a store by GpSimdE.

    dge: who makes the DMA descriptors, see `dma_copy`.
    """
    b = Builder("load_exp_store", chip)
    shape = (partitions, columns)
    source, target = b.param("x", shape, "bfloat16"), b.param("out", shape, "bfloat16")
    tile, result = b.tile(shape, "bfloat16"), b.tile(shape, "bfloat16")
    b.dma_copy(dst=tile, src=source, engine=Engine[load], queue=0, dge_mode=dge)
    b.activation(dst=result, data=tile, op="exp")
    b.dma_copy(dst=target, src=result, engine=Engine.GPSIMD, queue=0, dge_mode=dge)
    return b.build()


def activate_chain(chip: Chip, *, length: int) -> Routine:
    """ACTIVATEs of one element, each working on the result of the one before."""
    b = Builder("activate_chain", chip)
    x = b.tile((128, 1), "float32")
    for _ in range(length):
        b.activation(dst=x, data=x, op="copy")
    return b.build()


def tensor_tensor(chip: Chip, *, columns: int) -> Routine:
    """One addition of two fp32 tiles in SBUF."""
    b = Builder("tensor_tensor", chip)
    x, y = b.tile((128, columns), "float32"), b.tile((128, columns), "float32")
    b.tensor_tensor(dst=x, data1=x, data2=y, op="add")
    return b.build()


def matmuls(chip: Chip, *, columns: int, stationary: int, dtype: str, count: int = 1) -> Routine:
    """`count` matmuls of one accumulation group, `columns` moving past `stationary`."""
    b = Builder("matmuls", chip)
    weights, moving = b.tile((128, stationary), dtype), b.tile((128, columns), dtype)
    acc = b.psum((stationary, columns))
    for k in range(count):
        b.nc_matmul(dst=acc, stationary=weights, moving=moving, accumulate=k > 0, stop=k == count - 1)
    return b.build()
