# SPDX-License-Identifier: Apache-2.0
"""Lightning's registries and connectors, by stand-ins of their forms: Lightning itself is not installed for tests."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

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
class SingleDeviceStrategy:
    def __init__(self, device):
        self.device = device
class _AcceleratorConnector:
    def __init__(self, devices):
        self._parallel_devices, self._num_nodes_flag = devices, 1
    @staticmethod
    def _choose_auto_accelerator():
        return "cpu"
    def _choose_strategy(self):
        return "ddp" if len(self._parallel_devices) > 1 else SingleDeviceStrategy("cpu")
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """`pytorch_lightning` as far as it chooses accelerators, imported after the device was made known."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    folder = tmp_path / "pytorch_lightning"
    (folder / "trainer" / "connectors").mkdir(parents=True)
    for name in ("", "trainer", "trainer/connectors"):
        (folder / name / "__init__.py").write_text("")
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
