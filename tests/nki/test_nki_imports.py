# SPDX-License-Identifier: Apache-2.0
"""`install_imports`: the vendor's names find trnlab, nothing is loaded twice, and what is not there says so."""

from __future__ import annotations

import importlib
import sys

import pytest

from trnlab.nki import imports


@pytest.fixture(autouse=True)
def undone(monkeypatch):
    """The process's imports are as before afterwards."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = dict(sys.modules)
    yield
    for name in [n for n in sys.modules if n.split(".")[0] in imports.ROOTS]:
        del sys.modules[name]
    sys.modules.update({n: m for n, m in before.items() if n.split(".")[0] in imports.ROOTS})


def test_every_name_is_the_module_itself():
    assert set(imports.install_imports()) == set(imports.ROOTS)
    for alias, real in imports.MODULES.items():
        module = importlib.import_module(alias)
        assert module is importlib.import_module(real)
        assert module.__spec__.name == real


def test_a_module_that_is_not_there_names_those_that_are():
    imports.install_imports()
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'nki.frobnicate'.*nki.language"):
        importlib.import_module("nki.frobnicate")


def test_an_installed_package_wins_unless_overridden(tmp_path, monkeypatch):
    (tmp_path / "neuron_dtypes.py").write_text("vendor = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("neuron_dtypes", None)
    assert "neuron_dtypes" not in imports.install_imports()
    assert importlib.import_module("neuron_dtypes").vendor
    assert "neuron_dtypes" in imports.install_imports(override=True)
    assert not hasattr(importlib.import_module("neuron_dtypes"), "vendor")


def test_a_folder_of_that_name_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "nki").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert "nki" in imports.install_imports()
