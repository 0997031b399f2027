# SPDX-License-Identifier: Apache-2.0
"""The calls of horovod.torch, and training with them, against one process with the whole batch."""

import pytest
import torch
from together import DEVICE, RANK, RANKS, meet, on, report
from torch import nn

from trnlab.errors import UsageError
from trnlab.frontends import vendor_imports

vendor_imports.install()
import horovod.torch as hvd  # noqa: E402


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


def all_ranks(value):
    return [value(rank) for rank in range(RANKS)]


def handles_and_groups():
    mine = on([[1.0 * RANK, 2.0]] * RANKS)
    mean = sum(range(RANKS)) / RANKS
    handles = {
        "allreduce": hvd.allreduce_async(mine, op=hvd.Max),
        "grouped": hvd.grouped_allreduce_async([mine, mine + 1], prescale_factor=2.0, postscale_factor=0.5),
        "allgather": hvd.allgather_async(mine),
        "broadcast": hvd.broadcast_async(mine, 1, name="b"),
        "alltoall": hvd.alltoall_async(mine),
        "reducescatter": hvd.reducescatter_async(mine, op=hvd.Sum),
        "grouped gather": hvd.grouped_allgather_async([mine, mine]),
        "grouped scatter": hvd.grouped_reducescatter_async([mine]),
    }
    assert all(isinstance(hvd.poll(handle), bool) for handle in handles.values())
    got = {name: hvd.synchronize(handle) for name, handle in handles.items()}
    assert got["allreduce"][0].tolist() == [RANKS - 1.0, 2.0]
    assert [t[0].tolist() for t in got["grouped"]] == [[mean, 2.0], [mean + 1, 3.0]]
    assert got["allgather"].shape == (RANKS * RANKS, 2)
    assert got["broadcast"][0, 0].item() == 1
    assert got["alltoall"][:, 0].tolist() == all_ranks(float)
    assert got["reducescatter"].tolist() == [[float(sum(range(RANKS))), 2.0 * RANKS]]
    assert len(got["grouped gather"]) == 2
    assert got["grouped scatter"][0].tolist() == [[mean, 2.0]]
    assert mine[0, 0].item() == RANK
    hvd.allreduce_(mine)
    hvd.grouped_allreduce_([mine])
    assert mine[0, 0].item() == mean
    assert [t.item() for t in hvd.grouped_allreduce([on([1.0]), on([2.0])], op=hvd.Sum)] == [RANKS, 2.0 * RANKS]


def more_calls():
    rows, splits = hvd.alltoall(on([float(RANK)] * (RANKS + 1)), splits=[1] * (RANKS - 1) + [2])
    assert splits.tolist() == all_ranks(lambda rank: 2 if RANK == RANKS - 1 else 1)
    assert rows.tolist() == [float(rank) for rank in range(RANKS) for _ in range(splits[rank])]
    assert hvd.allreduce(on([1.5]), compression=hvd.Compression.fp16).tolist() == [1.5]
    assert hvd.reducescatter(on([1.0] * (RANKS + 1))).shape == ((2,) if RANK == 0 else (1,))
    assert hvd.allgather_object({"of": RANK}) == all_ranks(lambda rank: {"of": rank})
    assert hvd.broadcast_object_fn(1)(RANK) == 1
    apart = hvd.allreduce(on([1.0, 0.0] if RANK == 0 else [0.0, 1.0]), op=hvd.Adasum)
    assert apart.tolist() == [1.0, 1.0]  # what has nothing in common is added,
    same = hvd.allreduce(on([1.0, 2.0]), op=hvd.Adasum)
    torch.testing.assert_close(same.cpu(), torch.tensor([1.0, 2.0]))  # what is the same counts once
    one = hvd.add_process_set([1])
    if one.included():
        assert hvd.allreduce(on([7.0]), op=hvd.Sum, process_set=one).item() == 7
    assert hvd.join() in range(RANKS)
    hvd.barrier()
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous(), hvd.nccl_built()) == (0, 1, True, 0)
    with pytest.raises(UsageError, match="TRN278"):
        hvd.allreduce(on([1.0]), process_set=hvd.ProcessSet([0]))


