"""Data parallel training with checkpoints; each rank prints its losses, as many bits as they have."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trnlab import checkpoint
from trnlab.frontends.torch import compile_step

dist.init_process_group("neuron")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Linear(8, 4).to("neuron")
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
step = compile_step(DistributedDataParallel(model), optimizer, lambda m, x, y: nn.functional.mse_loss(m(x), y))
run = checkpoint.resume(model=model, optimizer=optimizer)
data = torch.randn(64, 12, generator=torch.Generator().manual_seed(1))
while run.step < int(sys.argv[1]):
    batch = data.roll(run.step, 0)[:8].chunk(ranks)[rank].to("neuron")
    loss = step(batch[:, :8], batch[:, 8:])
    run.stepped()
    run.wait()  # so that it is known which checkpoint there is when a rank dies
    os.write(1, f"loss {run.step} of {rank}/{ranks}: {loss.item().hex()}\n".encode())
dist.destroy_process_group()
