# SPDX-License-Identifier: Apache-2.0
"""The calls of horovod.torch, and training with them, against one process with the whole batch."""

import torch
from together import DEVICE, RANK, RANKS, meet, on, report
from torch import nn

import trnlab.frontends.torch.horovod as hvd


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


torch.manual_seed(1)
INPUTS, TARGETS = torch.randn(8, 8), torch.randn(8, 4)


def step(model, optimizer, inputs, targets, parts=1):
    optimizer.zero_grad()
    for x, y in zip(inputs.chunk(parts), targets.chunk(parts)):
        (nn.functional.mse_loss(model(x), y) / parts).backward()
    optimizer.step()


def calls():
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (RANK, RANKS, RANK, RANKS)
    assert hvd.allreduce(on([1.0 * RANK])).item() == sum(range(RANKS)) / RANKS
    assert hvd.allreduce(on([1.0 * RANK]), op=hvd.Sum).item() == sum(range(RANKS))
    gathered = hvd.allgather(torch.full((RANK + 1, 2), 1.0 * RANK, device=DEVICE))
    assert gathered[:, 0].cpu().tolist() == [1.0 * rank for rank in range(RANKS) for _ in range(rank + 1)]
    assert hvd.broadcast(on([1.0 * RANK]), 1).item() == 1
    assert hvd.broadcast_object({"from": RANK}, 1) == {"from": 1}


def training_is_that_of_one_process():
    for parts in (1, 2):
        alone = net()
        optimizer = torch.optim.AdamW(alone.parameters(), 1e-2)
        for _ in range(3):
            step(alone, optimizer, INPUTS, TARGETS)
        model = net().to(DEVICE)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(RANK)  # which rank 0's values take the place of
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2 * (1 + RANK))
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=parts)
        mine = [t.chunk(RANKS)[RANK].to(DEVICE) for t in (INPUTS, TARGETS)]
        for _ in range(3):
            step(model, optimizer, *mine, parts)
        for got, meant in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(got.detach().cpu(), meant.detach(), rtol=0, atol=1e-6)


meet("horovod")
hvd.init()
report([calls, training_is_that_of_one_process])
hvd.shutdown()
