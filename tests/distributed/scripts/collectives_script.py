# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch.distributed on neuron tensors, against what it means."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from together import DEVICE, RANK, RANKS, meet, on, report
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from trnlab.collectives import Collective
from trnlab.errors import CollectiveError
from trnlab.fabric import values
from trnlab.fabric.world import world_of
from trnlab.runtime import session

NEXT = (RANK + 1) % RANKS
BEFORE = (RANK - 1) % RANKS


def drawn(rank, count=37, dtype=torch.float32):
    return (torch.randn(count, generator=torch.Generator("cpu").manual_seed(rank)) * 9).to(dtype)


def equal(got, meant):
    torch.testing.assert_close(got.cpu(), meant, rtol=0, atol=0)


def sums_are_those_of_the_schedule_bit_for_bit():
    for dtype, name in (
        (torch.float32, None),
        (torch.bfloat16, "bfloat16"),
        (torch.float16, None),
        (torch.int32, None),
    ):
        for count in (1, 37, 5000, 400_000):
            mine = drawn(RANK, count, dtype).to(DEVICE)
            dist.all_reduce(mine)
            inputs = [drawn(rank, count, dtype) for rank in range(RANKS)]
            arrays = [t.float().numpy() if name else t.numpy() for t in inputs]
            arrays = [a.astype(name) if name else a for a in arrays]
            schedule = world_of("trn1.32xlarge", RANKS).schedule(
                Collective("all_reduce", (tuple(range(RANKS)),)), arrays[0].nbytes
            )
            meant = values.run(schedule, arrays)[RANK].astype(np.float64)
            np.testing.assert_array_equal(mine.cpu().double().numpy(), meant)


def reductions():
    given = [on([r + 1.0, -r, 3.0]) for r in range(RANKS)]
    stacked = torch.stack([t.cpu() for t in given])
    meant = {
        dist.ReduceOp.SUM: stacked.sum(0),
        dist.ReduceOp.AVG: stacked.sum(0) / RANKS,
        dist.ReduceOp.MAX: stacked.amax(0),
        dist.ReduceOp.MIN: stacked.amin(0),
        dist.ReduceOp.PRODUCT: stacked.prod(0),
    }
    for op, result in meant.items():
        mine = given[RANK].clone()
        dist.all_reduce(mine, op)
        equal(mine, result)
    mine = given[RANK].clone()
    dist.all_reduce(mine, torch._C._distributed_c10d._make_nccl_premul_sum(0.5))
    equal(mine, (stacked * 0.5).sum(0))
    bits = on([1 << RANK, 6], torch.int32)
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    equal(bits, torch.tensor([(1 << RANKS) - 1, 6], dtype=torch.int32))


def gathers():
    mine = on([RANK, 10.0 + RANK])
    listed = [torch.zeros(2, device=DEVICE) for _ in range(RANKS)]
    dist.all_gather(listed, mine)
    whole = torch.zeros(RANKS, 2, device=DEVICE)
    dist.all_gather_into_tensor(whole, mine)
    for rank in range(RANKS):
        equal(listed[rank], torch.tensor([rank, 10.0 + rank]))
        equal(whole[rank], torch.tensor([rank, 10.0 + rank]))
    uneven = [torch.zeros(rank + 1, device=DEVICE) for rank in range(RANKS)]
    dist.all_gather(uneven, torch.full((RANK + 1,), float(RANK), device=DEVICE))
    for rank in range(RANKS):
        equal(uneven[rank], torch.full((rank + 1,), float(rank)))
    root = [torch.zeros(2, device=DEVICE) for _ in range(RANKS)] if RANK == 1 else None
    dist.gather(mine, root, dst=1)
    if root:
        equal(torch.stack([t.cpu() for t in root]), whole.cpu())


