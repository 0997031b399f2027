# SPDX-License-Identifier: Apache-2.0
"""Memory of a long run: what a training of many steps holds after some of them, and whether that grows.

    python -m tools.memory [--steps 5000] [--after 500] [--most 4]

A small training runs under `trnlab run`; it reads its own resident memory after `--after` steps and at the end, each
time with what Python could collect collected. Status 1 where it grew by more than `--most`: the losses of a run are
kept, some hundred bytes a step, and nothing else may be.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from trnlab.units import format_bytes

TARGET = "trn1.2xlarge"
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


def resident() -> int:
    """Bytes of this process that are in memory now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def train(steps: int, marks: list[int]) -> None:
    """The training; prints what is resident after the steps in `marks`, and how many objects Python has."""
    import torch
    from torch import nn

    from trnlab.frontends.torch import compile_step

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.GELU(), nn.Linear(16, 4)).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    step = compile_step(model, optimizer, lambda model, x, y: nn.functional.cross_entropy(model(x), y))
    for number in range(1, steps + 1):
        x, y = torch.randn(8, 8), torch.randint(4, (8,))
        loss = step(x.to("neuron"), y.to("neuron"))
        schedule.step()
        if number % 10 == 0:
            loss.item()
        if number in marks:
            print(f"after {number}: {resident()} bytes, {len(gc.get_objects())} objects", flush=True)


def measured(steps: int, marks: list[int], folder: Path) -> dict[int, tuple[int, int]]:
    """Resident bytes and Python's objects after each mark. Raises CalledProcessError where the run fails."""
    options = ["--target", TARGET, "--out", str(folder / "out"), "--cache", str(folder / "cache")]
    own = [str(Path(__file__).resolve()), "--train", str(steps), *map(str, marks)]
    command = [sys.executable, "-m", "trnlab.cli.main", "run", *options, *own]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("after ")]
    return {int(row[1].rstrip(":")): (int(row[2]), int(row[4])) for row in rows}


def main() -> int:
    """The command; returns 1 where memory grew."""
    if sys.argv[1:2] == ["--train"]:
        steps, *marks = map(int, sys.argv[2:])
        train(steps, marks)
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--after", type=int, default=500)
    parser.add_argument("--most", type=int, default=4, metavar="MIB", help="by how much memory may grow; default: 4")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(args.steps, [args.after, args.steps], Path(folder))
    for step, (size, objects) in found.items():
        print(f"after {step:,} steps: {format_bytes(size)} resident, {objects:,} objects of Python")
    grown = found[args.steps][0] - found[args.after][0]
    print(f"grown by {grown / MIB:.2f} MiB, {grown / (args.steps - args.after):.0f} bytes a step")
    return 1 if grown > args.most * MIB else 0


if __name__ == "__main__":
    sys.exit(main())
