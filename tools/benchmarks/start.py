# SPDX-License-Identifier: Apache-2.0
"""From the start of a process to its end: after one step, after one kernel, after an import.

A machine that has nothing is one where trnlab was installed as by `make demo`, its loops compiled with it, and where
the user's caches are empty; one without compiled loops leaves them to Numba. Caches are kept elsewhere here, so that
nothing of this machine's is lost. What counts is time of the processor, as other work on the machine makes everything
take longer; even that grows when caches are shared, so that `import torch` alone, which nobody can start without, is
timed beside each and told in the notes.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import lines

ROUNDS = 3
SCRIPT = """
import torch
from torch import nn
from trnlab.frontends.torch import compile_step

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)).to("neuron")
optimizer = torch.optim.AdamW(model.parameters())
step = compile_step(model, optimizer, lambda m, x, y: nn.functional.cross_entropy(m(x), y))
step(torch.randn(16, 64).to("neuron"), torch.randint(0, 8, (16,)).to("neuron")).item()
"""

KERNEL = """
import numpy as np
import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

@nki.jit
def gelu_of_product(x, w):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    sums = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    result = nl.ndarray((128, 512), dtype=nl.float32)
    nisa.nc_matmul(dst=sums, stationary=nl.load(x), moving=nl.load(w))
    nisa.activation(dst=result, op=nl.gelu, data=sums)
    nisa.dma_copy(dst=out, src=result)
    return out

x, w = np.eye(128, dtype=np.float32), np.ones((128, 512), np.float32)
print(gelu_of_product(x, w)[0, 0], gelu_of_product.timeline(x, w).total)
"""


def processor_seconds(arguments: list[str], **environment: str) -> float:
    """Of a Python with these arguments, to its end. Bytecode is kept, whatever the environment says, as usual."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], env={**kept, **environment}, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seconds(arguments: list[str], folder: Path, loops: str = "") -> float:
    """Seconds of the processor of a Python whose caches lie in a folder. loops: "numba" leaves them to it."""
    return processor_seconds(
        arguments,
        TRNLAB_TARGET="trn1.2xlarge",
        TRNLAB_CACHE=str(folder / "programs"),
        TRNLAB_LOOPS=loops,
        XDG_CACHE_HOME=str(folder / "user"),
        NUMBA_CACHE_DIR=str(folder / "numba"),
    )


def fresh(arguments: list[str], loops: str = "") -> float:
    """The same with caches that are empty."""
    with tempfile.TemporaryDirectory() as name:
        return seconds(arguments, Path(name), loops)


def line(what: str, found: float, limit: float, torch: float) -> lines.Line:
    """One row of the table."""
    note = f"processor time; {found / torch:.2f} x import torch ({torch:.1f} s)"
    return lines.at_most(f"start: {what}", found, limit, "s", note)


def main() -> None:
    """Measure and report."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step, kernel = folder / "train.py", folder / "kernel.py"
        step.write_text(SCRIPT)
        kernel.write_text(KERNEL)
        torch = min(
            processor_seconds(["-c", "import torch"], TORCH_DEVICE_BACKEND_AUTOLOAD="0") for _ in range(ROUNDS)
        )
        seconds([str(step)], folder)
        measured = [
            ("first step, all cached", min(seconds([str(step)], folder) for _ in range(ROUNDS)), 3.0),
            ("first step, fresh machine", fresh([str(step)]), 5.0),
            ("first step, fresh machine, by Numba", fresh([str(step)], "numba"), 15.0),
            ("first kernel, fresh machine", fresh([str(kernel)]), 2.0),
            ("first kernel, fresh machine, by Numba", fresh([str(kernel)], "numba"), 12.0),
            ("import trnlab.nki", min(seconds(["-c", "import trnlab.nki"], folder) for _ in range(ROUNDS)), 0.3),
            ("trnlab --version", seconds(["-m", "trnlab.cli.main", "--version"], folder), 0.3),
        ]
        lines.report([line(what, found, limit, torch) for what, found, limit in measured])


if __name__ == "__main__":
    main()
