# SPDX-License-Identifier: Apache-2.0
"""What torch_xla has for several ranks, against one process with the whole batch."""

import os

import pytest
import torch
import torch.distributed as dist
from together import RANK, RANKS, on, report
from torch import nn

from trnlab.errors import UsageError
from trnlab.frontends import vendor_imports

vendor_imports.install()
import torch_xla  # noqa: E402
import torch_xla.core.functions as xf  # noqa: E402
import torch_xla.core.xla_model as xm  # noqa: E402
import torch_xla.distributed.parallel_loader as pl  # noqa: E402
import torch_xla.distributed.xla_backend as xbn  # noqa: E402
import torch_xla.distributed.xla_multiprocessing as xmp  # noqa: E402
import torch_xla.runtime as xr  # noqa: E402
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer  # noqa: E402

torch.manual_seed(1)
INPUTS, TARGETS = torch.randn(8, 5), torch.randn(8, 3)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def trained(model, optimizer, inputs, targets, step):
    for x, y in pl.MpDeviceLoader(list(zip(inputs.chunk(2), targets.chunk(2))), next(model.parameters()).device):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        step(optimizer)
    return [p.detach().cpu() for p in model.parameters()]


def whole(make, clip=0.0):
    """One process with the batches of all ranks."""
    model = net()
    parts = [
        torch.cat([t.chunk(RANKS)[rank].chunk(2)[i] for rank in range(RANKS)])
        for t in (INPUTS, TARGETS)
        for i in range(2)
    ]

    def step(optimizer):
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()

    return trained(model, make(model.parameters()), torch.cat(parts[:2]), torch.cat(parts[2:]), step)


def collectives():
    assert (xr.world_size(), xr.global_ordinal(), xr.local_ordinal()) == (RANKS, RANK, RANK)
    assert isinstance(dist.group.WORLD, xbn.ProcessGroupXla)
    given = on([1.0 + RANK])
    assert xm.all_reduce(xm.REDUCE_SUM, given, scale=2.0).item() == RANKS * (RANKS + 1)
    assert given.item() == 1.0 + RANK
    assert xm.all_reduce(xm.REDUCE_MAX, given, groups=[[rank] for rank in range(RANKS)]).item() == 1.0 + RANK
    listed = [on([1.0]), on([2.0 * RANK])]
    xm.all_reduce(xm.REDUCE_SUM, listed)
    assert [t.item() for t in listed] == [RANKS, RANKS * (RANKS - 1)]
    table = torch.arange(4.0).reshape(2, 2).to("xla") + 10 * RANK
    assert xm.all_gather(table, 1).cpu()[0].tolist() == [0, 1, 10, 11]
    assert xm.reduce_scatter(xm.REDUCE_SUM, table, 0.5, 1, RANKS).cpu()[:, 0].tolist() == [5.0 + RANK, 7.0 + RANK]
    assert xm.all_to_all(table, 1, 0, RANKS).cpu()[:, 0].tolist() == [RANK, 2 + RANK, 10 + RANK, 12 + RANK]
    shifted = xm.collective_permute(given, [(rank, (rank + 1) % RANKS) for rank in range(RANKS)])
    assert shifted.item() == 1.0 + (RANK - 1) % RANKS
    value = on([1.0 * RANK]).requires_grad_()
    (xf.all_gather(value) * on([1.0, 2.0])).sum().backward()
    assert value.grad.item() == RANKS * (1.0 + RANK)


def objects():
    assert xm.mesh_reduce("tag", RANK, sum) == sum(range(RANKS))
    assert xm.rendezvous("tag", bytes([RANK])) == [bytes([rank]) for rank in range(RANKS)]
    with pytest.raises(UsageError, match="rank 1 at 'tag1'"):
        xm.rendezvous(f"tag{RANK}")


def gradients():
    model = net().to("xla")
    xm.broadcast_master_param(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mine = (t.chunk(RANKS)[RANK] for t in (INPUTS, TARGETS))
    torch.testing.assert_close(
        trained(model, optimizer, *mine, xm.optimizer_step), whole(lambda p: torch.optim.SGD(p, lr=0.1))
    )


def parts():
    model = net().to("xla")
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, max_norm=0.5, lr=0.1)
    assert optimizer.base_optimizer.param_groups[0]["params"][0].shape == (4, 5)  # 7 rows, padded
    mine = (t.chunk(RANKS)[RANK] for t in (INPUTS, TARGETS))
    torch.testing.assert_close(
        trained(model, optimizer, *mine, lambda o: o.step()), whole(lambda p: torch.optim.AdamW(p, lr=0.1), clip=0.5)
    )


def files():
    xm.save({"rank": on([1.0 * RANK])}, "saved.pt", global_master=True)
    xm.rendezvous("saved")
    assert torch.load("saved.pt")["rank"].item() == 0


def meshes():
    """A group is a row of a mesh, which its members alone make."""
    alone = [[rank] for rank in range(RANKS)]
    mine = dist.new_group([RANK], pg_options={"xla_pg_options": {"mesh": alone}})
    assert (dist.get_process_group_ranks(mine), mine._mesh) == ([RANK], alone)
    whole = [list(range(RANKS))]
    every = dist.new_group(None, pg_options={"xla_pg_options": {"mesh": whole}})
    given = on([1.0 + RANK])
    dist.all_reduce(given, group=every)
    assert given.item() == xm.all_reduce(xm.REDUCE_SUM, on([1.0 + RANK]), groups=every._mesh).item() == 3.0
    if RANK:  # the others know nothing of it
        dist.new_group([1], pg_options={"xla_pg_options": {"mesh": [[1]]}})
    assert dist.new_group([0, 1])._mesh == whole


class Marked(torch.autograd.Function):
    """A backward pass that names the device."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        assert grad.device == xm.xla_device()
        return grad * torch.full((1,), 2.0, device="xla")


def names():
    """The device is xla to a script, also in a backward pass, and in a thread of its own."""
    value = on([1.0]).requires_grad_()
    assert (value.device, value.is_xla, torch.device("xla", 0)) == (xm.xla_device(), True, value.device)
    assert torch.zeros(1).device.type == "cpu"
    Marked.apply(value).sum().backward()
    assert value.grad.item() == 2.0
    turned = torch.arange(6.0).reshape(2, 3).to("xla").t()
    assert turned.view(6).tolist() == [0, 3, 1, 4, 2, 5]  # tensors of torch_xla have no strides
    if RANK == 0:
        torch.save({"weight": torch.ones(2)}, "weight.pt")
        assert torch.load("weight.pt", map_location=xm.xla_device())["weight"].device.type == "xla"


dist.init_process_group("xla", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=RANK, world_size=RANKS)
assert torch_xla.device_count() == RANKS
xmp.spawn(lambda rank: report([collectives, objects, gradients, parts, files, meshes, names]))
