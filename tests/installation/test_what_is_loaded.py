# SPDX-License-Identifier: Apache-2.0
"""What a user of the chip loads: nothing of the planner and its relatives, which another user wants."""

import json
import os
import subprocess
import sys

import pytest

PLANNER = ("trnlab.fleet", "trnlab.estimate", "trnlab.operations", "trnlab.validation")
KERNEL = """
import numpy as np
import trnlab.nki as nki, trnlab.nki.isa as nisa, trnlab.nki.language as nl

@nki.jit
def doubled(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out

assert doubled(np.ones((128, 8), np.float32)).sum() == 2048
"""
STEP = """
import torch
from trnlab.frontends.torch import compile_step

model = torch.nn.Linear(8, 8).to("neuron")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = compile_step(model, optimizer, lambda model, x: model(x).square().mean())
assert step(torch.ones(4, 8).to("neuron")) > 0
"""
LOADED = "\nimport json, sys\nprint(json.dumps([name for name in sys.modules if name.startswith('trnlab.')]))"


@pytest.mark.parametrize("code", [KERNEL, STEP], ids=["a kernel", "a compiled step"])
def test_a_user_of_the_chip_loads_nothing_of_the_planner(code, tmp_path):
    if "torch" in code:
        pytest.importorskip("torch")
    environment = os.environ | {"TRNLAB_TARGET": "trn1.2xlarge", "TRNLAB_CACHE": str(tmp_path)}
    script = tmp_path / "script.py"  # kernels are read from a file
    script.write_text(code + LOADED)
    ended = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    loaded = json.loads(ended.stdout.splitlines()[-1])
    assert "trnlab.sim.timing" in loaded or "trnlab.sim.functional" in loaded
    assert [name for name in loaded if name.startswith(PLANNER)] == []
