# SPDX-License-Identifier: Apache-2.0
"""What is tried of a release, in its own environment: ways in which people reach the chip, and files of the suite.

    python -m tools.versions.cases CASE ...    # a line of JSON for each: case, passed, said (what came of it)

CASE: a name of `CASES`, or a file of tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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
# A loop as people write it: what it trains with is a matter of `device` alone. Then what trnlab counted.
RECORDED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def train(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Linear(36, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    numbers = torch.Generator().manual_seed(1)
    x, y = torch.randn(48, 1, 8, 8, generator=numbers), torch.randint(4, (48,), generator=numbers)
    losses = []
    for x, y in DataLoader(TensorDataset(x, y), batch_size=8):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(); schedule.step()
        losses.append(loss.item())
    return losses

chip, host = train("neuron"), train("cpu")
from trnlab import host_ops
from trnlab.runtime import session
assert session.active().executables, "no program was compiled"
assert host_ops.current().totals()["training"] == 0, host_ops.current().by_name()
assert all(abs(a - b) < 2e-2 for a, b in zip(chip, host, strict=True)), (chip, host)
"""
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
_DEMO = ("-m", "trnlab.cli.main", "run", "--target", TARGET, "examples/train_gpt.py", "--steps", "2")
_RANKS = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


class Outcome(NamedTuple):
    """What came of a case: whether it passed, and what a reader wants to know of it."""

    passed: bool
    said: str


def _command(*arguments: str) -> Outcome:
    """By exit status; what a command that failed wrote of it, in a line."""
    done = _run(*arguments)
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: )?\w+(\.\w+)*(Error|Exception)\b", line)]
    return Outcome(
        not done.returncode, "" if not done.returncode else [f"status {done.returncode}", *lines, *errors][-1]
    )


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRNLAB_TARGET": TARGET}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def _script(text: str, *prefix: str) -> Outcome:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(text)
        file.flush()
        return _command(*prefix, file.name)


def _tests(file: str) -> Outcome:
    """A file of the suite: how many tests did what, and which of them failed."""
    done = _run("-m", "pytest", "-rfE", "-p", "no:cacheprovider", file)
    lines = [line for line in done.stdout.splitlines() if line.strip()] or [f"status {done.returncode}"]
    failed = [name for line in lines if (name := re.match(r"(?:FAILED|ERROR) \S*?(?:::)?([^\s:]+)(?: |$)", line))]
    counted = re.sub(r" in [\d.]+s.*|=+ ?", "", lines[-1])
    return Outcome(not done.returncode, "; ".join([counted, *(f"`{name[1]}`" for name in failed)]))


CASES: dict[str, Callable[[], Outcome]] = {
    "names": lambda: _command("-c", _NAMES),
    "demo": lambda: _command(*_DEMO),
    "torch.compile": lambda: _script(COMPILED),
    "compile_step": lambda: _script(CAPTURED),
    "eager script": lambda: _script(RECORDED),
    "torchrun": lambda: _script(RANKS, *_RANKS),
}


def outcome(case: str) -> Outcome:
    """Try it."""
    return CASES[case]() if case in CASES else _tests(case)


def main() -> None:
    """The command."""
    for case in sys.argv[1:]:
        print(json.dumps({"case": case, **outcome(case)._asdict()}), flush=True)


if __name__ == "__main__":
    main()
