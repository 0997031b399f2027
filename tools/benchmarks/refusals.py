# SPDX-License-Identifier: Apache-2.0
"""How long it takes until a kernel is refused, or fits after all, when it asks for too much."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import lines
from trnlab import nki
from trnlab.errors import TrnlabError
from trnlab.nki import isa as nisa
from trnlab.nki import language as nl

LIMIT = 5  # seconds
X = np.zeros((128, 4096), np.float32)


def hoard(tiles: int, columns: int) -> Callable[[Any], Any]:
    """Tiles that are all filled before the first is read, and read three times."""

    def kernel(x: Any) -> Any:
        out = nl.ndarray((128, columns), dtype=x.dtype, buffer=nl.shared_hbm)
        held = [nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf) for _ in range(tiles)]
        for tile in held:
            nisa.dma_copy(dst=tile, src=x[:, 0:columns])
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        total = nl.ndarray((128, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        for _ in range(3):
            for tile in held:
                nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)
        nisa.dma_copy(dst=out, src=total)
        return out

    return kernel


def too_wide(x: Any) -> Any:
    """A tile that no partition holds, after many that fit."""
    out = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    for _ in range(20_000):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    wide = nl.ndarray((128, 60_000), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=wide, value=0.0)
    nisa.dma_copy(dst=out, src=wide[:, 0:8])
    return out


def sums(x: Any) -> Any:
    """More open sums than there are banks."""
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    left, right = (nl.ndarray((128, n), dtype=nl.bfloat16, buffer=nl.sbuf) for n in (128, 512))
    for tile in (left, right):
        nisa.memset(dst=tile, value=0.0)
    open_sums = [nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum) for _ in range(400)]
    for turn in range(3):
        for tile in open_sums:
            nisa.nc_matmul(dst=tile, stationary=left, moving=right, accumulate=turn > 0)
    copied = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    for _ in range(2):
        for tile in open_sums:
            nisa.tensor_copy(dst=copied, src=tile)
            nisa.dma_copy(dst=out, src=copied)
    return out


def line(what: str, function: Callable[[Any], Any]) -> lines.Line:
    """Processor time of a call that is refused, or not."""
    start, said = time.process_time(), "it fits after all"
    try:
        nki.jit(function).trace(X)
    except TrnlabError as error:
        said = f"{error.code}"
    return lines.at_most(what, time.process_time() - start, LIMIT, "s", said)


def main() -> None:
    """Measure and report."""
    line("", hoard(200, 512))  # compiles what is not in the cache
    lines.report(
        [
            line("a tile too wide, after 20 000 instructions", too_wide),
            line("400 sums in 8 banks", sums),
            line("60 MB of tiles of 2 KB in 24 MB", hoard(240, 512)),
            line("3200 tiles of 256 bytes in 192 KiB", hoard(3200, 64)),
        ]
    )


if __name__ == "__main__":
    main()
