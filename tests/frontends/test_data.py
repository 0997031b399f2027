# SPDX-License-Identifier: Apache-2.0
"""A training that reads its data set from a store goes on at the right sample; its run hears what it waited for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from trnlab import checkpoint, chips, data
from trnlab.cli.main import main
from trnlab.frontends.torch import InterpreterEngine, compile_step, use
from trnlab.profile.schema import SOMETIMES, check_summary
from trnlab.profile.summary import reading
from trnlab.runtime import session
from trnlab.runtime.checkpoint_plan import CheckpointUse
from trnlab.runtime.run import RunRecord

pytestmark = pytest.mark.torch


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A data set of 400 samples."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((400, 8)).astype(np.float32)
    data.write(str(tmp_path / "set"), [{"x": torch.from_numpy(x), "y": x.sum(1)}], shard_bytes=1000)
    return str(tmp_path / "set")


def trained(place: str, kept: Path, stop: int | None = None) -> list[float]:
    """The losses of three epochs, or of the steps up to `stop`, with a checkpoint every seven steps."""
    torch.manual_seed(0)
    CheckpointUse.by = None
    model = nn.Linear(8, 1).to("neuron")
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    with use(InterpreterEngine()):
        step = compile_step(model, optimizer, lambda m, x, y: (m(x).squeeze(1) - y).square().mean())
        run = checkpoint.resume(str(kept), every=7, model=model, optimizer=optimizer)
        for x, y in run.batches(data.loader(place, 32, block=1000, together=2), epochs=3):
            losses.append(step(x.to("neuron"), y.to("neuron")).item())
            run.stepped()
            if len(losses) == stop:
                break
    run.wait()
    return losses


def test_training_goes_on_at_the_right_sample(place: str, tmp_path: Path) -> None:
    whole = trained(place, tmp_path / "a")
    assert len(whole) == 3 * 12
    assert trained(place, tmp_path / "b", stop=17) == whole[:17]
    assert trained(place, tmp_path / "b", stop=11) == whole[14:25]  # 14 steps are in the checkpoint
    assert trained(place, tmp_path / "b") == whole[21:]


def test_the_summary_has_what_was_read(place: str, tmp_path: Path) -> None:
    told = session.Session(chips.target("trn1.2xlarge"))
    with session.activate(told):
        told.run = run = RunRecord(tmp_path / "run", told, Path("train.py"))
        loader = data.loader(place, 32)
        assert sum(1 for _ in loader) == len(loader) == 12
        record = run.finish("complete")
    check_summary(json.loads((tmp_path / "run" / "summary.json").read_text()))
    (read,) = record["data"]
    assert (read["batches"], read["samples"], read["place"]) == (12, 384, place)
    assert read["read_bytes"] == 400 * 36
    assert read["unused"] == 16
    assert record["input_s"] == pytest.approx(read["waited_s"])
    assert 0 < read["first_s"] <= read["waited_s"]
    (line,) = reading(record)
    assert line.startswith(f"12 batches of 32 samples from {place}: 14.1 KiB in ")


def test_tokens_come_with_what_follows_them(tmp_path: Path) -> None:
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "train_0.bin")
    loader = data.loader(f"file://{tmp_path}", 4, sequence=64, dtype="uint16")
    for x, y in loader:
        assert x.shape == y.shape == (4, 64)
        assert x.dtype == torch.int64
        assert torch.equal(x + 1, y)
    assert loader.epoch == 1


def test_ranks_are_those_of_the_job(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        found.append(torch.cat([y for _, y in data.loader(place, 50)]))
    assert len(torch.cat(found).unique()) == 400


def test_what_reading_costs_is_in_the_summary(place: str) -> None:
    told = session.Session(chips.target("trn1.2xlarge"))
    loader = data.loader(place, 32)
    with session.activate(told):
        found = loader.record(1e-9)
        assert "simulated" not in loader.record()
    SOMETIMES["data"]([found], "data")
    assert found["simulated"]["store"] == "lustre-250"
    assert found["simulated"]["step_wait_s"] > 0
    lines = list(reading({"data": [found]}))
    assert lines[1].startswith("on lustre-250: ")


SCRIPT = """\
import sys, torch
from torch import nn
from trnlab import checkpoint, data
from trnlab.frontends.torch import compile_step
model = nn.Linear(8, 1).to("neuron")
optimizer = torch.optim.SGD(model.parameters(), 0.05)
step = compile_step(model, optimizer, lambda m, x, y: (m(x).squeeze(1) - y).square().mean())
loader = data.loader(sys.argv[1], 16, block=int(sys.argv[2]), prefetch=int(sys.argv[3]))
unused = data.loader(sys.argv[1], 16)
batches = iter(loader)
for _ in range(3):
    (x, y), (u, v) = next(batches), next(batches)
    step(torch.cat([x, u]).to("neuron"), torch.cat([y, v]).to("neuron"))
