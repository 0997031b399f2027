# SPDX-License-Identifier: Apache-2.0
"""A small training that is killed: `trnlab run tools/storage/training.py STYLE LOG`, each step a line of the log.

STYLE `steps` is a script of compile_step that knows nothing of checkpoints; `eager` and `script` write their own, the
first around eager operators, the second around compile_step.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trnlab import checkpoint
from trnlab.frontends.torch import compile_step

EPOCHS = 3


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """With dropout, moments, and a rate that changes."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1)).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean squared error."""
    return (model(x) - y).square().mean()


def main(style: str, log: str) -> None:
    """Train, and append each step's loss, to the last bit, to the log."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer, scheduler = model_and_optimizer()
    step = compile_step(model, optimizer, loss_of)
    run = None if style == "steps" else checkpoint.resume(model=model, optimizer=optimizer, scheduler=scheduler)
    batches = (b for _ in range(EPOCHS) for b in loader) if run is None else run.batches(loader, epochs=EPOCHS)
    count = run.step if run is not None else 0
    with open(log, "a") as lines:
        for x, y in batches:
            loss = eager(model, optimizer, x, y) if style == "eager" else step(x.to("neuron"), y.to("neuron"))
            scheduler.step()
            count += 1
            lines.write(f"{count} {loss.item().hex()} {optimizer.param_groups[0]['lr']}\n")
            lines.flush()
            if run is not None:
                run.stepped()
        total = sum(p.double().sum().item() for p in model.cpu().parameters())
        lines.write(f"end {total.hex()}\n")


def eager(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A step as PyTorch has it."""
    loss = loss_of(model, x.to("neuron"), y.to("neuron"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


if __name__ == "__main__":
    main(*sys.argv[1:])
