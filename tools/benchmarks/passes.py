# SPDX-License-Identifier: Apache-2.0
"""What the passes over a recorded kernel of a million instructions cost, each alone, and all with placement.

The kernel has work for every pass: tiles that are overwritten in a loop, products that are named before they are
added, rows that are negated again and again, tensors that are loaded twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks import lines
from trnlab import chips
from trnlab.collector import collector_paused
from trnlab.lang import allocation
from trnlab.lang.recorder import Recorder
from trnlab.nki import isa as nisa
from trnlab.nki import language as nl
from trnlab.policy import SCHEDULED
from trnlab.program import passes
from trnlab.program.passes.draft import Draft

INSTRUCTIONS = int(os.environ.get("TRNLAB_BENCH_INSTRUCTIONS", "1_000_000"))
BODY = 14  # instructions of one iteration
LIMIT = 20  # seconds


def record(instructions: int) -> Recorder:
    """The kernel, recorded and not finished."""
    recorder = Recorder("passes", chips.get("trn2"))
    with collector_paused(), recorder.active():
        x = recorder.argument("x", (128, 8192), "bfloat16")
        y = recorder.argument("y", (128, 8192), "float32")
        kept = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
        for i in range(instructions // BODY):
            body(x, y, kept, 512 * (i % 16))
    return recorder


def body(x: Any, y: Any, kept: Any, at: int) -> None:
    """One iteration."""
    columns = slice(at, at + 512)
    nisa.dma_copy(dst=kept, src=x[:, columns])
    tile = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[:, 0:512])
    top, low, total = (nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(3))
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=kept, axis=1)
    for _ in range(2):
        nisa.tensor_scalar(dst=low, data=top, op0=nl.multiply, operand0=-1.0)
    wide = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.activation(dst=wide, op=nl.exp, data=kept, bias=low)
    nisa.tensor_reduce(dst=total, op=nl.add, data=wide, axis=1)
    acc, product = (nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum) for _ in range(2))
    nisa.nc_matmul(dst=acc, stationary=wide[:, 0:128], moving=tile)
    nisa.nc_matmul(dst=product, stationary=wide[:, 128:256], moving=tile)
    named = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=named, src=product)
    nisa.tensor_tensor(dst=acc, data1=acc, data2=named, op=nl.add)
    result = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=acc)
    nisa.tensor_scalar(dst=result, data=result, op0=nl.multiply, operand0=total)
    nisa.dma_copy(dst=y[:, columns], src=result)


def seconds(function: Callable[[], Any]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def each_alone(recorder: Recorder) -> dict[str, float]:
    """Seconds of each pass over the recording as it is."""
    b, found = recorder.builder, {}
    state, movable = b.state(), [made.buffer.id for made in recorder.tiles]
    for name, one in passes.PASSES.items():
        draft = Draft(b, movable, SCHEDULED)
        found[name] = seconds(lambda: one.change(draft))  # noqa: B023
        b.restore(state)
    return found


def main() -> None:
    """Measure and report."""
    record(2000).finish()
    start = time.process_time()
    recorder = record(INSTRUCTIONS)
    recording = time.process_time() - start
    count = len(recorder.builder)
    with collector_paused():
        alone = each_alone(recorder)
        everything = seconds(lambda: allocation.finished(recorder.builder, {}, SCHEDULED))
    note = f"{count} instructions recorded in {recording:.1f} s; passes, placement, slots"
    report = [lines.at_most("passes of a kernel of 1 M instructions", everything * 1e6 / count, LIMIT, "s", note)]
    for name, time_taken in alone.items():
        report.append(lines.Line(f"  {name}", time_taken * 1e6 / count, "s", "", None, "alone"))
    each = recording / count * 1e6
    report.append(lines.at_most("recording an instruction of it", each, 10, "us", "tiles made on the way"))
    lines.report(report)


if __name__ == "__main__":
    main()
