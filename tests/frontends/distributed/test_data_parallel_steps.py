# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel in captured steps: several ranks learn what one process learns from the whole batch."""

import copy

import pytest
import torch
from ranks import being, train, train_alone
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch import capture_step

SIZE, STEPS = 4, 3


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def loss(model, x, y):
    return ((model(x) - y) ** 2).mean()


def batches(size=SIZE):
    """Per step the whole batch, and per step and rank its part on the device."""
    generator = torch.Generator().manual_seed(1)
    whole = [
        (torch.randn(4 * size, 8, generator=generator), torch.randn(4 * size, 4, generator=generator))
        for _ in range(STEPS)
    ]
    parts = [
        [(x[4 * r : 4 * r + 4].to("neuron"), y[4 * r : 4 * r + 4].to("neuron")) for r in range(size)]
        for x, y in whole
    ]
    return whole, parts


def make(rank):
    model = DistributedDataParallel(small().to("neuron"))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2), loss


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_learn_what_one_process_learns(size, compiled):
    whole, parts = batches(size)
    found = train(size, make, parts, compiled=compiled, max_norm=1.0)
    alone = small()
    losses = train_alone(alone, torch.optim.AdamW(alone.parameters(), lr=1e-2), loss, whole, 1.0)
    bound = 1e-4 if compiled else 2e-5
    for step in range(STEPS):
        assert sum(found[r][1][step] for r in range(size)) / size == pytest.approx(losses[step], rel=bound)
    for (name, p), q in zip(alone.named_parameters(), found[0][0].module.parameters()):
        assert (p - q.cpu()).abs().max() <= bound * p.abs().max(), name
        for other, *_ in found[1:]:  # bit for bit
            assert torch.equal(dict(other.module.named_parameters())[name].cpu(), q.cpu())


def test_gradients_are_those_of_the_whole_batch():
    """Without an optimizer the step returns gradients: at most 1e-6 of each tensor's largest."""
    from trnlab.fabric.world import World, together
    from trnlab.graph.interpret import interpret

    whole, parts = batches(2)
    captured, models = [], []
    for rank in range(2):
        with being(rank, 2):
            models.append(DistributedDataParallel(small().to("neuron")))
            captured.append(capture_step(models[-1], None, loss, parts[0][rank]))

    def run(ranks):
        mine = captured[ranks.rank]
        named = dict(models[ranks.rank].named_parameters())
        given = [parts[0][ranks.rank][r.place] if r.kind == "batch" else named[r.name] for r in mine.inputs]
        arrays = interpret(mine.graph, [x.detach().cpu().numpy() for x in given], ranks=ranks)
        return dict(zip((r.name for r in mine.outputs), arrays))

    alone = small()
    loss(alone, *whole[0]).backward()
    for found in together(World("trn1.32xlarge", 2), run):
        for name, p in alone.named_parameters():
            got = torch.from_numpy(found[f"module.{name}"])
            assert (p.grad - got).abs().max() <= 1e-6 * max(p.grad.abs().max(), 1), name


def test_gradients_are_reduced_in_one_bucket():
    _, parts = batches(2)
    engine = train(2, make, parts[:1], compiled=True)[0][2]
    from trnlab.program.communication import collective_calls, collective_of

    (program,) = engine.programs
    (call,) = collective_calls(program)
    routine = program.routines[program.calls[call].routine]
    assert collective_of(routine).kind == "all_reduce"
    assert len(routine) == len(list(small().parameters()))


def test_buffers_are_rank_0s():
    """Batch norm's statistics are sent before each forward pass, as DDP does: what a rank has after a step is what
    rank 0 had before it, moved towards the rank's own batch. Rank 1 begins with others, which are lost."""

    def normed(rank):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)).to("neuron")
        model = DistributedDataParallel(model)
        model.module[1].running_mean.fill_(10.0 * rank)
        model.module[1].running_var.fill_(1.0 + rank)
        return model, torch.optim.SGD(model.parameters(), lr=0.1), loss

    def state(model):
        return {name: t.detach().cpu().clone() for name, t in model.module.state_dict().items()}

    _, parts = batches(2)
    with being(0, 2):
        before = state(normed(0)[0])
    for steps in (1, 2):
        after = [state(model) for model, *_ in train(2, normed, parts[:steps])]
        for rank in range(2):
            seen = parts[steps - 1][rank][0].cpu() @ before["0.weight"].T + before["0.bias"]
            for name, own in (("1.running_mean", seen.mean(0)), ("1.running_var", seen.var(0))):
                torch.testing.assert_close(after[rank][name], 0.9 * before[name] + 0.1 * own, rtol=1e-5, atol=1e-5)
        assert not torch.equal(after[0]["1.running_mean"], after[1]["1.running_mean"])
        before = after[0]


def test_what_eager_code_does_is_refused():
    _, parts = batches(2)
    with being(0, 2):
        model = DistributedDataParallel(small().to("neuron"))
        with model.no_sync(), pytest.raises(UnsupportedOpError, match="TRN266"):
            capture_step(model, None, loss, parts[0][0])
        model.register_comm_hook(None, lambda state, bucket: None)
        with pytest.raises(UnsupportedOpError, match="TRN266"):
            capture_step(copy.copy(model), None, loss, parts[0][0])
