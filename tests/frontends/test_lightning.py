# SPDX-License-Identifier: Apache-2.0
"""Lightning's registries and connectors, by stand-ins of their forms: Lightning itself is not installed for tests."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from trnlab.frontends.torch import lightning
from trnlab.runtime import session

ACCELERATORS = """
class Accelerator: pass
class _Registry(dict):
    def register(self, name, accelerator, description=""):
        self[name] = accelerator
AcceleratorRegistry = _Registry()
"""
CONNECTOR = """
import torch
class MixedPrecision:
    def __init__(self, precision, device):
        self.precision, self.device = precision, device
class SingleDeviceStrategy:
    def __init__(self, device):
        self.device = device
class _AcceleratorConnector:
    def __init__(self, devices):
        self._parallel_devices, self._num_nodes_flag = devices, 1
    @staticmethod
    def _choose_auto_accelerator():
        return "cpu"
    @staticmethod
    def _choose_gpu_accelerator_backend():
        raise ValueError("No supported gpu backend found!")
    def _choose_strategy(self):
        return "ddp" if len(self._parallel_devices) > 1 else SingleDeviceStrategy("cpu")
    def _check_strategy_and_fallback(self):
        if self._accelerator_flag not in ("cuda", "gpu"):
            raise ValueError("requires a GPU accelerator")
    def _check_and_init_precision(self):
        return MixedPrecision("bf16-mixed", "cpu" if self._accelerator_flag == "cpu" else "cuda")
"""
SHARDED = """
class FSDPStrategy:
    def __init__(self, root_device, **kwargs):
        self.root_device, self.kwargs = root_device, kwargs
    def setup_environment(self):
        if isinstance(self.kwargs.get("device_mesh"), tuple):
            raise RuntimeError("a mesh of cuda")
"""
CASTS = """
import torch
class FSDPPrecision:
    def __init__(self, precision, scaler=None):
        self.precision, self.scaler = precision, "cuda's" if precision == "16-mixed" else None
    def forward_context(self):
        return "PyTorch's"
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """`pytorch_lightning` as far as it chooses accelerators, imported after the device was made known."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    folder = tmp_path / "pytorch_lightning"
    (folder / "trainer" / "connectors").mkdir(parents=True)
    (folder / "strategies").mkdir()
    (folder / "plugins" / "precision").mkdir(parents=True)
    for name in ("", "trainer", "trainer/connectors", "strategies", "plugins", "plugins/precision"):
        (folder / name / "__init__.py").write_text("")
    (folder / "strategies" / "fsdp.py").write_text(SHARDED)
    (folder / "plugins" / "precision" / "fsdp.py").write_text(CASTS)
    (folder / "accelerators.py").write_text(ACCELERATORS)
    (folder / "trainer" / "connectors" / "accelerator_connector.py").write_text(CONNECTOR)
    monkeypatch.syspath_prepend(str(tmp_path))
    lightning.install()
    names = ["pytorch_lightning.accelerators", "pytorch_lightning.trainer.connectors.accelerator_connector"]
    yield [importlib.import_module(name) for name in names]
    for name in [name for name in sys.modules if name.split(".")[0] == "pytorch_lightning"]:
        del sys.modules[name]


def test_auto_is_the_device_where_a_target_is_chosen(tree, monkeypatch):
    connector = tree[1]._AcceleratorConnector
    with session.activate(session.from_environment({"TRNLAB_TARGET": "trn1.2xlarge"})):
        assert connector([])._choose_auto_accelerator() == "neuron"
    monkeypatch.delenv("TRNLAB_TARGET", raising=False)
    if session.asked() is None:
        assert connector([])._choose_auto_accelerator() == "cpu"


def test_gpu_is_the_device_unless_cuda_is_not_to_be_there(tree, monkeypatch):
    connector = tree[1]._AcceleratorConnector([])
    with session.activate(session.from_environment({"TRNLAB_TARGET": "trn1.2xlarge"})):
        assert connector._choose_gpu_accelerator_backend() == "neuron"
        monkeypatch.setenv("TRNLAB_CUDA", "none")
        with pytest.raises(ValueError, match="No supported gpu"):
            connector._choose_gpu_accelerator_backend()


def test_the_accelerator_is_registered_and_one_process_trains_on_it(tree):
    accelerators, connector = tree
    made = accelerators.AcceleratorRegistry["neuron"]
    assert issubclass(made, accelerators.Accelerator)
    one = connector._AcceleratorConnector(made.get_parallel_devices(made.parse_devices("1")))
    assert one._choose_strategy().device == torch.device("neuron", 0)
    two = connector._AcceleratorConnector(made.get_parallel_devices(2))
    assert two._choose_strategy() == "ddp"
    host = connector._AcceleratorConnector([torch.device("cpu")])
    assert host._choose_strategy().device == "cpu"


@pytest.mark.parametrize("named", ["by its name", "as an object"])
def test_models_are_sharded_and_cast_on_the_device_as_on_a_gpu(tree, named):
    accelerators, connector = tree
    one = connector._AcceleratorConnector([])
    flag = "neuron" if named == "by its name" else accelerators.AcceleratorRegistry["neuron"]()
    one._accelerator_flag = flag
    one._check_strategy_and_fallback()
    assert one._accelerator_flag is flag
    assert one._check_and_init_precision().device == "neuron"
    one._accelerator_flag = "cpu"
    assert one._check_and_init_precision().device == "cpu"
    with pytest.raises(ValueError, match="requires a GPU"):
        one._check_strategy_and_fallback()


def test_forward_passes_of_sharded_models_cast_on_the_device(tree):
    casts = importlib.import_module("pytorch_lightning.plugins.precision.fsdp").FSDPPrecision
    with session.activate(session.from_environment({"TRNLAB_TARGET": "trn1.2xlarge"})):
        for precision, dtype in (("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)):
            made = casts(precision)
            assert (made.scaler is not None) == (dtype is torch.float16)
            with made.forward_context():
                assert torch.is_autocast_enabled("neuron")
                assert torch.get_autocast_dtype("neuron") is dtype
        assert casts("32-true").forward_context() == "PyTorch's"


def test_a_mesh_of_a_sharded_model_is_of_the_device(tree):
    strategy = importlib.import_module("pytorch_lightning.strategies.fsdp").FSDPStrategy
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        ours = strategy(torch.device("neuron", 0), device_mesh=(2, 2))
        ours.setup_environment()
        assert ours.kwargs["device_mesh"].device_type == "neuron"
        assert ours.kwargs["device_mesh"].mesh.shape == (2, 2)
    finally:
        dist.destroy_process_group()
    with pytest.raises(RuntimeError, match="cuda"):
        strategy(torch.device("cpu"), device_mesh=(2, 2)).setup_environment()
