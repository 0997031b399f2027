# SPDX-License-Identifier: Apache-2.0
"""The example trains, on the device as on the CPU; stops and goes on; and leaves a run that answers the questions."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.docs.tutorial_pages import alike

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_gpt.py"

pytestmark = pytest.mark.torch


@pytest.fixture
def example(monkeypatch):
    """The script as a module, with one layer."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import train_gpt

    monkeypatch.setattr(train_gpt, "LAYERS", 1)
    return train_gpt


def arguments(**changed):
    return argparse.Namespace(**{"seed": 0, "batch": 2, "steps": 4, "save": None, "resume": None, **changed})


def test_text_and_batches_are_the_same_every_time(example):
    """Targets are the inputs moved by one; step and seed decide what is drawn, and nothing else does."""
    text = example.read_text()
    assert len(text) > 1_000_000
    x, y = example.get_batch(text, 3, arguments(), "cpu")
    again, _ = example.get_batch(text, 3, arguments(), "cpu")
    assert x.shape == y.shape == (2, example.CONTEXT)
    assert (x[:, 1:] == y[:, :-1]).all()
    assert (x == again).all()
    assert (x != example.get_batch(text, 4, arguments(), "cpu")[0]).any()
    assert (x != example.get_batch(text, 3, arguments(seed=1), "cpu")[0]).any()


def test_the_schedule_rises_then_falls(example):
    _, optimizer, schedule, _ = example.make(arguments(steps=100), "cpu")
    optimizer.step()  # the scheduler wants to see one
    rates = []
    for _ in range(100):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        schedule.step()
    peak = rates.index(max(rates))
    assert 0 < peak <= example.WARMUP
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(0.1 * example.LEARNING_RATE, rel=0.05)


def train(example, device, **changed):
    import torch

    from trnlab import chips
    from trnlab.runtime import session

    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")) as active:
        losses = example.train(arguments(**changed), torch.device(device), example.read_text())
    return losses, active


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # PyTorch's own, on import
def test_the_device_follows_the_cpu_and_a_resumed_run_is_the_same_run(example, monkeypatch, tmp_path, capfd):
    """In fp32 the curves differ by rounding only; after a checkpoint the losses have the same bits."""
    save = example.save
    monkeypatch.setattr(example, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(example, "save", lambda path, *parts: save(path / f"{parts[-1]}.pt", *parts))
    expected, _ = train(example, "cpu")
    losses, active = train(example, "neuron", save=tmp_path)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert active.counters.host.totals()["training"] == 0
    assert len([e for e in active.executables.values() if e.name == "train_step"]) == 1, "the schedule recompiled"
    out, bar = capfd.readouterr()
    assert "the faster" in out
    assert bar.count("neuron") == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2.pt", "4.pt"]
    rest, _ = train(example, "neuron", resume=tmp_path / "2.pt")
    assert rest == losses[2:]


@pytest.mark.slow
def test_under_trnlab_run_it_leaves_an_answer_to_every_question(tmp_path):
    """The script as a user starts it, for a few steps."""
    command = [sys.executable, "-m", "trnlab.cli.main", "run", "--target", "trn1.2xlarge", "--out", "run"]
    environment = {**os.environ, "TRNLAB_CACHE": str(tmp_path / "cache")}
    done = processes.run([*command, SCRIPT, "--steps", "4"], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "training with compile_step, the faster" in done.stdout
    shown = re.search(r"```output\n(loss.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1].splitlines()
    printed = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    for line in shown[1:]:  # but the loss, which is of 200 steps, and what this machine took
        of_chip = line.partition("; simulated here")[0]
        assert alike(of_chip, printed[line.split("  ")[0]].partition("; simulated here")[0]), line
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found["complete"]
    assert found["steps"] == len(found["loss"]) == len(found["reference_loss"]) == 4
    assert found["loss"][-1] < found["loss"][0]
    assert found["reference_loss_gap"] < 0.05, "bf16 has eight bits: close to fp32, not equal"
    assert found["host_fallback_ops"]["training"] == 0
    assert found["compile"]["cache"] == "miss"
    assert found["tokens_per_step"] == 8 * 128
    programs = [json.loads(path.read_text()) for path in (tmp_path / "run" / "executables").iterdir()]
    assert {each["name"]: each["calls"] for each in programs} == {"train_step": 4, "operators": 2}
    copying = found["instructions"] - 4 * found["instructions_per_step"]
    assert copying % 2 == 0
    assert 0 < copying < 0.05 * found["instructions"]  # model and optimizer, for each of the two ways that are timed
    for name in ("step_time_s", "tokens_per_s", "mfu", "engines", "hbm", "memory", "cost", "assumptions"):
        assert found[name]


def test_on_the_cpu_it_is_a_plain_pytorch_script(tmp_path):
    """Nothing of trnlab is imported."""
    code = f"""
import runpy, sys
sys.argv = ["train_gpt.py", "--device", "cpu", "--steps", "2", "--batch", "1", "--save", "end.pt"]
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
assert not any(name.split(".")[0] == "trnlab" for name in sys.modules)
"""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "cpu       2/2  loss" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["end.pt"]
