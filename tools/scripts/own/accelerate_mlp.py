# SPDX-License-Identifier: Apache-2.0
"""A training loop with accelerate: accelerate_mlp.py neuron|cpu."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(cpu=sys.argv[1] == "cpu")
inputs = torch.randn(64, 16)
loader = DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), 16)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 8)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        print(f"loss: {accelerator.gather(loss).mean().item():.6f}")
