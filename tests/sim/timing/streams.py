# SPDX-License-Identifier: Apache-2.0
"""Small programs to time, and random ones."""

from __future__ import annotations

import random

from trnlab.chips import Chip
from trnlab.isa.base import Engine
from trnlab.program import Builder, Call, Program, ProgramTensor, Routine


def program_of(routine: Routine, calls: int, *, distinct: bool = False, sbuf_base: tuple[int, ...] = (0,)) -> Program:
    """`calls` calls of a routine, on the same HBM tensors or each on its own."""
    tensors, all_calls = [], []
    for n in range(calls):
        if n == 0 or distinct:
            args = []
            for index in routine.params:
                b = routine.buffers[index]
                args.append(len(tensors))
                tensors.append(ProgramTensor(len(tensors), f"{b.name}{n}", b.shape, b.dtype, b.nbytes, "temp"))
        all_calls.append(Call(0, tuple(args), sbuf_base[n % len(sbuf_base)], label=f"call {n % 2}"))
    return Program("test", routine.target, (routine,), tuple(tensors), tuple(all_calls), (), ())


def layer(chip: Chip, *, rows: int = 4, bufs: int = 2, columns: int = 1024, dtype: str = "bfloat16") -> Routine:
    """Load, multiply by fixed weights, evict on two engines, add, store: every engine and both queues."""
    b = Builder("layer", chip)
    x, y = b.param("x", (128 * rows, columns), dtype), b.param("y", (128 * rows, columns), dtype)
    loads, results = b.pool((128, columns), dtype, bufs=bufs), b.pool((128, columns), dtype, bufs=bufs)
    weights = b.tile((128, 128), dtype)
    b.memset(dst=weights, value=1.0, engine=Engine.GPSIMD)
    for r in range(rows):
        moving, result = loads.next(), results.next()
        b.dma_copy(dst=moving, src=x[128 * r : 128 * (r + 1)])
        for n, first in enumerate(range(0, columns, 512)):
            acc = b.psum((128, 512))
            for k in range(4):
                piece = moving[:, first : first + 512]
                b.nc_matmul(dst=acc, stationary=weights, moving=piece, accumulate=k > 0, stop=k == 3)
            half = result[:, first : first + 512]
            if n % 2:
                b.activation(dst=half, data=acc, op="gelu")
            else:
                b.tensor_copy(dst=half, src=acc)
        b.tensor_tensor(dst=result, data1=result, data2=moving, op="add")
        b.dma_copy(dst=y[128 * r : 128 * (r + 1)], src=result, engine=Engine.SCALAR)
    return b.build()


def random_routine(chip: Chip, seed: int, count: int = 60) -> Routine:
    """A random stream over a few tiles, banks and HBM tensors, on all engines."""
    rng = random.Random(seed)
    b = Builder(f"random{seed}", chip)
    hbm = [b.param(f"h{i}", (256, 256), "float32") for i in range(2)]
    tiles = [b.tile((128, 256), "float32") for _ in range(4)]
    banks = [b.psum((128, 256)) for _ in range(2)]
    weights = b.tile((128, 128), "float32")
    b.memset(dst=weights, value=0.5)
    for tile in tiles:
        b.memset(dst=tile, value=1.0)
    for bank in banks:
        b.nc_matmul(dst=bank, stationary=weights, moving=tiles[0])
    for _ in range(count):
        pick, other, bank = rng.choice(tiles), rng.choice(tiles), rng.choice(banks)
        columns = slice(*rng.choice(((0, 128), (128, 256), (0, 256))))
        row = 128 * rng.randrange(2)
        match rng.randrange(8):
            case 0:
                b.nc_matmul(dst=bank, stationary=weights, moving=pick, accumulate=rng.random() < 0.5)
            case 1:
                b.tensor_copy(dst=pick[:, columns], src=bank[:, columns])
            case 2:
                op = rng.choice(("exp", "copy", "sqrt"))
                b.activation(dst=pick[:, columns], data=rng.choice((bank, other))[:, columns], op=op)
            case 3:
                b.tensor_tensor(dst=pick[:, columns], data1=pick[:, columns], data2=other[:, columns], op="add")
            case 4:
                b.tensor_scalar(dst=pick, data=other, operand0=2.0, op0="multiply", engine=Engine.VECTOR)
            case 5:
                b.memset(dst=pick[:, columns], value=0.0, engine=Engine.GPSIMD)
            case 6:
                engine = rng.choice((Engine.SYNC, Engine.SCALAR))
                b.dma_copy(dst=pick, src=rng.choice(hbm)[row : row + 128], engine=engine, queue=rng.randrange(3))
            case 7:
                b.dma_copy(dst=rng.choice(hbm)[row : row + 128], src=pick, queue=rng.randrange(3))
    return b.build()
