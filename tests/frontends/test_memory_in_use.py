# SPDX-License-Identifier: Apache-2.0
"""HBM in use: what `torch.neuron` says of it, and that a run and an estimate of the same script say the same."""

from __future__ import annotations

import gc
import json

import pytest
import torch
from torch import nn

from trnlab import chips
from trnlab.cli.main import main
from trnlab.frontends.torch import compile_step
from trnlab.runtime import session

HEAD = """
import torch
from trnlab.frontends.torch import compile_step
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).to("neuron")
optimizer = torch.optim.Adam(model.parameters())
loss_of = lambda model, x: (model(x) - x).square().mean()
"""
CUT = """
for _ in range(4):
    x = torch.randn(128, 256).to("neuron")
    optimizer.zero_grad()
    loss = loss_of(model, x)
    loss.backward()
    print(loss.item())  # what comes before the update is a program of its own
    optimizer.step()
"""
GATHERED = """
for _ in range(3):
    optimizer.zero_grad()
    for _ in range(3):
        loss = loss_of(model, torch.randn(128, 256).to("neuron"))
        loss.backward()
        print(loss.item())
    optimizer.step()
"""
WHOLE = """
step = compile_step(model, optimizer, loss_of)
for _ in range(3):
    step(torch.randn(128, 256).to("neuron"))
"""
PARAMETERS = 2 * 256 * 512 + 512 + 256


@pytest.fixture
def chip():
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")) as now:
        torch.zeros(1).to("neuron").add(1).cpu()  # lets go of what is recorded in other sessions
        gc.collect()  # models of other tests are on the same device
        yield now


@pytest.mark.parametrize("body", [CUT, GATHERED, WHOLE], ids=["cut", "gathered", "whole"])
def test_a_run_and_an_estimate_need_the_same_memory(body, tmp_path, monkeypatch, capsys):
    """Of a step of several programs, too: its peak has the tensors that the program which runs then does not use."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(HEAD + body)
    gc.collect()
    lying = torch.neuron.memory_allocated()  # models of other tests are on the same device
    assert main(["run", "--target", "trn1.2xlarge", "--out", "run", "--no-cache", "train.py"]) == 0
    used = json.loads((tmp_path / "run" / "summary.json").read_text())["memory"]
    capsys.readouterr()
    assert main(["estimate", "--stack", "ours", "--target", "trn1.2xlarge", "--json", "--no-cache", "train.py"]) == 0
    told = json.loads(capsys.readouterr().out)["targets"][0]["memory"]["total"]
    assert used["peak_bytes"] == sum(used["parts"].values())
    assert used["peak_bytes"] - lying == pytest.approx(told, rel=0.003)
    assert used["peak_bytes"] - lying > 4 * 3 * PARAMETERS  # with both moments of Adam, which no pass reads
    assert (used["parts"]["of other programs"] - lying >= 4 * 2 * PARAMETERS) == (body != WHOLE)


def test_tensors_are_counted_while_they_live(chip):
    before = torch.neuron.memory_allocated()
    x = torch.zeros(256, 256).to("neuron")
    half, view = x.to(torch.bfloat16), x[3:]
    numbers = torch.zeros(256, dtype=torch.int64).to("neuron")  # of 32 bits on the chip
    assert torch.neuron.memory_allocated() - before == 256 * 256 * (4 + 2) + 256 * 4
    free, total = torch.neuron.mem_get_info()
    assert (total - free, total) == (torch.neuron.memory_allocated(), 16 << 30)
    more = [x + n for n in range(3)]  # recorded, and not computed yet
    assert torch.neuron.memory_allocated() - before == 256 * 256 * (4 + 2 + 3 * 4) + 256 * 4
    assert more[1].sum().item() == 256 * 256
    assert torch.neuron.memory_allocated() - before == 256 * 256 * (4 + 2 + 3 * 4) + 256 * 4
    del x, half, numbers, more
    assert torch.neuron.memory_allocated() - before == 256 * 256 * 4  # that `view` lies in
    del view
    chip.settle()  # of `half`, which nobody has read: until then its operand is kept
    assert torch.neuron.memory_allocated() == before


def test_the_peak_has_what_programs_need_while_they_run(chip):
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to("neuron")
    optimizer = torch.optim.SGD(model.parameters())
    step = compile_step(model, optimizer, lambda m, x: m(x).square().mean())
    x, other = torch.randn(128, 256).to("neuron"), torch.zeros(1 << 20).to("neuron")
    torch.neuron.reset_peak_memory_stats()
    now = torch.neuron.memory_allocated()
    assert torch.neuron.max_memory_allocated() == now
    known = set(chip.executables)
    step(x)
    (made,) = (e for key, e in chip.executables.items() if key not in known)
    own = made.forecast.peak_bytes - sum(made.program.tensors[i].nbytes for i in made.program.inputs)
    assert own > 0
    stats = torch.neuron.memory_stats()
    assert stats["allocated_bytes.all.peak"] == torch.neuron.max_memory_allocated()
    assert torch.neuron.max_memory_allocated() == pytest.approx(now + own, abs=64)  # numbers are inputs, too
    assert stats["allocated_bytes.all.current"] == pytest.approx(now, abs=64)
    del other
    torch.neuron.reset_peak_memory_stats()
    assert torch.neuron.max_memory_allocated() == torch.neuron.memory_allocated() < now - (4 << 20) + 64
