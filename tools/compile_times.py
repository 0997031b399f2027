# SPDX-License-Identifier: Apache-2.0
"""Measures what compiling takes here, and fits what `trnlab.runtime.cache.compile_cost` predicts it with.

    python -m tools.compile_times

Steps of training are captured and compiled without a cache, in processor seconds of this process, so that a busy
machine changes little. Printed are operations, operations of distinct kinds, seconds, and what the fit says of each;
at the end the figures to put into `compile_cost`, and by how much it is off.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from trnlab import chips
from trnlab.frontends.torch.capture.step_capture import capture_step
from trnlab.graph.ir import Graph
from trnlab.runtime.cache.compile_cost import GraphSize, size_of
from trnlab.runtime.device import compile_graph
from trnlab.runtime.session import Session

LETTERS, SEQUENCE, BATCH = 65, 64, 4


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = (
            t.view(rows, length, 4, width // 4).transpose(1, 2) for t in self.mixed(self.first(x)).chunk(3, -1)
        )
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(rows, length, width))
        return x + self.wide(self.second(x))


def gpt(width: int, layers: int) -> Callable[[], Graph]:
    """The step of a small GPT."""

    def made() -> Graph:
        model = nn.Sequential(
            nn.Embedding(LETTERS, width), *(_Block(width) for _ in range(layers)), nn.Linear(width, LETTERS)
        )
        ids = torch.randint(LETTERS, (BATCH, SEQUENCE))
        return _captured(model, ids, ids)

    return made


def mlp(width: int, layers: int) -> Callable[[], Graph]:
    """The step of a row of linear layers."""

    def made() -> Graph:
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU())]
        return _captured(nn.Sequential(*parts), torch.randn(8, width), torch.randint(width, (8,)))

    return made


def convolutions(channels: int, layers: int) -> Callable[[], Graph]:
    """The step of convolutions with normalisation."""

    def made() -> Graph:
        first = [nn.Conv2d(3, channels, 3, padding=1)]
        more = [
            part
            for _ in range(layers)
            for part in (nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1))
        ]
        last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
        model = nn.Sequential(*first, *more, *last)
        return _captured(model, torch.randn(4, 3, 16, 16), torch.randint(10, (4,)))

    return made


def _captured(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Graph:
    model = model.to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = model(x)
        return nn.functional.cross_entropy(found.reshape(-1, found.shape[-1]), y.reshape(-1))

    return capture_step(model, optimizer, loss, (x.to("neuron"), y.to("neuron"))).graph


STEPS = {
    "mlp of 2": mlp(64, 2),
    "mlp of 8": mlp(64, 8),
    "wide mlp of 4": mlp(512, 4),
    "gpt of 1": gpt(64, 1),
    "gpt of 2": gpt(64, 2),
    "gpt of 6": gpt(64, 6),
    "gpt of 12": gpt(64, 12),
    "wide gpt of 2": gpt(256, 2),
    "convolutions of 2": convolutions(16, 2),
    "convolutions of 6": convolutions(16, 6),
}


def measured(make: Callable[[], Graph]) -> tuple[GraphSize, float]:
    """The size of a step's graph, and processor seconds of compiling it."""
    graph = make()
    session = Session(chips.target("trn1.2xlarge"))
    started = time.process_time()
    compile_graph(graph, session)
    return size_of(graph), time.process_time() - started


def fitted(sizes: list[GraphSize], seconds: list[float]) -> np.ndarray:
    """Figures of `compile_cost` with the least squares of relative errors, none below zero."""
    rows = np.array([[1.0, s.ops, s.distinct_ops] for s in sizes])
    wanted = np.array(seconds)
    chosen = [0, 1, 2]
    while True:
        found = np.zeros(3)
        found[chosen] = np.linalg.lstsq(rows[:, chosen] / wanted[:, None], np.ones(len(wanted)), rcond=None)[0]
        if (found >= 0).all():
            return found
        chosen = [i for i in chosen if found[i] >= 0]


def main() -> None:
    """The command."""
    measured(STEPS["mlp of 2"])  # compiled loops of ours are read once
    rows = []
    for name, make in STEPS.items():
        size, seconds = measured(make)
        rows.append((name, size, seconds))
        print(f"{name:20}{size.ops:7} ops {size.distinct:6} distinct {seconds:8.2f} s", flush=True)
    found = fitted([size for _, size, _ in rows], [seconds for *_, seconds in rows])
    print(f"once {found[0]:.4f} s, an op {found[1]:.6f} s, a distinct op {found[2]:.6f} s")
    off = [float(found @ [1.0, size.ops, size.distinct_ops]) / seconds for _, size, seconds in rows]
    print(f"predicted over measured: {min(off):.2f} to {max(off):.2f}")
    for (name, *_), ratio in zip(rows, off):
        print(f"{name:20}{ratio:6.2f}")


if __name__ == "__main__":
    main()
