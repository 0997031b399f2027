# SPDX-License-Identifier: Apache-2.0
"""Routines and programs for the tests of the program layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab import chips
from trnlab.errors import Location
from trnlab.isa.base import Engine
from trnlab.numerics import dtypes
from trnlab.program import Builder, Call, Program, ProgramTensor, Routine, hbm_view

CHIP = chips.get("trn2")


def scale() -> Routine:
    """Two tiles in turn, one line of source."""
    b = Builder("scale", CHIP)
    x, y = b.param("x", (256, 64), "float32"), b.param("y", (256, 64), "float32")
    tiles = b.pool((128, 64), "float32", bufs=2, name="t")
    b.location = Location("train.py", 12, "step", "x = 2 * 'x'")
    for r in range(0, 256, 128):
        t = tiles.next()
        b.dma_copy(dst=t, src=x[r : r + 128])
        b.tensor_scalar(dst=t, data=t, operand0=2.0, op0="multiply")
        b.location = None
        b.dma_copy(dst=y[r : r + 128], src=t, queue=2)
    return b.build()


def everything() -> Routine:
    """All memories, formats read as others, strides both ways, all kinds of attribute values, tiles of one name."""
    b = Builder('rows: it\'s "everything" (x2)', CHIP)
    x, w = b.param("x", (4, 32, 64), "bfloat16"), b.param("w", (1000,), "int32")
    spill = b.scratch("spill", (3, 5), "float16")
    first = b.tile((128, 64), "bfloat16", name="tile")
    with b.scope():
        index = b.tile((7, 1), "int32", name="tile")
        rows = b.tile((7, 32, 64), "bfloat16", name="tile")
        b.memset(dst=index, value=3)
        b.dma_copy(dst=rows, src=x, index=index, engine=Engine.GPSIMD)
    half = b.tile((128, 4, 16), "float16", name="strange name")
    acc = b.psum((64, 128), name="acc")
    b.dma_copy(dst=first, src=hbm_view(x.buffer, 0, ((64, 128), (1, 64))))
    b.nc_matmul(dst=acc[:, 0:64], stationary=first, moving=first[:, ::1], stop=False)
    b.nc_matmul(dst=acc[:, 0:64], stationary=first, moving=first, accumulate=True)
    b.iota(dst=half[0:64].permute(1, 0), pattern=((-3, 16), (1, 4)), offset=-5, channel_multiplier=2)
    b.affine_select(dst=half[0:64], on_true=half[0:64], pattern=((1, 64),), cmp_op="is_gt", on_false=float("-inf"))
    b.memset(dst=half[64:128].cast("bfloat16"), value=float("nan"))
    b.dma_copy(dst=spill, src=half[0:3, 0, 0:5])
    b.tensor_tensor(dst=half[:, 0], data1=half[:, 1].with_dims((-1, 16), skip=15), data2=half[:, 3], op="max")
    b.dma_copy(dst=hbm_view(w.buffer, 10, ((0, 2), (3, 3))), src=hbm_view(w.buffer, 0, ((100, 2), (1, 3))))
    return b.build()


def chain(**changes: Any) -> Program:
    """x -> t -> y through one routine, with a constant that nobody reads."""
    routine, size = scale(), 256 * 64 * 4
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensors = (
        ProgramTensor(0, "x", (256, 64), dtypes.float32, size, "input"),
        ProgramTensor(1, "t", (256, 64), dtypes.float32, size, "temp", 0),
        ProgramTensor(2, "y's", (256, 64), dtypes.float32, size, "output"),
        ProgramTensor(3, "table", (2, 3), dtypes.float32, 24, "constant"),
    )
    parts: dict[str, Any] = {
        "name": "chain",
        "target": "trn2",
        "routines": (routine,),
        "tensors": tensors,
        "calls": (Call(0, (0, 1)), Call(0, (1, 2), sbuf_base=4096, label="second", loc=Location("a.py", 3))),
        "inputs": (0,),
        "outputs": (2,),
        "constants": {3: table},
        "hbm_bytes": size,
    }
    return Program(**{**parts, **changes})
