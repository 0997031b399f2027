# SPDX-License-Identifier: Apache-2.0
"""`trnlab precision`: modes side by side, what it says of layers, and which it recommends."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trnlab import documents
from trnlab.cli.main import main
from trnlab.verify.precision import LayerPrecision, Mode, Study, _layers, document, sparkline, to_json

SCRIPT = """
import torch
from torch import nn
from trnlab.frontends.torch import compile_step
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to("neuron")
step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).square().mean())
for _ in range(100):
    step(torch.ones(16, 32).to("neuron"))
"""


def test_a_script_in_two_modes(tmp_path, capsys) -> None:
    """It ends after the steps that were asked for, and the layers are those of the model."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    out = tmp_path / "study"
    arguments = ["--target", "trn2", "--modes", "fp8", "--steps", "2", "--out", str(out), "--json", str(script)]
    assert main(["precision", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    exact, narrow = found["modes"]
    assert [exact["name"], narrow["name"]] == ["fp32", "fp8"]
    assert len(exact["losses"]) == len(narrow["losses"]) == 2
    assert exact["losses"] != narrow["losses"]
    assert {(x["name"], x["gradient"]) for x in narrow["layers"]} >= {("model.0", False), ("model.2", True)}
    assert all(0 < x["error"] < 0.5 for x in narrow["layers"])
    assert exact["step_s"] > 0
    assert exact["memory"] > 0
    assert "fp8" in (out / "precision.html").read_text()


def study(*modes):
    return Study("train.py", "trn2", 4, list(modes))


def test_the_fastest_mode_that_stays_near_is_taken_and_one_that_breaks_is_named() -> None:
    exact = Mode("fp32", [4.0, 3.0, 2.0, 1.0], 4e-3, 100)
    near, broken = Mode("bf16", [4.0, 3.0, 2.0, 1.1], 2e-3, 90), Mode("fp8", [4.0, float("nan"), 2, 2], 1e-3, 80)
    chosen, why = study(exact, near, broken).recommendation()
    assert chosen == "bf16"
    assert "2.00 times" in why
    assert "fp8 left its losses" in why
    assert study(exact, broken).recommendation()[0] == "fp32"
    slower = Mode("bf16", exact.losses, 5e-3, 90)
    assert study(exact, slower).recommendation()[0] == "fp32"
    shown = documents.text(document(study(exact, near, broken)))
    assert "█▆▃▁" in shown
    assert "!" in shown
    assert to_json(study(exact, broken))["modes"][1]["losses"][1] is None


def test_a_loss_that_is_no_number_shows_in_the_curve() -> None:
    assert sparkline([0.0, 1.0, float("inf")], 0.0, 1.0) == "▁█!"


def test_errors_overflows_and_zeros_are_counted(tmp_path) -> None:
    own, exact = tmp_path / "own", tmp_path / "exact"
    for folder in (own, exact):
        folder.mkdir()
    values = np.array([3.0, 4.0, 1.0, 2.0], np.float32)
    np.savez(exact / "layers.npz", a=values, b=values)
    np.savez(own / "layers.npz", a=values * np.float32(1.1), b=np.array([np.inf, 4.0, 0.0, 2.0], np.float32))
    plain = {"gradient": False, "ended": 0, "zeros": 0, "quantized": 0}
    results = [{"key": "a", "layer": "model.x", **plain}, {"key": "b", "layer": "model.y", **plain, "ended": 1}]
    results[1]["quantized"] = 4
    first, second = _layers(results, own, exact)
    assert first == LayerPrecision("model.y", False, pytest.approx((1 / 21) ** 0.5), 1, 1, 25.0)
    assert (second.name, second.overflowed, second.vanished) == ("model.x", 0, 0)
    assert second.error == pytest.approx(0.1, rel=1e-5)


def test_an_unknown_mode_is_refused(tmp_path, capsys) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    assert main(["precision", "--target", "trn2", "--modes", "fp4", str(script)]) == 2
    assert "TRN121" in capsys.readouterr().err
