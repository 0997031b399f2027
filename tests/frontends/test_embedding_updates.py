# SPDX-License-Identifier: Apache-2.0
"""Training a large embedding: a step of SGD writes the rows of its batch and no others, trains as PyTorch does on the
CPU, and takes as long for ten times the rows."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trnlab import chips, compiler
from trnlab.frontends.torch import capture_step, compile_step
from trnlab.runtime.session import Session, activate
from trnlab.sim.timing import time_program

pytestmark = pytest.mark.torch
ROWS, SIZE, IDS = 20_000, 64, 256


@pytest.fixture(autouse=True)
def session():
    with activate(Session(chips.target("trn1.2xlarge"), "fp32")) as active:
        yield active


class Recommender(nn.Module):
    """The score of an item: a product of its row of a table."""

    def __init__(self, rows: int, sparse: bool, padding: int | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, SIZE, sparse=sparse, padding_idx=padding)
        self.score = nn.Linear(SIZE, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.score(self.table(ids)).tanh().square().mean()


def host_step(model, optimizer, ids):
    optimizer.zero_grad()
    loss = model(ids)
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize(("sparse", "padding"), [(False, None), (False, 3), (True, None)])
def test_trains_as_pytorch_does(sparse, padding):
    """Element by element, with infinities, NaN and minus zeros in rows that no batch has; a rate of zero, with which
    a gradient of zero makes a zero of another sign, is another program's."""
    torch.manual_seed(0)
    theirs = Recommender(ROWS, sparse, padding)
    with torch.no_grad():
        for i, number in enumerate((float("inf"), float("nan"), -0.0, 1e-42)):
            theirs.table.weight[ROWS // 2 + i :: 97] = number
    ours = copy.deepcopy(theirs).to("neuron")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in (ours, theirs)]
    step = compile_step(ours, optimizers[0], lambda model, ids: model(ids))
    for i, rate in enumerate((0.5, 0.25, 0.0)):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
        ids = torch.randint(ROWS // 2, (IDS,), generator=torch.Generator().manual_seed(i))
        ids[::4] = ids[0]
        assert step(ids.to("neuron")).item() == pytest.approx(host_step(theirs, optimizers[1], ids), rel=1e-4)
    got, want = ours.table.weight.detach().cpu(), theirs.table.weight.detach()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6, equal_nan=True)
    untouched = got[ROWS // 2 :]
    assert torch.equal(untouched.view(torch.int32), want[ROWS // 2 :].view(torch.int32))


@pytest.mark.parametrize("sparse", [False, True])
def test_a_step_takes_as_long_for_ten_times_the_rows(sparse, session):
    def total(rows):
        with FakeTensorMode(), torch.device("neuron"):
            model = Recommender(rows, sparse)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            graph = capture_step(model, optimizer, None, [torch.zeros(IDS, dtype=torch.int64)]).graph
        program = compiler.compile(graph, session.chip, session.compile_options())
        return time_program(program, session.chip).total

    assert total(10 * ROWS) == total(ROWS)
