# SPDX-License-Identifier: Apache-2.0
"""Scatters, gathers that skip, transposing and MX matmuls, quantization: their loops against their definitions."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np

from benchmarks import lines
from trnlab import chips
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import dtype
from trnlab.program import Builder
from trnlab.sim.functional import Machine, RunOptions

REPEATS, ROUNDS = 100, 7
WANTED = 50  # times as fast as the definition
MX = "float8_e4m3fn_x4"
Arrays = list[np.ndarray[Any, Any]]


def moved_rows(side: str) -> tuple[Builder, Arrays]:
    """128 rows of 512 numbers from or to a table of 1024, a few of which do not exist."""
    b, rng = Builder(side, chips.get("trn2")), np.random.default_rng(0)
    table, wanted = b.param("table", (1024, 512), "float32"), b.param("index", (128, 1), "int32")
    held, index = b.tile((128, 512), "float32"), b.tile((128, 1), "int32")
    b.dma_copy(dst=index, src=wanted)
    dst, src = (held, table) if side == "src" else (table, held)
    for _ in range(REPEATS):
        b.dma_copy(dst=dst, src=src, index=index, indirect=side, oob_mode="skip", engine=Engine.GPSIMD)
    return b, [np.zeros((1024, 512), np.float32), rng.integers(0, 1100, (128, 1)).astype(np.int32)]


def transposes() -> tuple[Builder, Arrays]:
    """[128, 128] bf16 past an identity."""
    b = Builder("transposes", chips.get("trn2"))
    x, identity, sums = b.tile((128, 128), "bfloat16"), b.tile((128, 128), "bfloat16"), b.psum((128, 128), "bfloat16")
    b.memset(dst=x, value=1.0)
    b.dma_copy(dst=identity, src=b.param("identity", (128, 128), "bfloat16"))
    for _ in range(REPEATS):
        b.nc_matmul(dst=sums, stationary=x, moving=identity, is_transpose=True)
    return b, [np.eye(128).astype(dtype("bfloat16").numpy)]


def mx_products() -> tuple[Builder, Arrays]:
    """128 x 128 words by 128 x 512."""
    b, rng, tiles, arrays = Builder("mx", chips.get("trn3")), np.random.default_rng(0), {}, []
    for name, columns in (("stationary", 128), ("moving", 512)):
        for operand, fmt in ((name, MX), (f"{name}_scale", "uint8")):
            tiles[operand] = b.tile((128, columns), fmt)
            b.dma_copy(dst=tiles[operand], src=b.param(operand, (128, columns), fmt))
            kind, (low, high) = dtype(fmt).numpy, (0, 127) if fmt == MX else (110, 140)
            arrays.append(rng.integers(low, high, (128, columns, kind.itemsize), np.uint8).view(kind)[..., 0].copy())
    sums = b.psum((128, 512))
    for _ in range(REPEATS):
        b.nc_matmul_mx(dst=sums, **tiles)
    return b, arrays


def quantized() -> tuple[Builder, Arrays]:
    """[128, 512] bf16."""
    b, rng = Builder("quantized", chips.get("trn3")), np.random.default_rng(0)
    x, packed, scale = b.tile((128, 512), "bfloat16"), b.tile((128, 128), MX), b.tile((128, 128), "uint8")
    b.dma_copy(dst=x, src=b.param("x", (128, 512), "bfloat16"))
    for _ in range(REPEATS):
        b.quantize_mx(dst=packed, src=x, dst_scale=scale)
    return b, [rng.standard_normal((128, 512)).astype(dtype("bfloat16").numpy)]


def line(what: str, made: tuple[Builder, Arrays]) -> lines.Line:
    """How many times as fast as by definition."""
    b, arrays = made
    routine = b.build()

    def runs(by_definition: bool) -> Callable[[], None]:
        machine = Machine(b.chip, RunOptions(threads=1, by_definition=by_definition))
        return lambda: machine.call(routine, arrays)

    compiled, defined = lines.in_turns([runs(False), runs(True)], ROUNDS, process_time)
    note = f"{compiled / REPEATS * 1e6:.3g} us against {defined / REPEATS * 1e6:.3g} us"
    return lines.at_least(what, defined / compiled, WANTED, "x", note)


def main() -> None:
    """Measure and report."""
    one, other = np.ones((512, 128)), np.ones((512, 512))
    table, index, held = np.zeros((1024, 512), np.float32), np.arange(128) * 7, np.zeros((128, 512), np.float32)
    product, moved = lines.in_turns([lambda: one.T @ other, lambda: table.take(index, 0, held, "clip")], 10 * ROUNDS)
    found = [
        line("gather that skips / its definition", moved_rows("src")),
        lines.Line("  its copy alone", moved * 1e6, "us", "", None, "in NumPy"),
        line("scatter / its definition", moved_rows("dst")),
        line("transposing matmul / its definition", transposes()),
        line("MX matmul / its definition", mx_products()),
        line("quantization to MX / its definition", quantized()),
    ]
    found.append(lines.Line("  its float64 product alone", product * 1e6, "us", "", None, "in NumPy"))
    lines.report(found)


if __name__ == "__main__":
    main()
