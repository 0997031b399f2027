# SPDX-License-Identifier: Apache-2.0
"""What is tried of each release of PyTorch, in its own environment: the ways in which people reach the chip.

python -m tools.versions.cases [NAME ...]  # a line of JSON for each: its name, and "" or what went wrong
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = "trn1.2xlarge"
_MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
x, y = torch.randn(8, 16), torch.randint(4, (8,))
"""
_TRAINED = """
host = [float(nn.functional.cross_entropy(model(x), y))]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
nn.functional.cross_entropy(model(x), y).backward(); optimizer.step()
host.append(float(nn.functional.cross_entropy(model(x), y)))
assert all(abs(a - b) < 1e-2 for a, b in zip(losses, host)) and losses[1] < losses[0], (losses, host)
"""
_START = _MODEL + "import copy\nchip, ids = copy.deepcopy(model).to('neuron'), y.to('neuron')\nat = x.to('neuron')\n"
COMPILED = f"""{_START}
run = torch.compile(chip, backend="neuron")
optimizer = torch.optim.SGD(chip.parameters(), lr=0.1)
losses = []
for _ in range(2):
    loss = nn.functional.cross_entropy(run(at), ids)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(float(loss))
{_TRAINED}"""
CAPTURED = f"""{_START}
import trnlab.frontends.torch as neuron
step = neuron.compile_step(chip, torch.optim.SGD(chip.parameters(), lr=0.1),
                           lambda m, x, y: nn.functional.cross_entropy(m(x), y))
losses = [float(step(at, ids)) for _ in range(2)]
{_TRAINED}"""
RANKS = """
import torch, torch.distributed as dist
dist.init_process_group("neuron")
ones = torch.ones(4, device="neuron") * (dist.get_rank() + 1)
dist.all_reduce(ones)
assert ones.tolist() == [3.0] * 4, ones
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).to("neuron"))
model(ones).sum().backward()
dist.destroy_process_group()
"""
_NAMES = "from tools.versions import names; import sys; m = names.missing(); print(m); sys.exit(bool(m))"
TESTS = (
    "tests/frontends/test_pytorch_names.py", "tests/frontends/test_autoload.py", "tests/frontends/test_device.py",
    "tests/frontends/test_data_attribute.py", "tests/frontends/test_backend.py",
    "tests/frontends/distributed/test_fully_sharded_steps.py",
)  # fmt: skip


def _command(*arguments: str) -> str:
    """What a command wrote last, where it failed; "" where it did not."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRNLAB_TARGET": TARGET}
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return "" if not done.returncode else (lines or [f"exit status {done.returncode}"])[-1]


def _script(text: str, *prefix: str) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(text)
        file.flush()
        return _command(sys.executable, *prefix, file.name)


CASES: dict[str, Callable[[], str]] = {
    "names": lambda: _command(sys.executable, "-c", _NAMES),
    "demo": lambda: _command(sys.executable, "-m", "trnlab.cli.main", "run", "--target", TARGET,
                             "examples/train_gpt.py", "--steps", "2"),
    "torch.compile": lambda: _script(COMPILED),
    "compile_step": lambda: _script(CAPTURED),
    "torchrun": lambda: _script(RANKS, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
    "tests": lambda: _command(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS),
}  # fmt: skip


def main() -> None:
    """The command."""
    for name in sys.argv[1:] or CASES:
        print(json.dumps({"case": name, "failed": CASES[name]()}), flush=True)


if __name__ == "__main__":
    main()
