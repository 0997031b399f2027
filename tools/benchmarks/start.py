# SPDX-License-Identifier: Apache-2.0
"""From the start of a process to its end after one step: everything cached, and on a machine that has nothing.

The script uses `compile_step` once. A machine that has nothing compiles the simulator's own loops first, which Numba
keeps; they are kept elsewhere here, so that nothing of this machine's is lost. What counts is time of the processor,
as other work on the machine makes everything take longer; even that grows when caches are shared, so that
`import torch` alone, which nobody can start without, is timed beside each and told in the notes.
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


def processor_seconds(arguments: list[str], **environment: str) -> float:
    """Of a Python with these arguments, to its end. Bytecode is kept, whatever the environment says, as usual."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], env={**kept, **environment}, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_step(folder: Path, loops: Path | None = None) -> tuple[float, float]:
    """Seconds of the processor for one step, and for `import torch` alone. loops: where Numba keeps what it makes."""
    environment = {"TRNLAB_TARGET": "trn1.2xlarge", "TRNLAB_CACHE": str(folder / "cache")}
    if loops is not None:
        environment["NUMBA_CACHE_DIR"] = str(loops)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    alone = processor_seconds(["-c", "import torch"], TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    return processor_seconds([str(script)], **environment), alone


def line(what: str, found: tuple[float, float], limit: float) -> lines.Line:
    """One row of the table."""
    step, alone = found
    return lines.at_most(what, step, limit, "s", f"processor time; {step / alone:.1f} x import torch ({alone:.1f} s)")


def main() -> None:
    """Measure and report."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first_step(folder)
        warm = min(first_step(folder) for _ in range(ROUNDS))
        with tempfile.TemporaryDirectory() as empty:
            fresh = first_step(Path(empty), Path(empty))
    lines.report(
        [line("start: first step, all cached", warm, 5), line("start: first step, fresh machine", fresh, 15)]
    )


if __name__ == "__main__":
    main()
