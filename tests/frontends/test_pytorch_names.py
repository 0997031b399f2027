# SPDX-License-Identifier: Apache-2.0
"""Private names of PyTorch are in one place, all of them are known, and the release that is installed has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.versions import names

pytestmark = pytest.mark.torch


def test_private_names_of_modules_are_in_one_place() -> None:
    assert names.outside() == {}


def test_private_members_of_objects_are_those_of_the_list() -> None:
    listed = {name for members in names.table().values() for name in members}
    assert names.members().keys() <= listed
    source = "".join(path.read_text() for path in (names.SOURCE / "frontends" / "torch").rglob("*.py"))
    assert {name for name in listed if name not in source} == set()


def test_the_installed_release_has_them_all() -> None:
    assert names.missing() == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from torch._C import _x", "torch._C._x"),
        ("import torch._dynamo", "torch._dynamo"),
        ("from torch import optim\noptim._functional.adam", "torch.optim._functional.adam"),
        ("import torch.distributed as dist\ndist._Work", "torch.distributed._Work"),
        ("def f():\n    return torch._conj(x)", "torch._conj"),
        ("patch.object(*(torch._C, 'Writer'))", "torch._C.Writer"),
        ("name = 'torch._inductor.config'", "torch._inductor.config"),
        ("from torch.utils.backend_registration import setup", "torch.utils.backend_registration.setup"),
        ("from torch.utils import data\ntorch.ops.aten._to_copy\ntorch.__version__\nself._x", None),
    ],
)
def test_a_private_name_is_found_however_it_is_written(line: str, found: str | None, tmp_path: Path) -> None:
    path = tmp_path / "written.py"
    path.write_text(line)
    taken = names.of_modules(path)
    assert found in taken if found else not taken


def test_a_name_that_a_release_lacks_is_found_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "used", lambda: ["torch._C.Future", "torch._C.no_such_name", "torch.no_module._x"])
    monkeypatch.setattr(names, "table", lambda _: {"torch.Tensor": ["_version", "_no_such_member"]})
    assert names.missing() == ["torch._C.no_such_name", "torch.no_module._x", "torch.Tensor: _no_such_member"]
