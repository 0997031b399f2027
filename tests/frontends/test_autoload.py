# SPDX-License-Identifier: Apache-2.0
"""`import torch` alone makes the device and the backend known, and loads next to nothing for it."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

HEAVY = ("numba", "llvmlite", "torch._dynamo", "functorch", "trnlab.graph", "trnlab.runtime", "trnlab.compiler")


def in_fresh_python(code, **environment):
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return json.loads(result.stdout)


STARTED = """
import torch, json, sys
found = {"modules": sorted(sys.modules), "name": torch._C._get_privateuse1_backend_name()}
if found["name"] == "neuron":
    found["sum"] = torch.ones(2, device="neuron").add(1).tolist()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def with_us():
    """What `import torch` gives."""
    return in_fresh_python(STARTED)


@pytest.fixture(scope="module")
def without():
    """What it gives where PyTorch is told to look for no devices."""
    return in_fresh_python(STARTED, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_the_device_is_known_after_import_torch(with_us):
    assert with_us["sum"] == [2.0, 2.0]


def test_it_loads_nothing_heavy(with_us, without):
    """What costs time on import is PyTorch's own; ours is some fifty small modules."""
    added = set(with_us["modules"]) - set(without["modules"])
    assert not [m for m in added if m.startswith(HEAVY)]
    assert {m for m in added if not m.startswith("trnlab")} <= {"torch.neuron"}
    # Eight of them are where private names of PyTorch are and what waits for imports, eleven are of sparse tensors,
    # two count memory in use, three are folders, whose own module is a line of text.
    assert len(added) <= 54


def test_it_can_be_switched_off(with_us, without):
    assert without["name"] == "privateuseone"
    assert with_us["name"] == "neuron"


def test_compile_step_loads_no_compiler_until_something_is_compiled():
    """Nor what makes pages, runs scripts or keeps checkpoints: with a warm cache nothing of these is needed."""
    code = "from trnlab.frontends.torch import compile_step; import json, sys; print(json.dumps(sorted(sys.modules)))"
    loaded = set(in_fresh_python(code))
    late = {"compiler.pipeline", "kernels", "profile", "runtime.run", "runtime.script", "datasets", "estimate.job"}
    assert loaded.isdisjoint({f"trnlab.{name}" for name in late})
    assert "trnlab.frontends.torch.step" in loaded


@pytest.mark.parametrize("name", ["recording"])
def test_a_module_of_ours_may_be_imported_before_pytorch(name):
    """PyTorch loads the device when it is imported itself, of which that module may be a part."""
    code = f"from trnlab.frontends.torch import {name}; import torch, json; "
    assert in_fresh_python(code + "print(json.dumps(torch.ones(2, device='neuron').tolist()))") == [1, 1]
