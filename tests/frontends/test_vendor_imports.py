# SPDX-License-Identifier: Apache-2.0
"""Scripts written for torch_xla and torch_neuronx: device, steps, loaders and kernels, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import warnings
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch_neuronx import nki_jit
from torch_neuronx.utils import get_platform_target
from torch_neuronx.xla_impl.ops import nki_jit as same
import neuronxcc.nki.language as nl

assert nki_jit is same
assert get_platform_target() == "trn2"

@nki_jit
def double(x, out):
    nl.store(out, nl.load(x) * 2.0)

device = xm.xla_device()
x = torch.arange(64.0).reshape(8, 8).to(device)
out = torch.zeros(8, 8, device="xla")
with xp.Trace("kernel"):
    double(x, out)
xm.mark_step()
torch_xla.sync()
assert torch.equal(out.cpu(), x.cpu() * 2), out
assert x.to("xla:0").device.type == torch_xla.device().type == "neuron"

def train(rank):
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().cpu().clone()
    for batch, in pl.MpDeviceLoader([(x.cpu(),)], device):
        assert batch.device.type == "neuron"
        model(batch).sum().backward()
        xm.optimizer_step(optimizer)
    assert not torch.equal(model.weight.cpu(), before)
    xm.master_print(f"rank {rank} of {xr.world_size()}", met.metrics_report())

xmp.spawn(train)
try:
    torch_xla.frobnicate
except AttributeError as error:
    assert "no counterpart in trnlab" in str(error)
try:
    import torch_neuronx.proto
except ModuleNotFoundError as error:
    assert "torch.compile" in str(error)
"""


def test_a_script_for_xla_runs(tmp_path):
    """Under `trnlab run`, where the imports resolve; "xla" is the device in every argument."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    arguments = ["run", "--target", "trn2", "--own-nki", "--out", str(tmp_path / "out"), str(file)]
    start = f"import sys; from trnlab.cli.main import main; sys.exit(main({arguments!r}))"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 of 1" in done.stdout
