# SPDX-License-Identifier: Apache-2.0
"""Scripts that were written for graphics cards reach the chip as they are, with the losses of the CPU; checks list
the lines that have to say "neuron" on an instance."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trnlab import chips
from trnlab.errors import UsageError
from trnlab.estimate.result import Report
from trnlab.frontends.torch.check.report import examine
from trnlab.frontends.torch.cuda import scripts
from trnlab.frontends.torch.cuda.scripts import asking
from trnlab.frontends.torch.device.naming import DeviceNames
from trnlab.runtime import session
from trnlab.runtime.script import Script

# What scripts for CUDA do, line by line; their losses stand on lines of their own.
IDIOMS = """
import torch, torch.nn as nn, torch.nn.functional as F, warnings
from torch.utils.data import DataLoader, TensorDataset
warnings.simplefilter("ignore", FutureWarning)
from torch.cuda.amp import GradScaler, autocast
torch.backends.cudnn.benchmark = True
on_card = torch.cuda.is_available()
device = torch.device("cuda:0" if on_card else "cpu")
torch.manual_seed(1)
torch.cuda.manual_seed_all(1)
model = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 10))
model = nn.DataParallel(model.cuda()) if on_card else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = GradScaler(enabled=on_card)
data = TensorDataset(torch.randn(64, 64), torch.randint(0, 10, (64,)))
for x, y in DataLoader(data, batch_size=16, pin_memory=on_card):
    x, y = (x.cuda(non_blocking=True), y.to(device, non_blocking=True)) if on_card else (x, y)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device_type=device.type, dtype=torch.bfloat16, enabled=False):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print("loss", loss.item())
Tensor = torch.cuda.FloatTensor if on_card else torch.FloatTensor
assert y.type(Tensor).dtype == torch.float32 and isinstance(Tensor([1.0, 2.0]), Tensor)
assert Tensor(2, 3).shape == (2, 3)
if on_card:
    assert x.is_cuda and not torch.ones(1).is_cuda and torch.ones(1).cuda().sum().item() == 1
    torch.cuda.set_device(0)
    torch.cuda.synchronize()
    assert torch.cuda.device_count() == 1 and torch.cuda.is_bf16_supported()
    assert torch.cuda.get_device_capability() >= (8, 0)
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated() > 0
    assert torch.cuda.get_device_properties(0).total_memory > 1 << 30
    torch.cuda.empty_cache()
    with torch.cuda.stream(torch.cuda.Stream()), torch.device("cuda"):
        assert torch.zeros(2).is_cuda
    assert torch.randn(2, generator=torch.Generator(device="cuda"), device="cuda").is_cuda
    with torch.amp.autocast("cuda", dtype=torch.float16), torch.no_grad():
        assert model(x).dtype == torch.float16
    torch.save({"w": x}, "kept.pt")
    assert torch.load("kept.pt", map_location="cuda:0")["w"].is_cuda
    torch.set_default_device("cuda")
    assert torch.ones(2).is_cuda
    compiled = torch.compile(nn.Linear(4, 4).cuda())
    assert compiled(torch.ones(2, 4, device="cuda")).shape == (2, 4)
