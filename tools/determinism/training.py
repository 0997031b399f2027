# SPDX-License-Identifier: Apache-2.0
"""The script that is run: dropout, moments, two forms of the batch, sets and dictionaries on the way."""

from __future__ import annotations

import torch
from torch import nn

from trnlab.frontends.torch import compile_step

torch.manual_seed(0)
names = {"first", "second", "third"}  # in another order with each hash seed
layers = {name: nn.Linear(16, 16) for name in sorted(names)}
model = nn.Sequential(nn.ModuleDict(layers)["first"], nn.Dropout(0.2), nn.GELU(), layers["second"], nn.Linear(16, 4))
model = model.to("neuron")
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
step = compile_step(model, optimizer, lambda model, x, y: nn.functional.cross_entropy(model(x), y))
for i in range(4):
    x = torch.randn(8 + 8 * (i % 2), 16)
    y = torch.randint(0, 4, (len(x),))
    print(f"loss {step(x.to('neuron'), y.to('neuron')).item().hex()}", flush=True)
print(f"weights {[p.double().sum().item().hex() for p in model.cpu().parameters()]}")
