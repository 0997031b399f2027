# SPDX-License-Identifier: Apache-2.0
"""How many instructions the timing simulator places per second."""

from __future__ import annotations

from benchmarks import lines
from trnlab import chips
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.program import Builder, Call, Program, Routine, Tensor
from trnlab.sim.timing import time_program

INSTRUCTIONS = 1_000_000
ROUNDS = 5


def mixed_routine(chip: chips.Chip) -> Routine:
    """About 10 000 instructions that wait for each other, on all engines.

    Of every fifteen, nine are matmuls and one or two are DMA transfers: the proportions of a training step of GPT-2.
    """
    b = Builder("mixed", chip)
    x, y = b.param("x", (128, 512), bfloat16), b.param("y", (128, 512), float32)
    tiles = b.pool((128, 512), bfloat16, bufs=4, name="in")
    sums, results = b.pool((128, 512), float32, bufs=4, name="sum"), b.pool((128, 512), float32, bufs=4, name="out")
    for i in range(700):
        tile, total, result, acc = tiles.next(), sums.next(), results.next(), b.psum((128, 512))
        b.dma_copy(dst=tile, src=x, queue=i % 4)
        for k in range(9):
            b.nc_matmul(dst=acc, stationary=tile[:, 32 * k : 32 * k + 128], moving=tile, accumulate=k > 0)
        b.activation(dst=total, data=acc, op="exp")
        b.tensor_tensor(dst=result, data1=total, data2=tile, op="add")
        b.tensor_scalar(dst=result, data=result, operand0=2.0, op0="multiply")
        b.memset(dst=total, engine=Engine.GPSIMD)
        if i % 2:
            b.dma_copy(dst=y, src=result, queue=4 + i % 4, engine=Engine.GPSIMD)
    return b.build()


def main() -> None:
    """Measure and report."""
    chip = chips.get("trn1")
    routine = mixed_routine(chip)
    tensors = (
        Tensor(0, "x", (128, 512), bfloat16, 128 * 512 * 2, "input"),
        Tensor(1, "y", (128, 512), float32, 128 * 512 * 4, "output"),
    )
    calls = (Call(0, (0, 1)),) * -(-INSTRUCTIONS // len(routine))
    program = Program("mixed", chip.name, (routine,), tensors, calls, (0,), (1,))
    (duration,) = lines.in_turns([lambda: time_program(program, chip)], ROUNDS)
    rate = program.num_instructions / duration / 1e6
    note = f"{program.num_instructions} instructions, {program.num_instructions // len(routine)} calls of one routine"
    lines.report([lines.at_least("instructions timed", rate, 10, "M/s", note)])


if __name__ == "__main__":
    main()
