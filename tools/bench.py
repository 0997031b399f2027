# SPDX-License-Identifier: Apache-2.0
"""The speed table: how fast trnlab is on this machine, and what its compiled code is worth on the chip.

    python tools/bench.py               every benchmark
    python tools/bench.py matmul demo   those whose names are given

Every figure is measured in this run. Each benchmark is a module of `benchmarks` that runs in a process of its own;
where two things are compared, their measurements take turns in that process, so that a busy machine disturbs both.
The exit status is 1 when a target is missed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.lines import Line, table

# Module, and the number of threads its process may use; None leaves that to the libraries.
BENCHMARKS: dict[str, int | None] = {
    "demo": None,
    "matmul": 1,
    "kernels": 1,
    "passes": 1,
    "rows": 1,
    "refusals": 1,
    "timing": 1,
    "compile": None,
    "gpt2": None,
    "bert": None,
    "resnet50": None,
    "chip": 1,
    "forward": None,
    "layers": None,
    "page": 1,
    "network": 1,
    "ranks": 1,
    "llama": 1,
    "plan": 1,
    "checkpoints": 1,
    "start": 1,
    "recorded": 1,
    "tune": 1,
}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
HERE = Path(__file__).parent


def measure(name: str) -> list[Line]:
    """The lines of one benchmark; one line that says so when it failed."""
    threads = BENCHMARKS[name]
    environment = os.environ | ({} if threads is None else dict.fromkeys(THREAD_VARIABLES, str(threads)))
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
        return [Line(f"{name}: failed", None, "", "", None)]
    return [Line(**fields) for fields in json.loads(done.stdout.splitlines()[-1])]


def main(names: list[str]) -> int:
    """Measure and print; returns the exit status."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    lines: list[Line] = []
    for name in names or BENCHMARKS:
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        lines += measure(name)
    print(table(lines))
    missed = [line.what.strip() for line in lines if line.verdict not in ("met", "")]
    print(f"missed: {len(missed)} of {sum(bool(line.target) for line in lines)}")
    return 0 if all(line.met is not False and line.value is not None for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
