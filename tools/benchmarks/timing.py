# SPDX-License-Identifier: Apache-2.0
"""How many instructions the timing simulator places per second of processor time."""

from __future__ import annotations

from time import process_time

from benchmarks import lines
from trnlab import chips
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.program import Builder, Call, Program, ProgramTensor, Routine
from trnlab.sim.timing import time_program

INSTRUCTIONS = 100_000
ROUNDS = 15


def mixed_routine(chip: chips.Chip, rounds: int = 700) -> Routine:
    """About 10 000 instructions that wait for each other, on all engines.

    Of every fifteen, nine are matmuls and one or two are DMA transfers: the proportions of a training step of GPT-2.
    """
    b = Builder("mixed", chip)
    x, y = b.param("x", (128, 512), bfloat16), b.param("y", (128, 512), float32)
    tiles = b.pool((128, 512), bfloat16, bufs=4, name="in")
    sums, results = b.pool((128, 512), float32, bufs=4, name="sum"), b.pool((128, 512), float32, bufs=4, name="out")
    for i in range(rounds):
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


def straight_line(chip: chips.Chip, instructions: int) -> Routine:
    """The same mixture as one routine, in which nothing is called twice."""
    return mixed_routine(chip, rounds=instructions * 2 // 29)


def _program(routine: Routine, chip: chips.Chip, calls: int) -> Program:
    tensors = (
        ProgramTensor(0, "x", (128, 512), bfloat16, 128 * 512 * 2, "input"),
        ProgramTensor(1, "y", (128, 512), float32, 128 * 512 * 4, "output"),
    )
    return Program("mixed", chip.name, (routine,), tensors, (Call(0, (0, 1)),) * calls, (0,), (1,))


def main() -> None:
    """Measure and report."""
    chip = chips.get("trn1")
    routine = mixed_routine(chip)
    sizes = [_program(routine, chip, calls) for calls in (1, 10, 100, 1000)]
    straight = _program(straight_line(chip, INSTRUCTIONS), chip, 1)
    programs = [*sizes[:3], straight]
    durations = lines.in_turns([lambda p=p: time_program(p, chip) for p in programs], ROUNDS, process_time)  # type: ignore[misc]
    durations += lines.in_turns([lambda: time_program(sizes[3], chip)], 2, process_time)
    rates = [p.num_instructions / d / 1e6 for p, d in zip([*programs, sizes[3]], durations)]
    note = f"{sizes[2].num_instructions} instructions, 100 calls of one routine"
    report = [lines.at_least("instructions timed", rates[2], 50, "M/s", note)]
    note = f"{straight.num_instructions} instructions of one routine, each timed by itself"
    report.append(lines.at_least("instructions timed, nothing repeated", rates[3], 50, "M/s", note))
    note = f"cost per instruction at {sizes[3].num_instructions} against {sizes[0].num_instructions} instructions"
    report.append(lines.at_most("flatness of timing", rates[0] / rates[4], 1.2, "x", note))
    lines.report(report)


if __name__ == "__main__":
    main()
