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


def processor_seconds() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def estimated(instances: int, cache: str) -> tuple[float, float]:
    """Processor and wall seconds of `trnlab estimate` in processes of its own."""
    command = [sys.executable, "-m", "trnlab.cli.main", "estimate", "--cache", cache, "--json"]
    started, before = time.perf_counter(), processor_seconds()
    target = ["--target", f"{instances}xtrn2.48xlarge", str(SCRIPT)]
    subprocess.run([*command, *target], check=True, capture_output=True)
    return processor_seconds() - before, time.perf_counter() - started


def main() -> None:
    """Measure and report."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as other:
        (cold, cold_wall), (warm, warm_wall) = estimated(4, cache), estimated(4, cache)
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * KIB
        many, _ = estimated(64, other)
    lines.report(
        [
            lines.at_most(
                "estimate of Llama-3-8B, FSDP2, 4 x trn2.48xlarge, cold",
                cold,
                120,
                "s",
                f"processor; {cold_wall:.0f} s in all",
            ),
            lines.at_most("the same, warm", warm, 3, "s", f"processor; {warm_wall:.1f} s in all"),
            lines.at_most("the same, memory of the process", most / GIB, 8, "GiB"),
            lines.at_most("64 instances against 4, cold", many / cold, 1.2, "x"),
        ]
    )


if __name__ == "__main__":
    main()
