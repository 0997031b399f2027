# SPDX-License-Identifier: Apache-2.0
"""What a search costs: candidates of some 2,000 instructions, recorded in contained processes and timed, on one core.

Every candidate is another program of as many instructions: its row blocks come in another order. TRNLAB_BENCH_POINTS
says how many are tried; the time of 1,000 is in proportion.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks import lines
from trnlab.bench import tuning, variants
from trnlab.bench.candidate import candidate
from trnlab.bench.judging import ProblemSpec
from trnlab.bench.ladder import KernelBench
from trnlab.bench.recording import on_target
from trnlab.storage.content import ContentStore

POINTS, OF = int(os.environ.get("TRNLAB_BENCH_POINTS", "96")), 1000
INSTRUCTIONS = 2000
LIMIT = 600  # seconds of processor time for 1,000
SOURCE = """
import random

import nki
import nki.isa as nisa
import nki.language as nl

turn = 0


@nki.jit
def normalized(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    blocks = list(range(x.shape[0] // 128))
    random.Random(turn).shuffle(blocks)
    for r in blocks:
        rows = slice(r * 128, r * 128 + 128)
        total = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
        tiles = []
        for c in range(8):
            tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
            square = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[rows, c * 512 : c * 512 + 512])
            nisa.tensor_tensor(dst=square, data1=tile, data2=tile, op=nl.multiply)
            nisa.tensor_reduce(dst=total[:, c : c + 1], op=nl.add, data=square, axis=1)
            tiles.append(tile)
        scale = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=scale, op=nl.add, data=total, axis=1)
        nisa.activation(dst=scale, op=nl.rsqrt, data=scale, scale=1 / 4096)
        for c, tile in enumerate(tiles):
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=scale)
            nisa.dma_copy(dst=out[rows, c * 512 : c * 512 + 512], src=tile)
    return out
"""


def processor_s() -> float:
    """Seconds of processor time of this process, of those it has started, and of those that it waited for. The
    process that recordings are copied from lives on, so that what it waited for is asked of it."""
    times, parents = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended
            continue
        number = int(stat.parent.name)
        parents[number], times[number] = int(fields[1]), sum(map(int, fields[11:15]))
    mine, total = {os.getpid()}, 0
    while mine:
        total += sum(times[n] for n in mine)
        mine = {n for n, parent in parents.items() if parent in mine}
    return total / os.sysconf("SC_CLK_TCK")


def search(points: int) -> tuning.TuneResult:
    """Try so many points, one after the other."""
    with tempfile.TemporaryDirectory() as folder, on_target("trn2"):
        file = Path(folder) / "normalized.py"
        file.write_text(SOURCE, encoding="utf-8")
        spec = ProblemSpec(None, ("float32[6144,4096]",), 1, ())
        bench = KernelBench(spec, "trn2", band=False)
        job = bench.job(candidate(str(file)), bench.arguments())
        space = variants.SearchSpace({"turn": tuple(range(points))})
        return tuning.run(tuning.TuneTask(job, space, spec), points, None, ContentStore(None), lambda *_: None)


def main() -> None:
    """Measure, and report."""
    search(2)  # what is imported and compiled once
    before = processor_s()
    found: list[tuning.TuneResult] = []
    wall = lines.seconds(lambda: found.append(search(POINTS)))
    used = processor_s() - before
    sizes = {trial.instructions for trial in found[0].trials}
    assert min(sizes) >= 0.9 * INSTRUCTIONS, sizes
    note = f"{POINTS} candidates of {min(sizes):,} instructions measured"
    lines.report(
        [
            lines.at_most("tune: processor time of 1,000 candidates", used / POINTS * OF, LIMIT, "s", note),
            lines.Line("tune: candidates an hour on one core", POINTS / wall * 3600, "", "", None, "wall time"),
        ]
    )


if __name__ == "__main__":
    main()
