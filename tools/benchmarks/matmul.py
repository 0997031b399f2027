# SPDX-License-Identifier: Apache-2.0
"""A bf16 matmul kernel executed instruction by instruction, against one NumPy fp32 matmul of the same size."""

from __future__ import annotations

import numpy as np

from benchmarks import lines
from benchmarks.sinks import ViewSink
from trnlab import chips
from trnlab.kernels.blocks import ViewSource
from trnlab.kernels.matmul import matmul
from trnlab.kernels.view import full
from trnlab.numerics.dtypes import bfloat16
from trnlab.program import Builder, Routine
from trnlab.sim.functional import Machine, RunOptions

SIZE = 2048
ROUNDS = 7


def product(chip: chips.Chip, m: int, n: int, k: int) -> Routine:
    """out[M, N] = lhs[M, K] rhs[K, N], all bf16, sums fp32."""
    b = Builder("matmul", chip)
    lhs, rhs, out = (
        b.param("lhs", (m, k), bfloat16),
        b.param("rhs", (k, n), bfloat16),
        b.param("out", (m, n), bfloat16),
    )
    matmul(b, ViewSource(full(lhs)), ViewSource(full(rhs)), ViewSink(full(out)), lhs_k_rows=False, rhs_k_rows=True)
    return b.build()


def main() -> None:
    """Measure and report."""
    chip = chips.get("trn1")
    routine, machine = product(chip, SIZE, SIZE, SIZE), Machine(chip, RunOptions(threads=1))
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((SIZE, SIZE), np.float32) for _ in range(2))
    arrays = [left.astype(bfloat16.numpy), right.astype(bfloat16.numpy), np.empty((SIZE, SIZE), bfloat16.numpy)]
    result = np.empty((SIZE, SIZE), np.float32)
    ours, numpy = lines.in_turns(
        [lambda: machine.call(routine, arrays), lambda: np.matmul(left, right, out=result)], ROUNDS
    )
    note = f"{ours * 1e3:.0f} ms against {numpy * 1e3:.0f} ms, one thread each"
    lines.report([lines.at_most(f"{SIZE}^3 bf16 matmul simulated / NumPy fp32", ours / numpy, 1.5, "x", note)])


if __name__ == "__main__":
    main()
