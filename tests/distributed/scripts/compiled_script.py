# SPDX-License-Identifier: Apache-2.0
"""Captured steps of replicas and of shards, as torchrun starts them: three of AdamW each, held against one process.

The argument is the number of threads that the simulator has on each rank. What was learned is printed as a digest.
"""

import hashlib
import sys

import torch
import torch.distributed as dist
from steps import OTHER_ORDER, SAME_ORDER, STEPS, Alone, near, on_device, optimizer_of
from together import RANK, RANKS
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from trnlab.frontends.torch import compile_step
from trnlab.sim.functional import machine

ROWS, WIDTH = 64, 48
threads = int(sys.argv[1])
machine.cpu_count = lambda: threads * RANKS
assert machine.RunOptions().threads == threads
torch.manual_seed(1)
INPUTS, TARGETS = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)


def model():
    torch.manual_seed(2)
    parts = [nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)]
    return nn.Sequential(*parts)


def shards(made):
    fully_shard(made[0])
    return fully_shard(made)


def loss_of(made, x, y):
    return mse_loss(made(x), y)


dist.init_process_group()
alone = Alone(model(), lambda made: loss_of(made, INPUTS, TARGETS))
batch = on_device(INPUTS.chunk(RANKS)[RANK], TARGETS.chunk(RANKS)[RANK])
for way in (DistributedDataParallel, shards):
    made = way(model().to("neuron"))
    step = compile_step(made, optimizer_of(made.parameters()), loss_of)
    losses = torch.stack([step(*batch).cpu() for _ in range(STEPS)])
    inner = getattr(made, "module", made)
    for name, parameter in inner.named_parameters():
        near(parameter, alone.parameters[name], OTHER_ORDER, name)
    meant = torch.tensor(alone.losses)
    dist.all_reduce(mean := losses.clone(), dist.ReduceOp.AVG)
    near(mean, meant, SAME_ORDER, "the losses")
    own = [losses, *(getattr(p, "_local_tensor", p).detach().cpu() for p in inner.parameters())]
    bits = hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in own)).hexdigest()
    # one write for the whole line: the ranks share what they print to
    print(f"learned {way.__name__} {RANK} {bits}\n", end="", flush=True)
dist.destroy_process_group()
