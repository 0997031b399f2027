# SPDX-License-Identifier: Apache-2.0
"""What recipes have in common: their options, and steps on random samples."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trnlab.frontends.torch import compile_step

DEVICE = "neuron"
STEPS = 2
FORMS = {"bf16": torch.bfloat16, "fp32": torch.float32}


def options(description: str | None) -> argparse.ArgumentParser:
    """Options of every recipe."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16, help="samples of a step of one rank")
    parser.add_argument("--precision", choices=FORMS, default="bf16", help="of weights, activations and products")
    parser.add_argument("--again", action="store_true", help="make activations of blocks again on the way back")
    parser.add_argument("--steps", type=int, default=STEPS)
    return parser


def numbers(text: str) -> tuple[int, ...]:
    """Numbers of a list with commas."""
    return tuple(map(int, text.split(",")))


class Blocks(nn.ModuleList):
    """Modules one after the other; `again`: only what enters each is kept for the way back."""

    again = False

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        """What the last gives."""
        for block in self:
            x = checkpoint(block, x, *more, use_reentrant=False) if self.again else block(x, *more)
        return x


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[..., Tensor],
    batch: Callable[[], Sequence[Tensor]],
    steps: int,
) -> None:
    """So many steps on random samples."""
    step = compile_step(model, optimizer, loss)
    for _ in range(steps):
        step(*(x.to(DEVICE) for x in batch()))
