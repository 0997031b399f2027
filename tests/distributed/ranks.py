# SPDX-License-Identifier: Apache-2.0
"""Start a script as several ranks, as torchrun does, and collect what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests import processes

HERE = Path(__file__).parent
SECONDS = 600  # only ends what hangs: the scripts take a few on an idle machine, and a minute beside other work


@dataclass(frozen=True)
class Ended:
    """How a rank ended."""

    status: int
    output: str


def launch(script: str, folder: Path, ranks: int = 2, *arguments: str, **environment: str) -> list[Ended]:
    """Run `scripts/SCRIPT` in `folder`, once for each rank. They meet through a file (`RENDEZVOUS`)."""
    shared = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "TRNLAB_TARGET": "trn1.32xlarge",
        "TRNLAB_PRECISION": "fp32",
        "TRNLAB_CACHE": str(folder / "cache"),
        "RENDEZVOUS": str(folder / "meet"),
        **environment,
    }
    command = [sys.executable, str(HERE / "scripts" / script), *arguments]
    running = [
        processes.start(
            command,
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [processes.communicate(process, timeout=SECONDS)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.stdout.close()
    return [Ended(process.returncode, output) for process, output in zip(running, outputs)]
