# SPDX-License-Identifier: Apache-2.0
"""Two ways to share out a job at once, on four ranks; and losses whose classes are on several ranks."""

import torch
from context_checks import context
from pipeline_checks import INPUTS as ROWS
from pipeline_checks import TARGETS as MEANT
from pipeline_checks import pipeline
from steps import Alone, average, on_device, train
from together import DEVICE, RANKS
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

WIDTH, CLASSES = 8, 12


def net():
    torch.manual_seed(10)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))


torch.manual_seed(11)
INPUTS, LABELS = torch.randn(16, WIDTH), torch.randint(0, CLASSES, (16,))
PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


def alone():
    return Alone(net(), lambda model: loss_of(model, INPUTS, LABELS))


def mesh_of(first, second):
    return init_device_mesh(DEVICE, (2, 2), mesh_dim_names=(first, second))


def batch_of(mesh):
    return on_device(*(t.chunk(mesh.size())[mesh.get_local_rank()] for t in (INPUTS, LABELS)))


def descend(model, batch, named=None, part=lambda name, tensor: tensor):
    def step():
        loss = loss_of(model, *batch)
        loss.backward()
        return loss.item()

    named = dict(model.named_parameters()) if named is None else named
    train(named, step, alone(), part=part, foreach=False)


def shards_of_tensors():
    mesh = mesh_of("data", "tensor")
    model = parallelize_module(net().to(DEVICE), mesh["tensor"], PLAN)
    for place in (0, 2, 4):
        fully_shard(model[place], mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    descend(model, batch_of(mesh["data"]))


def replicas_of_tensors():
    """DistributedDataParallel takes the local parts of DTensors, and hooks put them together again."""
    mesh = mesh_of("data", "tensor")
    model = parallelize_module(net().to(DEVICE), mesh["tensor"], PLAN)
    dims = {"0.weight": 0, "0.bias": 0, "2.weight": 1}
    _pre_dp_module_transform(model)
    named = dict(model.named_parameters())
    place = mesh["tensor"].get_local_rank()
    replicas = DistributedDataParallel(model, process_group=mesh["data"].get_group())
    descend(
        replicas,
        batch_of(mesh["data"]),
        named,
        lambda name, tensor: tensor.chunk(2, dims[name])[place] if name in dims else tensor,
    )


def replicas_of_pipelines():
    """Gradients of the stages are averaged after the schedule."""
    mesh = mesh_of("data", "stage")
    group, place = mesh["stage"].get_group(), mesh["stage"].get_local_rank()
    rank = mesh["data"].get_local_rank()
    for schedule, mine in ((Schedule1F1B, [place]), (ScheduleInterleaved1F1B, [place, place + 2])):
        pipeline(
            schedule,
            mine,
            2 * len(mine),
            group,
            whole=[t.chunk(2)[rank] for t in (ROWS, MEANT)],
            finish=lambda named: average([p.grad for p in named.values()], mesh["data"].get_group()),
        )


def pipelines_of_tensors():
    mesh = mesh_of("stage", "tensor")
    group, place = mesh["stage"].get_group(), mesh["stage"].get_local_rank()

    def in_parts(part):
        """Layers in turns by columns and by rows; the last of an odd number is whole."""
        layers = [f"{name}.0" for name, _ in part.named_children()]
        column = ColwiseParallel(output_layouts=Shard(-1))
        row = RowwiseParallel(input_layouts=Shard(-1), output_layouts=Replicate())
        plan = {name: row if turn % 2 else column for turn, name in enumerate(layers[: len(layers) // 2 * 2])}
        return parallelize_module(part, mesh["tensor"], plan)

    pipeline(Schedule1F1B, [place], 2, group, wrap=in_parts)


def shards_of_pipelines():
    """Layers of a stage are sharded over its replicas; all microbatches add up before gradients are averaged."""
    mesh = mesh_of("data", "stage")
    group, place = mesh["stage"].get_group(), mesh["stage"].get_local_rank()
    rank = mesh["data"].get_local_rank()

    def sharded(part):
        for layer in part:
            fully_shard(layer, mesh=mesh["data"])
        return fully_shard(part, mesh=mesh["data"])

    for schedule, mine in ((Schedule1F1B, [place]), (ScheduleInterleaved1F1B, [place, place + 2])):
        pipeline(schedule, mine, 2 * len(mine), group, sharded, [t.chunk(2)[rank] for t in (ROWS, MEANT)])


def shards_of_contexts():
    """Tokens lie on the two ranks of a ring, the batch on two rings, weights in parts on all four."""
    mesh = mesh_of("data", "context")
    everywhere = mesh["data", "context"]._flatten("everywhere")

    def sharded(model):
        for block in model:
            fully_shard(block, mesh=everywhere)
        return fully_shard(model, mesh=everywhere)

    context(mesh["context"], replicas=mesh["data"].get_group(), of=sharded, finish=lambda gradients: None)


def losses_in_parts():
    """Each rank has some of the classes; the loss needs no rank to have them all."""
    mesh = init_device_mesh(DEVICE, (RANKS,))
    model = net().to(DEVICE)
    parallelize_module(model, mesh, {**PLAN, "4": ColwiseParallel(use_local_output=False)})
    x, y = on_device(INPUTS, LABELS)

    def step():
        with loss_parallel():
            loss = loss_of(model, x, y)
            loss.backward()
        return loss.full_tensor().item()

    train(dict(model.named_parameters()), step, alone(), foreach=False)


PRODUCTS = [
    shards_of_tensors,
    replicas_of_tensors,
    replicas_of_pipelines,
    pipelines_of_tensors,
    shards_of_pipelines,
    shards_of_contexts,
]
CHECKS = [losses_in_parts, *(PRODUCTS if RANKS == 4 else [])]
