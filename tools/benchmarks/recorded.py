# SPDX-License-Identifier: Apache-2.0
"""A training step that nobody edited, whose operators are recorded, against the same step by `compile_step`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import lines
from trnlab import chips
from trnlab.frontends.torch import compile_step, recording
from trnlab.runtime.session import Session, activate

ROUNDS = 40


def made(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Three linear layers and AdamW, small enough that what is measured is not arithmetic."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    return model, torch.optim.AdamW(model.parameters(), 1e-3)


def stepping(device: str) -> Callable[[], Any]:
    """A step as people write it."""
    model, optimizer = made(device)
    x, y = torch.ones(8, 16).to(device), torch.arange(8).remainder(4).to(device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def compiled() -> Callable[[], Any]:
    """The same step, captured."""
    step = compile_step(*made("neuron"), lambda model, x, y: F.cross_entropy(model(x), y))
    x, y = torch.ones(8, 16).to("neuron"), torch.arange(8).remainder(4).to("neuron")
    return lambda: step(x, y)


def processor_seconds(function: Callable[[], Any]) -> float:
    """What one call takes of the processor."""
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    """Measure and report."""
    with activate(Session(chips.target("trn1.2xlarge"), "fp32")):
        ways = [stepping("neuron"), recording.flush, compiled(), stepping("cpu")]
        for _ in range(4):
            for way in ways:
                way()
        took = [[processor_seconds(way) for way in ways] for _ in range(ROUNDS)]
    record, compute, captured, eager = (min(column) * 1e3 for column in zip(*took))
    note = f"{record:.1f} ms to record, {compute:.1f} ms to compute, {captured:.1f} ms by compile_step"
    lines.report(
        [
            lines.at_most("a recorded step / compile_step", (record + compute) / captured, 4.5, "x", note),
            lines.at_most("computing a recorded step / compile_step", compute / captured, 2, "x"),
            lines.at_most(
                "recording a step / PyTorch's eager step", record / eager, 12, "x", f"{eager:.2f} ms there"
            ),
        ]
    )


if __name__ == "__main__":
    main()