"""


@pytest.fixture
def estimated(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """What an estimate of a script that takes two batches a step says, read so."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(block: int, prefetch: int, *options: str) -> dict[str, Any]:
        command = ["estimate", "--stack", "ours", "--json", "--cache", str(tmp_path / "cache"), *options]
        capsys.readouterr()
        assert main([*command, str(tmp_path / "train.py"), place, str(block), str(prefetch)]) == 0
        return dict(json.loads(capsys.readouterr().out)["targets"][0])

    return run


def test_an_estimate_counts_what_a_step_waits_for_its_data(estimated: Any, place: str) -> None:
    free, slow = (estimated(block, 8, "--target", "trn1.2xlarge") for block in (8 << 20, 200))
    assert (free["input_s"], free["step_s"]) == (0, slow["step_s"])
    (read,) = slow["reading"]  # of the loader that a step takes batches of, and no other
    assert (read["place"], read["batches"], read["store"]) == (place, 2, "lustre-250")
    reader = data.loader(place, 16, block=200).reader
    request = 0.001  # the latency is nearly all of a small one
    assert read["reading_s"] == pytest.approx(2 * 16 * 36 / (8 * reader.request_bytes / request), rel=0.01)
    assert slow["input_s"] == pytest.approx(read["reading_s"] - slow["step_s"])
    assert slow["input_s"] == pytest.approx(read["step_wait_s"])
    longer = 1 + slow["input_s"] / slow["step_s"]
    for name in ("per_s", "mfu"):
        assert slow[name] * longer == pytest.approx(free[name])
    for name in ("usd_per_step", "usd_per_million"):
        assert slow[name] == pytest.approx(free[name] * longer)
    alone = estimated(8 << 20, 0, "--target", "trn1.2xlarge")
    assert alone["input_s"] == pytest.approx(alone["reading"][0]["reading_s"])


def test_an_estimate_of_a_job_counts_it_too(estimated: Any) -> None:
    free, slow = (
        estimated(block, 8, "--target", "2xtrn1.32xlarge", "--ranks", "4", "--batches", "4")["job"]
        for block in (1 << 20, 200)
    )
    assert free["input_s"] == 0
    longer = 1 + slow["input_s"] / slow["step_s"]
    assert longer > 1
    assert slow["per_s"] * longer == pytest.approx(free["per_s"])
    assert slow["usd_per_step"] == pytest.approx(free["usd_per_step"] * longer)


def test_the_text_of_an_estimate_says_what_a_step_waits_for(
    estimated: Any, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--target", "trn1.2xlarge", "--cache", str(tmp_path / "cache"), str(tmp_path / "train.py"), place]
    assert main(["estimate", "--stack", "ours", *command, "200", "8"]) == 0
    said = capsys.readouterr().out
    assert "  and then " in said
    assert "for its data and takes" in said
    assert f"2 batches of {place} a step, read in " in said
    assert "on lustre-250: " in said
    page = tmp_path / "page.html"
    assert main(["check", "--page", str(page), *command, str(8 << 20), "8"]) == 0
    assert "no step waits for its data" in capsys.readouterr().out
    assert "no step waits for its data" in page.read_text()
