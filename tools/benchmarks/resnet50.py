# SPDX-License-Identifier: Apache-2.0
"""A training step of ResNet-50, compiled and timed without any data: `make bench`.

25.6 M parameters, 64 images of 224 x 224, autocast to bf16, SGD with momentum. The architecture is the one of "Deep
Residual Learning for Image Recognition" (https://arxiv.org/abs/1512.03385) with its strides in the 3 x 3
convolutions, as usual today. Parameters and batch are fake tensors: shapes without memory.


    python -m benchmarks.resnet50 --calls 40     in tools/: where the step's time goes
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import calls, lines
from trnlab import chips, compiler
from trnlab.frontends.torch import capture_step
from trnlab.graph.flops import model_flops
from trnlab.graph.ir import Graph
from trnlab.program import Program
from trnlab.sim.timing import time_program
from trnlab.timeline import Timeline
from trnlab.units import PS_PER_S

BATCH, SIZE, CLASSES = 64, 224, 1000
LAYERS = (3, 4, 6, 3)
EXPANSION = 4
TARGETS = {"trn1": 0.3, "trn2": 0.25}


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, and what came in added."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * EXPANSION
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != out:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [N, C, H, W] to [N, 4 width, H / stride, W / stride]."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    """[N, 3, H, W] images to [N, 1000] logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for stage, count in enumerate(LAYERS):
            for i in range(count):
                width = 64 << stage
                blocks.append(Bottleneck(inputs, width, 2 if stage and i == 0 else 1))
                inputs = width * EXPANSION
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inputs, CLASSES)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of predicting the classes y [N]."""
        with torch.autocast("neuron", torch.bfloat16):
            x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 3, 2, 1)
            logits = self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))
            return F.cross_entropy(logits, y)


@dataclass(frozen=True)
class Measured:
    """One step, and what it took to get it."""

    program: Program
    timeline: Timeline
    flops: float
    seconds: float
    spent: str

    @property
    def step_s(self) -> float:
        """Seconds of a step on the chip."""
        return self.timeline.total / PS_PER_S

    def mfu(self, chip: str) -> float:
        """Of the peak in bf16."""
        return self.flops / self.step_s / chips.get(chip).peak_flops("bfloat16")


def captured(batch: int = BATCH, size: int = SIZE) -> Graph:
    """The graph of a step."""
    with FakeTensorMode(), torch.device("neuron"):
        model = ResNet50()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        inputs = torch.zeros(batch, 3, size, size), torch.zeros(batch, dtype=torch.int64)
        return capture_step(model, optimizer, None, inputs).graph


def measure(graph: Graph, chip: str) -> Measured:
    """Compile and time."""
    start = time.perf_counter()
    program = compiler.compile(graph, chips.get(chip), {"precision": "bf16"})
    compiled = time.perf_counter()
    timeline = time_program(program, chips.get(chip))
    end = time.perf_counter()
    spent = f"compile {compiled - start:.0f} s, time {end - compiled:.0f} s"
    return Measured(program, timeline, model_flops(graph), end - start, spent)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=0, help="print that many kinds of calls, the longest first")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--chip", action="append", choices=tuple(TARGETS))
    options = parser.parse_args()
    graph = captured(options.batch, options.size)
    found = []
    for chip in options.chip or TARGETS:
        m = measure(graph, chip)
        size = f"{m.program.num_instructions / 1e6:.2f} M instructions"
        note = f"step {m.step_s * 1e3:.1f} ms; {m.spent}; {size}"
        what, target = f"ResNet-50, batch {options.batch}, on {chip}", TARGETS[chip]
        value = 100 * m.mfu(chip)
        found.append(lines.at_least(what, value, 100 * target, "% MFU", note))
        if options.calls:
            print(lines.table(found[-1:]))
            print(calls.page(calls.together(calls.shares(m.timeline)), options.calls))
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    found.append(lines.at_most("  compiled and timed in memory", peak_gb, 8, "GB"))
    lines.report(found)


if __name__ == "__main__":
    main()
