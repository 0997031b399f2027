# SPDX-License-Identifier: Apache-2.0
"""Small programs and graphs for the tests of the runtime."""

from __future__ import annotations

import numpy as np

from trnlab import chips
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph
from trnlab.numerics.dtypes import bfloat16, dtype, float32
from trnlab.program.builder import Builder
from trnlab.program.routine import Call, Program, ProgramTensor, Routine

TARGET = "trn1.2xlarge"


def routine(name: str = "scale", rows: int = 256) -> Routine:
    """y = 2 x, by tiles of 128 rows, with a matmul and a masked write for variety of operands and attributes."""
    b = Builder(name, chips.get("trn1"))
    x, y = b.param("x", (rows, 64), float32), b.param("y", (rows, 64), float32)
    weights = b.tile((128, 64), bfloat16, name="w")
    b.memset(dst=weights, value=0.5)
    tiles = b.pool((128, 64), float32, bufs=2, name="t")
    for r in range(0, rows, 128):
        t = tiles.next()
        b.dma_copy(dst=t, src=x[r : r + 128])
        b.tensor_scalar(dst=t, data=t, operand0=2.0, op0="multiply")
        b.affine_select(dst=t, on_true=t, pattern=((1, 64),), channel_multiplier=1, on_false=-float("inf"))
        b.dma_copy(dst=y[r : r + 128], src=t)
    moving = b.tile((128, 64), bfloat16, name="m")
    b.tensor_copy(dst=moving, src=weights)
    b.nc_matmul(dst=b.psum((64, 64)), stationary=weights, moving=moving)
    return b.build()


def program(name: str = "step") -> Program:
    """Two calls of one routine, with a constant in each of two formats."""
    tensors = tuple(
        ProgramTensor(i, label, (256, 64), dtype(kind), 256 * 64 * dtype(kind).itemsize, role)
        for i, (label, kind, role) in enumerate(
            [
                ("x", "float32", "input"),
                ("y", "float32", "output"),
                ("c", "float32", "constant"),
                ("h", "bfloat16", "constant"),
            ]
        )
    )
    rng = np.random.default_rng(0)
    constants = {i: rng.standard_normal((256, 64)).astype(tensors[i].dtype.numpy) for i in (2, 3)}
    calls = (Call(0, (0, 1), label="first"), Call(0, (2, 1), sbuf_base=64, label="second"))
    return Program(name, "trn1", (routine(),), tensors, calls, (0,), (1,), constants, 4096)


def graph(name: str = "step", rows: int = 8, factor: float = 2.0, donate: bool = False) -> Graph:
    """y = factor * x + b; with `donate` it overwrites x."""
    b = GraphBuilder(name)
    x, bias = b.input("x", (rows, 4), float32), b.input("b", (4,), float32)
    b.output(b.add(b.multiply(x, factor), bias), "y")
    built = b.build()
    if donate:
        built.aliases[0] = 0
    return built
