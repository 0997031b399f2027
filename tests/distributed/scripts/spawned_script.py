# SPDX-License-Identifier: Apache-2.0
"""Ranks that a script starts itself by `torch.multiprocessing.spawn`, and that call their device by their number."""

import os
import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trnlab.errors import UsageError

RANKS = 2


def train(rank, where):
    device = torch.device("neuron", rank)
    torch.neuron.set_device(device)  # before there is a group
    if rank:  # which has been called by its number
        with pytest.raises(UsageError, match="TRN151"):
            torch.ones(1, device="neuron:2")
    dist.init_process_group("neuron", init_method=f"file://{where}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    alone = nn.Linear(4, 2)
    alone.load_state_dict(model.state_dict())
    model = DistributedDataParallel(model.to(device), device_ids=[rank])
    x = torch.arange(16.0).reshape(4, 4)
    model(x.chunk(RANKS)[rank].to(device)).square().mean().backward()
    alone(x).square().mean().backward()
    torch.testing.assert_close(model.module.weight.grad.cpu(), alone.weight.grad)
    print(f"rank {rank} is as one process", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    mp.spawn(train, args=(sys.argv[1],), nprocs=RANKS)