"""
RANKS = """
import os, torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
def loss_of(model):
    torch.manual_seed(dist.get_rank())
    x, y = torch.randn(8, 32).cuda(local), torch.randint(0, 8, (8,)).to(f"cuda:{local}")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    loss = loss.detach()
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    return loss.item()
def made():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
replicas = loss_of(DistributedDataParallel(made(), device_ids=[local]))
shards = made()
fully_shard(shards, mesh=init_device_mesh("cuda", (dist.get_world_size(),)))
print("loss", replicas, loss_of(shards))
dist.destroy_process_group()
"""
PLAIN = """
import torch
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    loss = model(torch.randn(8, 16, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
"""


def ran(folder: Path, source: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`trnlab run` of a script, in a process of its own."""
    (folder / "train.py").write_text(source)
    command = [sys.executable, "-m", "trnlab.cli.main", "run", "--target", "trn1.2xlarge", "--precision", "fp32"]
    given = {"env": {**os.environ, **environment}, "cwd": folder, "capture_output": True, "text": True}
    done = subprocess.run([*command, *options, "train.py"], **given)
    assert done.returncode == 0, done.stderr
    return done


def checked(folder: Path, source: str) -> Report:
    """What `trnlab check` finds."""
    path, target = folder / "train.py", chips.target("trn1.2xlarge")
    path.write_text(source)
    return examine(Script(path), [target], session.Session(target))


def losses(output: str) -> list[float]:
    lines = re.findall(r"^(?:\[rank \d+\] )?loss ([\d. ]+)$", output, re.MULTILINE)
    return [float(word) for line in lines for word in line.split()]


def test_what_scripts_for_cuda_do_runs_on_the_chip(tmp_path):
    chip = ran(tmp_path, IDIOMS)
    assert "the script asks for CUDA (train.py:7, train.py:8, train.py:10 and" in chip.stderr
    assert "on trn1.2xlarge" in chip.stdout
    cpu = ran(tmp_path, IDIOMS, TRNLAB_CUDA="none")
    assert "nothing ran on the simulated chip" in cpu.stderr
    assert len(losses(chip.stdout)) == 4
    torch.testing.assert_close(losses(chip.stdout), losses(cpu.stdout), rtol=1e-4, atol=1e-5)


def test_ranks_of_nccl_are_ranks_of_the_chip(tmp_path):
    """DistributedDataParallel and fully_shard of the same model and batches have the same loss."""
    found = losses(ran(tmp_path, RANKS, "--ranks", "2").stdout)
    assert len(found) == 4
    assert found == pytest.approx([found[0]] * 4, rel=1e-5)


def test_checks_follow_it_and_list_the_lines(tmp_path):
    report = checked(tmp_path, PLAIN)
    (found,) = [f for f in report.findings if f.code == "TRN283"]
    assert [p.line for p in (found.place, *found.places)] == [4]
    assert found.severity == "warning"
    assert report.targets[0].step_s > 0
    assert not DeviceNames.taken
    assert not torch.cuda.is_available()


def test_a_step_without_the_chip_is_no_success(tmp_path, monkeypatch):
    monkeypatch.setenv("TRNLAB_CUDA", "none")
    report = checked(tmp_path, PLAIN)
    assert [f.code for f in report.findings] == ["TRN288"]
    assert report.failed


def test_other_values_are_refused(monkeypatch):
    monkeypatch.setenv("TRNLAB_CUDA", "yes")
    monkeypatch.setenv("TRNLAB_TARGET", "trn1.2xlarge")
    with pytest.raises(UsageError) as refused:
        scripts.begin()
    assert refused.value.code == "TRN284"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x = torch.cuda.is_available()\ny = 1\nx.cuda()", [1, 3]),
        ("device = f'cuda:{rank}'", [1]),
        ("dist.init_process_group(\n    'nccl')", [2]),
        ("device_type = 'cuda' if 'cuda' in device else 'cpu'", [1]),
        ("torch.backends.cuda.matmul.allow_tf32 = True", []),
        ("# cuda\nx = 'a cuda card'", []),
        ("barracuda = 1", []),
        ("trainer = Trainer(\n    accelerator='gpu', devices=1)", [1]),
        ("kind = 'gpu'", []),
        ("if cuda", []),
    ],
)
def test_which_lines_ask(text, lines):
    assert [place.line for place in asking("train.py", text)] == lines


def test_without_trnlab_nothing_is_done_otherwise(tmp_path):
    """`python train.py` alone, with trnlab installed: CUDA is not there."""
    (tmp_path / "train.py").write_text("import torch\nprint(torch.cuda.is_available())\n")
    environment = {name: value for name, value in os.environ.items() if name != "TRNLAB_TARGET"}
    found = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert found.stdout == "False\n"
