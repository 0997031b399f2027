# SPDX-License-Identifier: Apache-2.0
"""How long an estimate of Llama-3-8B takes, sharded by FSDP2 over 4 and over 64 instances, and how much memory."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import lines
from trnlab.units import GIB

SCRIPT = Path(__file__).parents[2] / "examples" / "train_llama.py"
KIB = 1024


def estimated(instances: int, cache: str) -> float:
    """Seconds of `trnlab estimate` in a process of its own."""
    command = [sys.executable, "-m", "trnlab.cli.main", "estimate", "--cache", cache, "--json"]
    started = time.perf_counter()
    target = ["--target", f"{instances}xtrn2.48xlarge", str(SCRIPT)]
    subprocess.run([*command, *target], check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    """Measure and report."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as other:
        cold, warm = estimated(4, cache), estimated(4, cache)
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * KIB
        many = estimated(64, other)
    lines.report(
        [
            lines.at_most("estimate of Llama-3-8B, FSDP2, 4 x trn2.48xlarge, cold", cold, 180, "s"),
            lines.at_most("the same, warm", warm, 5, "s"),
            lines.at_most("the same, memory of the process", most / GIB, 8, "GiB"),
            lines.at_most("64 instances against 4, cold", many / cold, 1.2, "x"),
        ]
    )


if __name__ == "__main__":
    main()
