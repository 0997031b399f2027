# SPDX-License-Identifier: Apache-2.0
"""Every way of PyTorch's to train on several ranks, against one process with the whole batch."""

import copy
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from together import DEVICE, RANK, RANKS, meet, report
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import trnlab.frontends.torch as neuron

NEAR = 1e-6
STEPS = 3


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


torch.manual_seed(1)
INPUTS, TARGETS = torch.randn(8, 8), torch.randn(8, 4)
MINE = [t.chunk(RANKS)[RANK].to(DEVICE) for t in (INPUTS, TARGETS)]
WHOLE = [t.to(DEVICE) for t in (INPUTS, TARGETS)]


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def alone():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    gradients = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, (INPUTS, TARGETS)).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
    return list(model.parameters()), gradients


PARAMETERS, GRADIENTS = alone()


def near(got, meant):
    for mine, other in zip(got, meant, strict=True):
        whole = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
        torch.testing.assert_close(whole.detach().cpu(), other.detach(), rtol=0, atol=NEAR)


def trained(model, optimizer, batch=None, gradients=True):
    batch, kept = batch or MINE, list(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        if gradients:
            near([p.grad for p in kept], GRADIENTS[step])
        optimizer.step()
    near(kept, PARAMETERS)


def data_parallel():
    for options in (
        {},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.0005},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"device_ids": [RANK]},
    ):
        model = DistributedDataParallel(net().to(DEVICE), **options)
        trained(model, torch.optim.AdamW(model.parameters(), 1e-2))


def gradients_add_up_without_synchronization():
    model = DistributedDataParallel(net().to(DEVICE))
    half = len(MINE[0]) // 2
    with model.no_sync():
        (loss_of(model, [t[:half] for t in MINE]) / 2).backward()
    (loss_of(model, [t[half:] for t in MINE]) / 2).backward()
    near([p.grad for p in model.parameters()], GRADIENTS[0])


def a_captured_step():
    model = net().to(DEVICE)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), 1e-2)
    step = neuron.compile_step(wrapped, optimizer, lambda inner, *batch: loss_of(inner, batch))
    for _ in range(STEPS):
        step(*MINE)
    near(model.parameters(), PARAMETERS)


def captured_shards():
    """`fully_shard` within `compile_step`, with an eager forward pass between steps."""
    model = net().to(DEVICE)
    for place in (0, 2, 4):
        fully_shard(model[place])
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    step = neuron.compile_step(model, optimizer, lambda inner, *batch: loss_of(inner, batch))
    for _ in range(STEPS):
        step(*MINE)
        with torch.no_grad():
            loss_of(model, MINE)
    model.reshard()
    near(model.parameters(), PARAMETERS)


def bits_and_losses_repeat():
    losses, bits = [], []
    for _ in range(2):
        model = DistributedDataParallel(net().to(DEVICE))
        loss = loss_of(model, MINE)
        loss.backward()
        dist.all_reduce(loss := loss.detach(), dist.ReduceOp.AVG)
        losses.append(loss.item())
        bits.append([p.grad.cpu().numpy().tobytes() for p in model.parameters()])
    assert bits[0] == bits[1]
    listed = [None] * RANKS
    dist.all_gather_object(listed, (losses, bits))
    assert all(each == listed[0] for each in listed)


def zero_1():
    model = DistributedDataParallel(net().to(DEVICE))
    trained(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2))


def fully_sharded():
    mesh = init_device_mesh(DEVICE, (RANKS,))
    for model in (net().to(DEVICE), net()):  # of one on the host the parts move to the device
        for place in (0, 2, 4):
            fully_shard(model[place], mesh=mesh)
        fully_shard(model, mesh=mesh)
        trained(model, torch.optim.AdamW(model.parameters(), 1e-2))


def sharded_and_kept_on_the_host():
    for pinned in (True, False):
        model, mesh, offload = net(), init_device_mesh(DEVICE, (RANKS,)), CPUOffloadPolicy(pin_memory=pinned)
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh, offload_policy=offload)
        trained(model, torch.optim.AdamW(model.parameters(), 1e-2), gradients=False)
        assert all(parameter.to_local().device.type == "cpu" for parameter in model.parameters())


def hybrid_sharded():
    if RANKS == 4:
        model = net().to(DEVICE)
        fully_shard(model, mesh=init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("replicas", "shards")))
        trained(model, torch.optim.AdamW(model.parameters(), 1e-2))


def tensor_parallel(of=lambda model: model):
    model = net().to(DEVICE)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, init_device_mesh(DEVICE, (RANKS,)), plan)
    trained(of(model), torch.optim.AdamW(model.parameters(), 1e-2, foreach=False), WHOLE)


def compiled_tensor_parallel():
    tensor_parallel(lambda model: torch.compile(model, backend="neuron"))


def distributed_tensors():
    mesh = init_device_mesh(DEVICE, (RANKS,))
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    rows, columns = (distribute_tensor(x.to(DEVICE), mesh, [Shard(dim)]) for dim, x in enumerate((a, b)))
    near([rows @ columns, columns @ rows], [a @ b, b @ a])
    near([rows.redistribute(mesh, [Shard(1)]), rows.redistribute(mesh, [Replicate()])], [a, a])


def pipelines():
    parts = (slice(0, 2), slice(2, 5)) if RANKS == 2 else (slice(0, 1), slice(1, 3), slice(3, 4), slice(4, 5))
    for schedule_of in (ScheduleGPipe, Schedule1F1B):
        whole = net()
        part = copy.deepcopy(whole[parts[RANK]]).to(DEVICE)
        schedule = schedule_of(PipelineStage(part, RANK, RANKS, torch.device(DEVICE)), 4, nn.functional.mse_loss)
        if RANK == 0:
            schedule.step(WHOLE[0])
        else:
            schedule.step(**({"target": WHOLE[1]} if RANK == RANKS - 1 else {}))
        names = {id(p): place for place, p in enumerate(whole.parameters())}
        places = [names[id(p)] for p in whole[parts[RANK]].parameters()]
        near([p.grad for p in part.parameters()], [GRADIENTS[0][place] for place in places])


def checkpoints_of_shards():
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, 0)
    saved, loaded = net().to(DEVICE), net().to(DEVICE)
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
    fully_shard(saved)
    fully_shard(loaded)
    checkpoints.save(get_model_state_dict(saved), checkpoint_id=folder[0])
    checkpoints.load(get_model_state_dict(loaded), checkpoint_id=folder[0])
    near(loaded.parameters(), net().parameters())


meet("training", backend="neuron")
report(
    [
        data_parallel,
        a_captured_step,
        captured_shards,
        gradients_add_up_without_synchronization,
        bits_and_losses_repeat,
        zero_1,
        fully_sharded,
        sharded_and_kept_on_the_host,
        hybrid_sharded,
        tensor_parallel,
        compiled_tensor_parallel,
        distributed_tensors,
        pipelines,
        checkpoints_of_shards,
    ]
)
dist.destroy_process_group()
