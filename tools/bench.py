# SPDX-License-Identifier: Apache-2.0
"""`make bench`: one table of how fast the simulator is, and how good the compiled code is on the simulated chip.

Each line is measured in a process of its own, on one thread, and is a ratio or a rate of that very run: a ratio is to
something that the same machine did a moment before.

    python tools/bench.py                # all lines
    python tools/bench.py matmul timing  # those whose name contains a word
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
REPEATS = 5


@dataclass(frozen=True)
class Line:
    """What is measured, the bound it should keep, and on which side of it the figure should be."""

    name: str
    what: str
    measure: Callable[[], float]
    bound: float
    at_least: bool
    unit: str = "x"

    def show(self, value: float) -> str:
        """One row of the table."""
        kept = value >= self.bound if self.at_least else value <= self.bound
        sign, mark = (">=" if self.at_least else "<="), ("ok" if kept else "MISSED")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        limit = f"{sign} {_figure(self.bound)}"
        return f"{self.what:<58} {_figure(value):>9} {self.unit:<4} {limit:<9} {mark:<7} {peak:5.1f} GiB"


def _figure(value: float) -> str:
    return f"{value / 1e6:.4g} M" if value >= 1e6 else f"{value:.3g}"


def seconds(work: Callable[[], Any]) -> float:
    """Median of REPEATS runs, after one that does not count."""
    work()
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


# -- programs -------------------------------------------------------------------------------------------------------


def matmul_program(target: str, m: int, k: int, n: int) -> Any:
    """A bf16 matmul, compiled as part of a model would be."""
    from trnlab import chips, compiler
    from trnlab.graph.builder import GraphBuilder

    b = GraphBuilder("matmul")
    x, w = b.input("x", (m, k), "bfloat16"), b.input("w", (k, n), "bfloat16")
    b.output(b.dot_general(x, w, ((1,), (0,)), dt="bfloat16"), "y")
    return compiler.compile(b.build(), chips.get(target), {"precision": "bf16"})


def attention_program(target: str, length: int, head: int) -> Any:
    """The forward pass of one head of attention in bf16."""
    from trnlab import chips, compiler
    from trnlab.graph.builder import GraphBuilder

    b = GraphBuilder("attention")
    q, k, v = (b.input(name, (1, 1, length, head), "bfloat16") for name in "qkv")
    out, lse = b.append("trn.attention", (q, k, v), {"causal": False, "scale": head**-0.5}).results
    b.output(out, "out")
    b.output(lse, "lse")
    return compiler.compile(b.build(), chips.get(target), {"precision": "bf16"})


# -- lines ----------------------------------------------------------------------------------------------------------


def tensor_active(program: Any) -> float:
    """Percent of the time in which the PE array is at work."""
    from trnlab import chips
    from trnlab.sim.timing import summarise, time_program

    timeline = time_program(program, chips.get(program.target))
    return 100 * summarise(timeline).engine("tensor").share


def matmul_numbers() -> float:
    """Simulated 2048^3 bf16 matmul over one NumPy fp32 matmul."""
    import ml_dtypes
    import numpy as np

    from trnlab import chips
    from trnlab.sim.functional import Machine, run_program

    size = 2048
    program = matmul_program("trn1", size, size, size)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((size, size), np.float32) for _ in range(2))
    arrays = [a.astype(ml_dtypes.bfloat16) for a in (x, w)] + [np.empty((size, size), ml_dtypes.bfloat16)]
    bindings = dict(zip((*program.inputs, *program.outputs), arrays))
    chip = chips.get("trn1")
    machine = Machine(chip)
    return seconds(lambda: run_program(program, bindings, chip, machine=machine)) / seconds(lambda: x @ w)


def timing_rate() -> float:
    """Instructions timed per second."""
    from trnlab import chips
    from trnlab.sim.timing import time_program

    program = matmul_program("trn1", 4096, 4096, 4096)
    return program.num_instructions / seconds(lambda: time_program(program, chips.get("trn1")))


LINES = (
    Line("matmul-numbers", "2048^3 bf16 matmul, simulated / NumPy fp32", matmul_numbers, 1.5, False),
    Line("timing-rate", "instructions timed per second", timing_rate, 10e6, True, "/s"),
    *(
        Line(
            f"matmul-{chip}", f"PE array busy, 4096 x 8192 x 8192 bf16 matmul, {chip}",
            lambda chip=chip: tensor_active(matmul_program(chip, 4096, 8192, 8192)), 85, True, "%",
        )
        for chip in ("trn1", "trn2")
    ),
    *(
        Line(
            f"attention-{chip}", f"PE array busy, attention forward 4096 x 128 bf16, {chip}",
            lambda chip=chip: tensor_active(attention_program(chip, 4096, 128)), 35, True, "%",
        )
        for chip in ("trn1", "trn2")
    ),
)  # fmt: skip


def main(words: list[str]) -> int:
    """Measure the chosen lines, each in its own process; the status is the number that failed to run."""
    failed = 0
    for line in LINES:
        if not words or any(word in line.name for word in words):
            command = [sys.executable, __file__, "--line", line.name]
            failed += subprocess.run(command, env={**os.environ, **ONE_THREAD}).returncode != 0
    return failed


if __name__ == "__main__":
    if sys.argv[1:2] == ["--line"]:
        chosen = next(line for line in LINES if line.name == sys.argv[2])
        print(chosen.show(chosen.measure()), flush=True)
    else:
        sys.exit(main(sys.argv[1:]))