def gradients_of_calls():
    weights = on([[1.0, 2.0]]) * (RANK + 1)
    x = on([[1.0, 1.0]]).requires_grad_()
    (hvd.allreduce(x, op=hvd.Sum) * weights).sum().backward()
    total = RANKS * (RANKS + 1) / 2
    assert x.grad.tolist() == [[total, 2 * total]]
    x.grad = None
    mean = total / RANKS  # of gathers and broadcasts Horovod takes the mean
    (hvd.allgather(x) * (RANK + 1)).sum().backward()
    assert x.grad.tolist() == [[mean, mean]]
    x.grad = None
    (hvd.broadcast(x, 0) * (RANK + 1)).sum().backward()
    assert x.grad.tolist() == [[mean, mean] if RANK == 0 else [0.0, 0.0]]
    y = on([[1.0]] * RANKS).requires_grad_()
    (hvd.alltoall(y) * (RANK + 1)).sum().backward()
    assert y.grad.flatten().tolist() == all_ranks(lambda rank: rank + 1.0)
    for op, times in ((hvd.Sum, RANKS), (hvd.Average, 1)):  # as Horovod has it, too
        y.grad = None
        (hvd.reducescatter(y, op=op) * (RANK + 1)).sum().backward()
        assert y.grad.flatten().tolist() == all_ranks(lambda rank: times * (rank + 1.0))  # noqa: B023


def numbers_names_and_sparse_tensors():
    """As Horovod's own tests have it (test/parallel/test_torch.py)."""
    whole = torch.tensor([3, -7, 10], dtype=torch.int32)
    for given in (whole, whole.to(DEVICE)):
        before = hvd.allreduce(given, op=hvd.Sum, prescale_factor=0.5)
        assert before.tolist() == [RANKS * int(0.5 * n) for n in whole.tolist()]
        after = hvd.allreduce(given, op=hvd.Sum, postscale_factor=0.25)
        assert after.tolist() == [int(0.25 * RANKS * n) for n in whole.tolist()]
    first = hvd.allreduce_async(on([1.0]), name="one")
    with pytest.raises(ValueError, match="'one' is on its way"):
        hvd.allgather_async(on([1.0]), name="one")
    hvd.synchronize(first)
    assert hvd.allreduce(on([1.0]), name="one").item() == 1
    with pytest.raises(hvd.HorovodInternalError, match="TRN277"):
        hvd.reducescatter(on(1.0))
    with pytest.raises(NotImplementedError):
        hvd.reducescatter(on([1.0] * RANKS), op=hvd.Adasum)
    dense = torch.tensor([[0.0, 1.0 + RANK], [float(RANK), 0.0]])
    sparse = hvd.sparse_allreduce_async(dense.to_sparse(), None, hvd.Average)()
    torch.testing.assert_close(sparse.to_dense(), hvd.allreduce(dense))
    for given in (dense.to_sparse(), dense.to(DEVICE).to_sparse()):
        for op in (hvd.Average, hvd.Sum):
            reduced = hvd.allreduce(given, op=op)
            assert reduced.is_sparse
            torch.testing.assert_close(reduced.to_dense().cpu(), hvd.allreduce(dense, op=op))


def ranks_with_fewer_batches_add_zeros_until_all_have_joined():
    values = [on([[1.0 + rank, -2.0], [3.0, 4.0]]) for rank in range(RANKS)]
    for batch in range(2 * RANK):
        there = [values[rank] for rank in range(RANKS) if 2 * rank > batch]
        for op, of in ((hvd.Sum, 1), (hvd.Average, RANKS)):
            assert torch.equal(hvd.allreduce(values[RANK], op=op).cpu(), (sum(there) / of).cpu())
        whole = hvd.allreduce(torch.tensor([7, -3]) * (RANK + 1), op=hvd.Average)  # on the host, cut off
        factor = sum(rank + 1 for rank in range(RANKS) if 2 * rank > batch)
        assert whole.tolist() == [int(factor * n / RANKS) for n in (7, -3)]
        hvd.barrier()
    if RANK == RANKS - 1:
        for call in (hvd.allgather, lambda x: hvd.broadcast(x, RANK), hvd.alltoall, hvd.reducescatter):
            with pytest.raises(hvd.HorovodInternalError, match=r"TRN287(.|\n)*horovod_script.py"):
                call(on([1.0] * RANKS))
    lasts = hvd.allgather_object(hvd.join())
    assert lasts == [RANKS - 1] * RANKS
    assert hvd.allreduce(on([1.0]), op=hvd.Sum).item() == RANKS


def ranks_that_use_other_parts_of_a_model():
    """Their gradients come in another order, and some not at all."""
    torch.manual_seed(0)
    parts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)]).to(DEVICE)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parts.parameters(), 0.1), parts.named_parameters())
    first, second = (parts[0], parts[1]) if RANK == 0 else (parts[1], parts[2])
    x = on([[1.0, 2.0, 3.0, 4.0]])
    second(first(x)).sum().backward()
    optimizer.step()
    for parameter in parts.parameters():
        same = hvd.allgather(parameter.detach().reshape(1, -1))
        assert all(torch.equal(same[0], each) for each in same)
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()


