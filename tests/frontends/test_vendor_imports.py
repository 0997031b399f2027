# SPDX-License-Identifier: Apache-2.0
"""Scripts written for torch_xla and torch_neuronx: device, steps, loaders and kernels, in a process of their own."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import pytest

from tests import processes
from trnlab.frontends import listener, vendor_imports
from trnlab.nki import imports

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
from torch_neuronx.pyhlo import hlo_pb2
from torch_neuronx.xla_impl import structure
from torch_xla.core import xla_model
from torch_xla.experimental import scan
from torch_neuronx.utils import get_platform_target
from torch_neuronx.xla_impl.ops import nki_jit as same
import neuronxcc.nki.language as nl

assert nki_jit is same
assert xla_model is xm is torch_xla.core.xla_model
assert scan.scan is not None
assert structure.__name__ != scan.__name__
def computed(module: hlo_pb2.HloModuleProto, model: torch.classes.neuron.SPMDModel): ...
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
assert x.to("xla:0").device.type == torch_xla.device().type == "xla"  # as a script compares it

def train(rank):
    model = torch.nn.Linear(8, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().cpu().clone()
    for batch, in pl.MpDeviceLoader([(x.cpu(),)], device):
        assert batch.device == device
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
    import torch_neuronx.frobnicate
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


LOOKS = """
from importlib.util import find_spec

def found():
    return find_spec("torch_xla") is not None
"""


@pytest.fixture
def stand_ins(monkeypatch):
    """Stand-ins as `trnlab run` installs them, in a process that has imported none of them yet."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "torch_xla"]:
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    monkeypatch.setenv("USE_TORCH_XLA", "0")
    vendor_imports.install()
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("torch_xla", "looks", "optimum_neuron", "accelerate", "transformers"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("folder", "package", "distribution", "finds"),
    [
        ("site-packages", "looks", "", False),  # where pip puts it
        ("elsewhere", "looks", "looks-2.6.dist-info", False),  # pip install --target
        ("project", "looks", "", True),  # a module of the script's own
        ("site-packages", "optimum_neuron", "", True),
    ],
)
def test_installed_libraries_that_look_for_torch_xla_find_it_where_the_script_uses_it(
    folder, package, distribution, finds, stand_ins, tmp_path, monkeypatch
):
    (tmp_path / folder / package).mkdir(parents=True)
    (tmp_path / folder / package / "__init__.py").write_text(LOOKS)
    if distribution:
        (tmp_path / folder / distribution).mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / folder))
    library = importlib.import_module(package)
    assert library.found() is finds
    imported = ModuleType("torch_xla")  # by the script
    imported.__spec__ = ModuleSpec("torch_xla", None)
    monkeypatch.setitem(sys.modules, "torch_xla", imported)
    assert library.found()