def scatters():
    parts = on([[100.0 * RANK + rank] * 3 for rank in range(RANKS)])
    out = torch.zeros(3, device=DEVICE)
    meant = torch.full((3,), sum(100.0 * rank + RANK for rank in range(RANKS)))
    dist.reduce_scatter_tensor(out, parts)
    equal(out, meant)
    dist.reduce_scatter(out.zero_(), list(parts))
    equal(out, meant)
    dist.scatter(out, list(parts) if RANK == 0 else None, src=0)
    equal(out, torch.full((3,), float(RANK)))
    mine = on([RANK + 1.0])
    dist.reduce(mine, dst=1)
    equal(mine, torch.tensor([RANKS * (RANKS + 1) / 2 if RANK == 1 else RANK + 1.0]))


def broadcasts_and_objects():
    mine = on([float(RANK)])
    dist.broadcast(mine, src=1)
    equal(mine, torch.tensor([1.0]))
    listed = [None] * RANKS
    dist.all_gather_object(listed, {"rank": RANK})
    assert listed == [{"rank": rank} for rank in range(RANKS)]
    objects = ["from 0", RANK] if RANK == 0 else [None, None]
    dist.broadcast_object_list(objects, src=0)
    assert objects == ["from 0", 0]


def all_to_alls():
    out = torch.zeros(RANKS, device=DEVICE)
    dist.all_to_all_single(out, on([10.0 * RANK + rank for rank in range(RANKS)]))
    equal(out, torch.tensor([10.0 * rank + RANK for rank in range(RANKS)]))
    gives = [rank + RANK for rank in range(RANKS)]  # rank r gives r + p rows to p
    given = on([[float(RANK), float(rank)] for rank in range(RANKS) for _ in range(gives[rank])])
    out = torch.zeros(sum(gives), 2, device=DEVICE)
    dist.all_to_all_single(out, given, gives, gives)
    equal(out, torch.tensor([[float(rank), float(RANK)] for rank in range(RANKS) for _ in range(gives[rank])]))
    outs = [torch.zeros(rank + RANK, device=DEVICE) for rank in range(RANKS)]
    dist.all_to_all(outs, [torch.full((rank + RANK,), float(RANK), device=DEVICE) for rank in range(RANKS)])
    for rank in range(RANKS):
        equal(outs[rank], torch.full((rank + RANK,), float(rank)))


