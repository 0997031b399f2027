# SPDX-License-Identifier: Apache-2.0
"""`trnlab check` and `trnlab estimate` as a user meets them: what they print, their exit status, the second call."""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import dataclass

import pytest

from trnlab.cli.main import main

pytestmark = pytest.mark.torch

SCRIPT = """\
import pathlib
import torch, torch.nn.functional as F
from torch import nn
from trnlab.frontends.torch import compile_step
from width import WIDTH
rows = int(pathlib.Path("rows.txt").read_text())
model = nn.Linear(WIDTH, 4).to("neuron")
step = compile_step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x, y: F.cross_entropy({loss}, y))
for i in range(3):
    print("loss", step(torch.randn(rows, WIDTH).to("neuron"), torch.randint(4, (rows,)).to("neuron")).item())
"""


@dataclass
class Done:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def call(folder, monkeypatch, capsys):
    """Runs the command line as if it was called anew."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRNLAB_CACHE", str(folder / "cache"))
    monkeypatch.delenv("TRNLAB_TARGET", raising=False)

    environment = dict(os.environ)

    def run(*arguments: str) -> Done:
        for name in os.environ.keys() - environment.keys():  # what libraries set when they are imported
            monkeypatch.delenv(name)
        sys.modules.pop("width", None)
        importlib.invalidate_caches()
        status = main(arguments)
        return Done(status, *capsys.readouterr())

    return run


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.format(loss="m(x)"))
    (tmp_path / "width.py").write_text("WIDTH = 16\n")
    (tmp_path / "rows.txt").write_text("8")
    return tmp_path


def test_a_second_call_is_answered_from_the_first_until_something_changes(folder, call):
    first = call("check", "--target", "trn1.2xlarge", "train.py")
    assert first.returncode == 0, first.stderr
    assert "nothing is in the way" in first.stdout
    assert "loss" not in first.stdout
    second = call("check", "--target", "trn1.2xlarge", "train.py")
    assert "from the last check" in second.stdout
    assert second.stdout.replace(", from the last check", "") == first.stdout
    (folder / "rows.txt").write_text("12")  # a file that the script reads
    third = call("estimate", "--target", "trn1.2xlarge", "train.py")
    assert "from the last check" not in third.stdout
    assert "12 samples" in third.stdout
    (folder / "width.py").write_text("WIDTH = 24\n")  # a module that it imports
    fourth = call("estimate", "--target", "trn1.2xlarge", "--json", "train.py")
    record = json.loads(fourth.stdout)
    assert record["parameters"] == 24 * 4 + 4
    assert not record["cached"]


def test_both_stacks_are_answered_the_vendors_first(folder, call):
    done = call("estimate", "--target", "trn1.2xlarge,trn2.3xlarge", "--json", "train.py")
    record = json.loads(done.stdout)
    assert [each["stack"] for each in record["stacks"]] == ["vendor", "ours"]
    vendor, ours = (each["targets"] for each in record["stacks"])
    assert record["targets"] == vendor
    for theirs, own in zip(vendor, ours, strict=True):
        assert theirs["step_s"] > own["step_s"]
        assert theirs["usd_per_step"] > own["usd_per_step"]
        assert theirs["parts"]["host"] > 0
        assert "host" not in own["parts"]
    said = call("estimate", "--target", "trn1.2xlarge,trn2.3xlarge", "train.py").stdout
    assert "from the last check" in said
    assert "by whose software" in said
    assert "published runs of Trainium1" in said
    assert said.splitlines()[0].count("by the vendor's release") == 1


def test_one_stack_may_be_asked_for(folder, call):
    done = call("check", "--target", "trn1.2xlarge", "--stack", "ours", "train.py")
    assert "by whose software" not in done.stdout
    record = json.loads(call("check", "--target", "trn1.2xlarge", "--stack", "ours", "--json", "train.py").stdout)
    assert [(each["stack"], each["targets"]) for each in record["stacks"]] == [("ours", record["targets"])]
    assert call("check", "--target", "trn1.2xlarge", "--stack", "theirs", "train.py").returncode == 2


def test_the_exit_status_tells_ci(folder, call):
    (folder / "train.py").write_text(SCRIPT.format(loss="m(x).erfinv()"))
    done = call("check", "--target", "trn1.2xlarge,trn2.3xlarge", "--page", "out/page.html", "train.py")
    assert done.returncode == 1
    assert "error    TRN201" in done.stdout
    assert "1 error" in done.stdout
    assert "Traceback" not in done.stderr
    assert "Targets side by side" in (folder / "out" / "page.html").read_text()
    missing = call("check", "train.py")
    assert missing.returncode == 2
    assert "TRN120" in missing.stderr
