# SPDX-License-Identifier: Apache-2.0
"""Which releases of PyTorch are supported, and what is said on others."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from tools.versions import __main__ as versions
from trnlab.errors import UsageError
from trnlab.frontends.torch import autoload
from trnlab.frontends.torch.pytorch import collectives, releases, sharding

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.14.1+cu130", "2.15.0a0+git1234567"])
def test_releases_that_were_tried_are_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    releases.require()


@pytest.mark.parametrize(
    ("version", "newer"), [("2.9.1+cu128", False), ("2.12.1", False), ("2.16.0", True), ("3.0", True)]
)
def test_others_are_refused_with_what_is_supported_and_the_way_out(
    version: str, newer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(releases.UNTRIED, raising=False)
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(UsageError) as refused:
        releases.require()
    error = refused.value
    assert (error.code, error.limit, error.got) == ("TRN199", "PyTorch 2.13 to 2.15", f"PyTorch {version}")
    assert "pip install 'torch>=2.13,<2.16'" in str(error.remedy)
    assert (releases.UNTRIED in str(error.remedy)) is newer
    monkeypatch.setenv(releases.UNTRIED, "1")
    releases.require()


def test_import_torch_says_it_in_one_line_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(releases.UNTRIED, raising=False)
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    for name in [n for n in sys.modules if n.startswith("trnlab.frontends.torch.pytorch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "trnlab.frontends.torch.registration", raising=False)
    monkeypatch.delattr("trnlab.frontends.torch.registration")
    autoload.autoload()
    said = capsys.readouterr().err
    assert said.startswith("trnlab: TRN199: ")
    assert said.count("\n") == 1
    assert "got: PyTorch 2.9.1" in said


def test_what_is_declared_is_what_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["torch"] == ["torch>=2.13,<2.16"]
    tried = tuple(releases.release_of(release) for release in versions.RELEASES)
    assert tried == releases.SUPPORTED
    locked = next(x for x in (ROOT / "constraints.txt").read_text().splitlines() if x.startswith("torch=="))
    assert releases.release_of(locked.removeprefix("torch==")) in releases.SUPPORTED
    assert [c.rsplit(" ", 1)[1] for c in project["classifiers"]] == list(versions.PYTHONS)


@pytest.mark.parametrize(("release", "says"), [((2, 14), set()), ((2, 15), {"mine"})])
def test_a_backend_is_said_to_record_itself_where_pytorch_asks(
    release: tuple[int, int], says: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[object, ...]] = []
    monkeypatch.setattr(dist.Backend, "register_backend", lambda *given, **named: made.append((given, named)))
    monkeypatch.setattr(collectives.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set(), raising=False)
    monkeypatch.setattr(releases, "found", lambda: release)
    collectives.register_backend("mine", print, ("neuron",))
    assert made == [(("mine", print), {"extended_api": True, "devices": ["neuron"]})]
    assert says == collectives.distributed_c10d._FR_SELF_RECORDING_BACKENDS


def test_policies_and_types_of_reduction_are_the_units_or_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 2.14 a unit has them, from 2.15 on its parameters."""
    half, whole = torch.ones(1, dtype=torch.bfloat16), torch.ones(1)
    one, other = (SimpleNamespace(mp_policy=name) for name in ("one", "other"))
    unit = SimpleNamespace(mp_policy="all", fsdp_params=[one, other, one], _reduce_dtype=None)
    unit._get_reduce_dtype = lambda params, gradients: torch.promote_types(*(g.dtype for g in gradients))
    for release, policies, dtype in (((2, 14), ("all",), torch.bfloat16), ((2, 15), ("one", "other"), torch.float32)):
        monkeypatch.setattr(releases, "found", lambda now=release: now)
        assert sharding.policies(unit) == policies
        assert sharding.dtype_of_reduction(unit, [one, other], [half, whole]) == dtype
