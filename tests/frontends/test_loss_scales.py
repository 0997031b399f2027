# SPDX-License-Identifier: Apache-2.0
"""`torch.amp.GradScaler`: its operators beside the CPU's element by element, and its steps as programs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.frontends.torch import recording
from trnlab.frontends.torch.recording.programs import RecordedProgram
from trnlab.runtime import session

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]
INF, NAN = float("inf"), float("nan")


@pytest.fixture(params=["chip", "interpreter"])
def here(request):
    engine = neuron.InterpreterEngine() if request.param == "interpreter" else neuron.DeviceEngine()
    now = session.Session(chips.target("trn1.2xlarge"), "fp32")
    with session.activate(now), recording.using("steps"), neuron.use(engine):
        neuron.reset_fallback_counts()
        yield
        recording.flush()


def on_host():
    return neuron.fallback_counts() | neuron.fallback_counts("setup")


GRADIENTS = {
    "finite": ([[1.5, -2.25, 0.0], [3e38, -1e-30]], 0.0),
    "infinite": ([[1.5, INF, -INF], [2.0, 1.0]], 0.0),
    "NaN in the last": ([[1.5, 2.0, 3.0], [NAN, 1.0]], 0.0),
    "found before": ([[1.5, 2.0, 3.0], [0.5, 1.0]], 1.0),
}


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gradients", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_are_unscaled_and_looked_through_as_on_the_host(gradients, kind, here):
    values, before = gradients
    found = {}
    for device in ("cpu", "neuron"):
        grads = [torch.tensor(v).to(kind).to(device) for v in values]
        found_inf, inverse = torch.full((), before).to(device), torch.full((), 1 / 3).to(device)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inverse)
        found[device] = [t.cpu() for t in (*grads, found_inf)]
    for ours, theirs in zip(found["neuron"], found["cpu"]):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert on_host() == {}


@pytest.mark.parametrize(
    ("scale", "steps", "found"),
    [(8.0, 0, 0.0), (8.0, 2, 0.0), (8.0, 2, 1.0), (2.0**127, 2, 0.0), (2.0**-149, 1, 1.0), (8.0, 2, 0.5)],
)
def test_the_next_scale_is_that_of_the_host(scale, steps, found, here):
    results = []
    for device in ("cpu", "neuron"):
        s, found_inf = torch.full((), scale).to(device), torch.full((), found).to(device)
        n = torch.full((), steps, dtype=torch.int32).to(device)
        assert torch._amp_update_scale_(s, n, found_inf, 2.0, 0.5, 3) is s
        results.append((s.item(), n.item()))
    assert results[0] == results[1]
    assert on_host() == {}


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_steps_with_a_scaler_are_those_of_the_cpu(fused, here):
    """One of them has infinite gradients, and is left out. A fused optimizer leaves nothing to the host; for others
    the scaler makes one over its scale in float64, which the chip does not have."""
    found = {}
    torch.manual_seed(0)
    first, batches = nn.Linear(3, 2), torch.randn(5, 4, 3)
    batches[2, 0, 0] = INF
    for device in ("cpu", "neuron"):
        model = copy.deepcopy(first).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2)
        neuron.reset_fallback_counts()
        scales = []
        for x in batches.to(device):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        found[device] = [scales, *(p.detach().cpu() for p in model.parameters())]
    assert found["neuron"][0] == found["cpu"][0] == [1024.0, 2048.0, 1024.0, 1024.0, 2048.0]
    torch.testing.assert_close(found["neuron"][1:], found["cpu"][1:], rtol=1e-5, atol=1e-6)
    assert set(on_host()) <= (set() if fused else {"aten::reciprocal", "aten::copy_"})


@pytest.mark.parametrize(("fused", "programs"), [(False, 2), (True, 1)], ids=["plain", "fused"])
def test_a_step_with_a_scaler_is_as_few_programs_as_its_branch_leaves(fused, programs, monkeypatch):
    """Whether plain optimizers make their step Python asks of the gradients; fused ones choose by themselves."""
    runs, original = [], RecordedProgram.run
    monkeypatch.setattr(RecordedProgram, "run", lambda self, *args: runs.append(self) or original(self, *args))
    now = session.Session(chips.target("trn1.2xlarge"), "fp32")
    with session.activate(now), recording.using("steps"), neuron.use(neuron.InterpreterEngine()):
        model = nn.Linear(3, 2).to("neuron")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
        scaler = torch.amp.GradScaler("neuron", growth_interval=2)
        x, counts = torch.randn(4, 3).to("neuron"), []
        for _ in range(5):
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            recording.flush()
            counts.append(len(runs))
            runs.clear()
    assert counts[1:] == [programs] * 4