def embeddings_with_sparse_gradients():
    for as_dense in (False, True):
        torch.manual_seed(0)
        table = nn.Embedding(10, 3, sparse=True)
        alone = nn.Embedding(10, 3, _weight=table.weight.detach().clone())
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), 0.1), sparse_as_dense=as_dense)
        rows = [torch.tensor([[1, 2 + rank, 4]]) for rank in range(RANKS)]
        table(rows[RANK]).square().sum().backward()
        optimizer.step()
        (sum(alone(each).square().sum() for each in rows) / RANKS).backward()
        torch.testing.assert_close(table.weight.detach(), (alone.weight - 0.1 * alone.weight.grad).detach())


SETTINGS = (
    ({}, 1e-6),
    ({"op": "average", "gradient_predivide_factor": 2.0}, 1e-6),
    ({"num_groups": 2}, 1e-6),
    ({"compression": "fp16"}, 5e-3),
)


def training_is_that_of_one_process():
    for (settings, near), parts in [*((each, 1) for each in SETTINGS), (SETTINGS[0], 2)]:
        if "compression" in settings:
            settings = {"compression": hvd.Compression.fp16}
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
        optimizer = hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), backward_passes_per_step=parts, **settings
        )
        mine = [t.chunk(RANKS)[RANK].to(DEVICE) for t in (INPUTS, TARGETS)]
        for _ in range(3):
            step(model, optimizer, *mine, parts)
        for got, meant in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(got.detach().cpu(), meant.detach(), rtol=0, atol=near)


def optimizers_in_other_ways():
    for op in (hvd.Average, hvd.Adasum):
        model = net().to(DEVICE)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), op=op)
        x, y = (t.chunk(RANKS)[RANK].to(DEVICE) for t in (INPUTS, TARGETS))
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with optimizer.skip_synchronize():
                optimizer.step()
        for parameter in model.parameters():
            everywhere = hvd.allgather_object(parameter.detach().cpu().tolist())
            assert everywhere.count(everywhere[0]) == RANKS


def an_elastic_job_of_ranks_that_stay():
    """All begin with what the first one has, train as one process does, and go back to what was committed."""
    alone, model = net(), net().to(DEVICE)
    with torch.no_grad():
        model[0].weight += RANK
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    assert sorted(optimizer._parameter_names.values()) == sorted(name for name, _ in model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(INPUTS, shuffle=False)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=1 + RANK, batch=0)
    stepping = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)

    @hvd.elastic.run
    def train(state, epochs):
        assert state.epoch == 1
        for epoch in range(state.epoch, epochs + 1):
            state.epoch = epoch
            mine = list(state.sampler)
            assert mine == list(range(RANK, 8, RANKS))
            step(state.model, state.optimizer, INPUTS[mine].to(DEVICE), TARGETS[mine].to(DEVICE))
            step(alone, stepping, INPUTS, TARGETS)
            state.commit()
        return state.epoch

    assert train(state, 3) == 3
    for mine, other in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(mine.detach().cpu(), other.detach(), rtol=0, atol=2e-6)
    before = [p.detach().cpu() for p in model.parameters()]
    step(model, optimizer, INPUTS.to(DEVICE), TARGETS.to(DEVICE))
    state.epoch = 9
    sampler.record_batch(0, 2)
    sampler.reset()
    assert list(sampler) == list(range(2 * RANKS + RANK, 8, RANKS))
    state.restore()
    assert (state.epoch, state.batch, len(sampler)) == (3, 0, 8 // RANKS)
    assert all(torch.equal(p.detach().cpu(), other) for p, other in zip(model.parameters(), before))


meet("horovod")
hvd.init()
report(
    [
        calls,
        handles_and_groups,
        more_calls,
        gradients_of_calls,
        numbers_names_and_sparse_tensors,
        ranks_with_fewer_batches_add_zeros_until_all_have_joined,
        ranks_that_use_other_parts_of_a_model,
        embeddings_with_sparse_gradients,
        training_is_that_of_one_process,
        optimizers_in_other_ways,
        an_elastic_job_of_ranks_that_stay,
    ]
)
hvd.shutdown()
meet("horovod")
assert hvd.allreduce(on([1.0]), op=hvd.Sum).item() == RANKS  # in a job that begins again in the same processes
hvd.shutdown()