@pytest.mark.parametrize(("knows", "finds"), [("import torch_neuronx", False), ("import torch_xla", True)])
def test_versions_of_hugging_face_without_the_device_neuron_train_by_torch_xla(
    knows, finds, stand_ins, tmp_path, monkeypatch
):
    for package, text in (("accelerate", ""), ("accelerate/utils", ""), ("transformers", LOOKS), ("looks", LOOKS)):
        (tmp_path / "site-packages" / package).mkdir(parents=True)
        (tmp_path / "site-packages" / package / "__init__.py").write_text(text)
    (tmp_path / "site-packages" / "accelerate" / "utils" / "imports.py").write_text(knows)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    for name in [name for name in sys.modules if name.split(".")[0] in ("accelerate", "transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv("USE_TORCH_XLA")
    vendor_imports.install()
    assert os.environ["USE_TORCH_XLA"] == "01"[finds]
    assert importlib.import_module("transformers").found() is finds
    assert not importlib.import_module("looks").found()  # has no switch
    if finds:
        assert version("torch_xla") == version("torch-xla") == vendor_imports.VERSION
    else:
        with pytest.raises(PackageNotFoundError):
            version("torch_xla")


def test_libraries_hear_that_there_is_no_tpu():
    for name in ("torch_xla._internal.tpu", "torch_xla.experimental.tpu"):
        tpu = importlib.import_module(vendor_imports.MODULES[name])
        assert tpu.num_available_devices() == 0
        with pytest.raises(OSError, match="no TPU"):
            tpu.version()
    assert importlib.import_module(vendor_imports.MODULES["torch_xla.experimental.pjrt"]).using_pjrt()


@pytest.mark.parametrize("modules", [vendor_imports.MODULES, imports.MODULES], ids=["torch", "kernels"])
def test_importing_a_stand_in_rebinds_no_name_that_its_package_uses(modules):
    """`import a.b` sets the attribute b of what `a` is, which may be a module with a `b` of its own."""
    taken = []
    for name, target in modules.items():
        parent, _, child = name.rpartition(".")
        if parent and parent != "torch_xla":  # whose import changes PyTorch for the process
            mine = vars(importlib.import_module(modules[parent])).get(child)
            if mine is not None and getattr(mine, "__name__", None) != target:
                taken.append(name)
    assert taken == []


BEFORE_TORCH = """
import site, sys
sys.path.insert(0, {sources!r})
site.addsitedir({sources!r})  # as an interpreter does when it starts, with the folder that packages are installed in
assert ("trnlab.frontends.early" in sys.modules) is {chosen}
if not {chosen}:
    assert not [name for name in sys.modules if name.partition(".")[0] == "trnlab"]
    sys.exit()
assert "trnlab.nki" not in sys.modules
from importlib.util import find_spec
sys.path.insert(0, {libraries!r})
import looks
assert not looks.found() and find_spec("torch_xla") and "torch" not in sys.modules
import torch_xla.core.xla_model as xm
import torch
assert (torch.ones(2, device=xm.xla_device()) + 1).device.type == "xla"
assert looks.found() and not [f for f in sys.meta_path if type(f).__name__ == "Listener"]
"""


@pytest.mark.parametrize("chosen", [True, False])
def test_an_interpreter_with_a_target_finds_them_before_pytorch_is_imported(chosen, tmp_path):
    """In a process that is not of `trnlab run`, such as torchrun's; one without a target imports nothing of ours."""
    (tmp_path / "site-packages" / "looks").mkdir(parents=True)
    (tmp_path / "site-packages" / "looks" / "__init__.py").write_text(LOOKS)
    sources = str(Path(listener.__file__).parents[2])
    start = BEFORE_TORCH.format(sources=sources, libraries=str(tmp_path / "site-packages"), chosen=chosen)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("TRNLAB_TARGET", "USE_TORCH_XLA")
    }
    if chosen:
        environment |= {"TRNLAB_TARGET": "trn1.2xlarge"}
    command = [sys.executable, "-c", start]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_start_waits_for_every_package_that_there_is_an_import_of():
    assert set(listener.ROOTS) == {name.partition(".")[0] for name in (*vendor_imports.MODULES, *imports.MODULES)}


STARTS_RANKS = """
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

def main(index, steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 8).to("xla")).square().mean().backward()
        xm.optimizer_step(optimizer)
    from trnlab import checks, policy
    from trnlab.runtime import session
    here = session.current()
    told = (here.seed, here.check_nan, here.rounds_stochastically, len(here.rules.rules), here.cache.place,
            checks.configured(), policy.configured())
    with open(f"told{index}", "w") as file:
        print(*told, file=file)

if __name__ == "__main__":
    xmp.spawn(main, args=(3,), nprocs=2)
"""


def test_ranks_that_a_script_starts_itself_leave_a_run_as_those_of_the_command(tmp_path):
    """A script without an edit says how many there are; what each did is in the run, as the command line said."""
    (tmp_path / "script.py").write_text(STARTS_RANKS)
    (tmp_path / "rules.toml").write_text('[[rule]]\nmodules = ["*"]\nformat = "fp32"\n')
    options = "--seed 7 --check-nan --stochastic-rounding --precision-rules rules.toml --cache programs"
    options += " --check race=off --schedule scheduled,window=64 --out out"
    command = [sys.executable, "-m", "trnlab.cli.main", "run", "--target", "trn1.2xlarge", *options.split()]
    ended = processes.run([*command, "script.py"], cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for rank in range(2):
        told = (tmp_path / f"told{rank}").read_text()
        assert told == "7 True True 1 programs {'race': 'off'} scheduled,window=64\n"
    assert "a step of all ranks takes" in ended.stdout
    assert "TRN" not in ended.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [(each["rank"], each["status"]) for each in summary["ranks"]] == [(0, "complete"), (1, "complete")]
    assert summary["instructions"] > 0
    assert all(row["ps"] >= 0 for row in summary["lost"])
    assert (tmp_path / "out" / "ranks" / "1" / "summary.json").exists()
