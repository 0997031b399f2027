# SPDX-License-Identifier: Apache-2.0
"""`trnlab compile`: what a script's steps need is compiled ahead of time, each program once, and found by the run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trnlab.cli.main import main
from trnlab.runtime.cache.executables import Cache

pytestmark = pytest.mark.torch

SCRIPT = """
import torch
from torch import nn
from trnlab.frontends.torch import compile_step

torch.manual_seed(0)
model = nn.Linear(8, 4).to("neuron")
step = compile_step(model, torch.optim.AdamW(model.parameters(), 1e-2), lambda m, x: m(x).square().mean())
for rows in (8, 16, 8, 16):
    step(torch.randn(rows, 8).to("neuron"))
"""


def trnlab(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "trnlab.cli.main", *arguments]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRNLAB_CACHE": str(folder / "cache")}
    return subprocess.Popen(command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_two_hosts_compile_each_program_once_and_the_run_finds_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    chosen = ["--target", "trn1.2xlarge"]
    hosts = [trnlab(tmp_path, "compile", *chosen, "--json", "--jobs", "2", "train.py") for _ in range(2)]
    records = []
    for host in hosts:
        out, err = host.communicate(timeout=300)
        assert host.returncode == 0, err
        records.append(json.loads(out))
    made = [(p["key"], p["how"]) for record in records for p in record["programs"]]
    assert len({key for key, _ in made}) == 2
    assert sorted(how for _, how in made) == ["hit"] * 2 + ["miss"] * 2
    assert all(p["size"] > 1000 for record in records for p in record["programs"])
    run = trnlab(tmp_path, "run", *chosen, "--out", "out", "train.py")
    _, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["compile"]
    assert (summary["cache"], summary["store"]["hits"], summary["store"]["stored"]) == ("hit", 2, 0)
    assert len(Cache(tmp_path / "cache").entries(check=True)) == 2


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    for arguments in (["--jobs", "0", "--target", "trn1.2xlarge"], ["--target", "trn1.2xlarge,trn2.3xlarge"]):
        host = trnlab(tmp_path, "compile", *arguments, "train.py")
        _, err = host.communicate(timeout=600)
        assert host.returncode == 2
        assert ("TRN569" if "--jobs" in arguments else "TRN540") in err


def test_what_compiling_would_take_is_said_and_nothing_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("TRNLAB_CACHE", str(tmp_path / "cache"))
    command = ["compile", "--target", "trn1.2xlarge", "--dry-run"]
    assert main([*command, "--json", str(tmp_path / "train.py")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["programs"]) == 2
    assert not any(p["there"] for p in found["programs"])
    assert found["parameters"] == 8 * 4 + 4
    assert found["vendor"]["tag"] == "assumed"  # nothing is published of so small a model
    assert found["wall"]["seconds"] == pytest.approx(sum(p["predicted"]["seconds"] for p in found["programs"]))
    assert Cache(tmp_path / "cache").entries() == []
    assert main(["compile", "--target", "trn1.2xlarge", str(tmp_path / "train.py")]) == 0
    capsys.readouterr()
    assert main([*command, str(tmp_path / "train.py")]) == 0
    said = capsys.readouterr().out
    assert "2 programs, 0 to compile" in said
    assert "on the vendor's stack 13 to 40 minutes, assumed: nothing published so small or large" in said
    assert main(["estimate", "--stack", "ours", "--target", "trn1.2xlarge", str(tmp_path / "train.py")]) == 0
    assert re.search(r"compiling took .* here, measured; on the vendor's stack 13 to 40", capsys.readouterr().out)