def transfers():
    got = torch.zeros(3, device=DEVICE)
    works = [dist.isend(on([1.0 * RANK] * 3), NEXT), dist.irecv(got, BEFORE)]
    for work in works:
        work.wait()
    equal(got, torch.full((3,), float(BEFORE)))
    ops = [dist.P2POp(dist.irecv, got, BEFORE), dist.P2POp(dist.isend, on([2.0 * RANK] * 3), NEXT)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    equal(got, torch.full((3,), 2.0 * BEFORE))
    ops = [dist.P2POp(dist.isend, on([3.0 * RANK] * 3), RANK), dist.P2POp(dist.irecv, got, RANK)]  # to itself
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    equal(got, torch.full((3,), 3.0 * RANK))
    if RANK == 0:
        assert dist.recv(got) == 1  # from anybody
        equal(got, torch.full((3,), 5.0))
    elif RANK == 1:
        dist.send(on([5.0] * 3), 0)


def groups_and_futures():
    pairs = [dist.new_group([rank, rank + 1]) for rank in range(0, RANKS, 2)]
    group = pairs[RANK // 2]
    mine = on([float(RANK)])
    dist.all_reduce(mine, group=group)
    equal(mine, torch.tensor([2.0 * (RANK // 2 * 2) + 1]))
    work = dist.all_reduce(on([1.0]), async_op=True)
    (summed,) = work.get_future().then(lambda future: future.value()).wait()
    equal(summed, torch.tensor([float(RANKS)]))
    assert work.is_completed()
    with dist._coalescing_manager(async_ops=True) as manager:
        several = [on([1.0, RANK]), on([[2.0]])]
        for each in several:
            dist.all_reduce(each)
    manager.wait()
    equal(several[1], torch.tensor([[2.0 * RANKS]]))
    dist.barrier()


def functional_collectives():
    import torch.distributed._functional_collectives as functional

    equal(functional.all_reduce(on([RANK + 1.0]), "sum", dist.group.WORLD), torch.tensor([RANKS * (RANKS + 1) / 2]))
    gathered = functional.all_gather_tensor(on([[1.0 * RANK]]), 0, dist.group.WORLD)
    equal(gathered, torch.arange(float(RANKS))[:, None])
    torch.ops._c10d_functional.all_gather_into_tensor_out(
        on([[2.0 * RANK]]), RANKS, dist.group.WORLD.group_name, out=gathered
    )
    equal(gathered, torch.arange(float(RANKS))[:, None] * 2)
    scattered = functional.reduce_scatter_tensor(on([1.0] * RANKS), "sum", 0, dist.group.WORLD)
    equal(scattered, torch.tensor([float(RANKS)]))
    equal(functional.broadcast(on([1.0 * RANK]), 1, dist.group.WORLD), torch.tensor([1.0]))


def operators_are_seen_by_modes():
    """Every collective once, as an operator, and with the same result."""
    one, whole = on([RANK + 1.0]), on([0.0] * RANKS)
    parts = list(whole.split(1))
    peer = (RANK + 1) % 2
    with CommDebugMode() as mode, Listed() as listed:
        dist.all_reduce(one, dist.ReduceOp.AVG)
        dist.all_gather_into_tensor(whole, one)
        dist.reduce_scatter_tensor(one, whole)
        dist.broadcast(one, 0)
        dist.all_gather(parts, one)
        dist.reduce_scatter(one, parts, dist.ReduceOp.MAX)
        dist.scatter(one, parts if RANK == 0 else None, 0)
        dist.gather(one, parts if RANK == 1 else None, 1)
        dist.reduce(one, 0)
        dist.all_to_all_single(torch.empty_like(whole), whole)
        dist.all_to_all(list(torch.empty_like(whole).split(1)), parts)
        if RANK < 2:
            dist.batch_isend_irecv([dist.P2POp(dist.isend, one, peer), dist.P2POp(dist.irecv, one.clone(), peer)])
        asked = dist.all_reduce(one, async_op=True)
        asked.wait()
    names = [
        "allreduce_",
        "_allgather_base_",
        "_reduce_scatter_base_",
        "broadcast_",
        "allgather_",
        "reduce_scatter_",
        "scatter_",
        "gather_",
        "reduce_",
        "alltoall_base_",
        "alltoall_",
    ]
    assert mode.get_total_counts() == len(names) + 1, mode.get_comm_counts()
    assert [name for name in listed.names if name not in ("send", "recv_")] == [*names, "allreduce_"]
    assert sorted(name for name in listed.names if name in ("send", "recv_")) == ["recv_", "send"] * (RANK < 2)
    mean = (RANKS + 1) / 2
    equal(one, torch.tensor([mean * RANKS * (2 * RANKS - 1)]))


class Listed(TorchDispatchMode):
    """The names of what operators of collectives it saw."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


def tensors_of_other_classes():
    """Made of others, which are exchanged one after the other; a class that does not want to says so itself."""

    def two(first, second):
        return TwoTensor(on([first]), on([second]))

    def both(tensor, first, second):
        equal(tensor.a, torch.tensor([first]))
        equal(tensor.b, torch.tensor([second]))

    summed, scattered = two(RANK + 1.0, 10.0 * (RANK + 1)), two(0.0, 0.0)
    dist.all_reduce(summed)
    both(summed, RANKS * (RANKS + 1) / 2, 5.0 * RANKS * (RANKS + 1))
    parts = [two(1.0 + rank, 2.0 + rank) for rank in range(RANKS)]
    dist.scatter(scattered, parts if RANK == 0 else None, 0)
    both(scattered, 1.0 + RANK, 2.0 + RANK)
    asked = dist.broadcast(summed.mul_(RANK), 1, async_op=True)
    asked.wait()
    both(summed, RANKS * (RANKS + 1) / 2, 5.0 * RANKS * (RANKS + 1))
    shared = distribute_tensor(on([1.0] * RANKS), init_device_mesh(DEVICE, (RANKS,)), [Shard(0)])
    with pytest.raises(NotImplementedError, match="allreduce_"):
        dist.all_reduce(shared)
    with pytest.raises(CollectiveError, match="TRN275"):
        dist.all_reduce(TwoTensor(torch.ones(1), torch.ones(1)))


def sparse_sums():
    """As gloo has them on the host: any dimensions may be sparse, and ranks may have other places."""
    for place in ("cpu", DEVICE):
        for shape, sparse in (((RANKS, 3), 1), ((RANKS, 3), 2), ((RANKS, 2, 2), 1)):
            each = [torch.zeros(shape) for _ in range(RANKS)]
            for rank, dense in enumerate(each):
                dense[: rank + 1, 0] = rank + 1.0
                dense[rank] += 0.5
            total = torch.stack(each).sum(0)
            for op, meant in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, total / RANKS)):
                mine = each[RANK].to_sparse(sparse).to(place)
                dist.all_reduce(mine, op)
                assert (mine.is_sparse, mine.device.type) == (True, place)
                equal(mine.to_dense(), meant)
        nothing = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.long), torch.empty(0, 2), (3, 2)).to(place)
        dist.all_reduce(nothing, async_op=True).wait()
        assert nothing.to_dense().abs().sum().item() == 0
    with pytest.raises(CollectiveError, match="TRN275"):
        dist.all_reduce(torch.eye(2).to_sparse(), dist.ReduceOp.MAX)
    with pytest.raises(CollectiveError, match="TRN277"):
        dist.all_reduce(torch.eye(RANK + 1).to_sparse())
    table = torch.nn.Embedding(6, 2, sparse=True, _weight=torch.ones(6, 2)).to(DEVICE)
    model = torch.nn.parallel.DistributedDataParallel(table)
    model(on([RANK, RANK + 1], torch.int64)).sum().backward()
    rows = [sum(row in (rank, rank + 1) for rank in range(RANKS)) / RANKS for row in range(6)]
    equal(table.weight.grad.to_dense(), torch.tensor(rows)[:, None].expand(6, 2))


def no_group_is_made_that_nobody_holds():
    """PyTorch drops those of other backends, and connections that other ranks still make would break."""
    with patch.object(distributed_c10d, "ProcessGroupGloo", side_effect=AssertionError("a group of gloo")):
        group = dist.new_group(range(RANKS))
    mine = torch.ones(1)
    dist.all_reduce(mine, group=group)
    equal(mine, torch.tensor([float(RANKS)]))


def time_is_counted():
    record = session.current().counters.fabric.record()
    assert record["ranks"] == RANKS
    assert record["place"] == {"instance": 0, "chip": RANK // 2, "core": RANK % 2}
    assert record["seconds"] > 0
    assert record["by_operation"]["all_reduce"]["calls"] > 0
    before = record["by_operation"]["all_reduce"]["seconds"]
    dist.all_reduce(torch.zeros(1 << 20, device=DEVICE))
    after = session.current().counters.fabric.record()["by_operation"]["all_reduce"]["seconds"]
    cost = world_of("trn1.32xlarge", RANKS).cost(Collective("all_reduce", (tuple(range(RANKS)),)), 4 << 20)
    assert abs(after - before - cost.seconds) < 1e-12


meet("both", backend="cpu:gloo,neuron:neuron")
report([reductions, broadcasts_and_objects, transfers, no_group_is_made_that_nobody_holds])
dist.destroy_process_group()
meet("collectives", backend=None)
report(
    [
        sums_are_those_of_the_schedule_bit_for_bit,
        reductions,
        gathers,
        scatters,
        broadcasts_and_objects,
        all_to_alls,
        transfers,
        groups_and_futures,
        functional_collectives,
        operators_are_seen_by_modes,
        tensors_of_other_classes,
        sparse_sums,
        time_is_counted,
    ]
)
dist.destroy_process_group()
