# SPDX-License-Identifier: Apache-2.0
"""From the start of a process to the end of its first step: everything cached, and on a machine that has nothing.

The script uses `compile_step` once. A machine that has nothing compiles the simulator's own loops first, which Numba
keeps; they are kept elsewhere here, so that nothing of this machine's is lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import lines

ROUNDS = 3
SCRIPT = """
import time
import torch
from torch import nn
from trnlab.frontends.torch import compile_step

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)).to("neuron")
optimizer = torch.optim.AdamW(model.parameters())
step = compile_step(model, optimizer, lambda m, x, y: nn.functional.cross_entropy(m(x), y))
step(torch.randn(16, 64).to("neuron"), torch.randint(0, 8, (16,)).to("neuron")).item()
print(time.time(), time.process_time())
"""


def first_step(folder: Path, loops: Path | None = None) -> tuple[float, float]:
    """Seconds until the end of the first step, and those of the processor. loops: where Numba keeps what it makes."""
    environment = {**os.environ, "TRNLAB_TARGET": "trn1.2xlarge", "TRNLAB_CACHE": str(folder / "cache")}
    if loops is not None:
        environment["NUMBA_CACHE_DIR"] = str(loops)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    started = time.time()
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
    ended, processor = map(float, done.stdout.split())
    return ended - started, processor


def main() -> None:
    """Measure and report."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first_step(folder)
        warm, busy = min(first_step(folder) for _ in range(ROUNDS))
        with tempfile.TemporaryDirectory() as empty:
            fresh, fresh_busy = first_step(Path(empty), Path(empty))
    lines.report([
        lines.at_most("start: first step, all cached", warm, 5, "s", f"{busy:.1f} s of the processor"),
        lines.at_most("start: first step, fresh machine", fresh, 15, "s", f"{fresh_busy:.1f} s of the processor"),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
