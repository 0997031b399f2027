# SPDX-License-Identifier: Apache-2.0
"""Training that was killed goes on where it was, bit for bit; what cannot go on is refused."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from trnlab import checkpoint, chips
from trnlab.errors import RunError, UsageError
from trnlab.frontends.torch import InterpreterEngine, compile_step, replay, use
from trnlab.frontends.torch.saving import state_files, training_state
from trnlab.profile.summary import input_wait
from trnlab.runtime import session
from trnlab.runtime.checkpoint_plan import CheckpointPlan, CheckpointUse

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _alone() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    CheckpointUse.by = None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="trainings are forks of a process that has imported all")
@pytest.mark.parametrize(("style", "kills"), [("steps", 1), pytest.param("eager", 3, marks=pytest.mark.slow)])
def test_training_that_is_killed_goes_on_bit_for_bit(tmp_path: Path, style: str, kills: int) -> None:
    """bf16-all with stochastic rounding, dropout, AdamW, a schedule, shuffling; SIGKILL at random moments. In a
    process of its own: forks of this one would lack its threads."""
    command = [sys.executable, "-m", "tools.storage.resumes", "--kills", str(kills), "--seed", "1", "--style", style]
    ended = subprocess.run(
        [*command, "--place", str(tmp_path / "runs")], capture_output=True, text=True, timeout=600, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = re.match(r"(\d+) kills, (\d+) trainings came to their end, 0 failures", ended.stdout)
    assert found is not None, ended.stdout
    assert int(found[1]) >= kills
    assert int(found[2]) >= 1


@pytest.mark.parametrize("kind", ["fsdp", pytest.param("tp-steps", marks=pytest.mark.slow)])
def test_ranks_of_which_one_is_killed_go_on_bit_for_bit(tmp_path: Path, kind: str) -> None:
    """Two ranks under `trnlab run --ranks`, with dropout, moments, a schedule and stochastic rounding."""
    from tools.storage.rank_resumes import trial

    assert trial(kind, 2, 1, random.Random(3), tmp_path) == []


def parts(features: int = 4) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, features), nn.BatchNorm1d(features)).to("neuron")
    return model, torch.optim.Adam(model.parameters(), 0.1)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def trained(kept: replay.StepReplay, steps: int, seed: int = 3, pair: bool = False) -> list[float]:
    """The losses of a loop that knows nothing of checkpoints."""
    torch.manual_seed(seed)
    model, optimizer = parts()
    losses = []
    with use(InterpreterEngine()):
        step = compile_step(model, optimizer, (lambda m, x: (loss_of(m, x), x.sum())) if pair else loss_of)
        for _ in range(steps):
            result = kept.call(step, (torch.randn(8, 4).to("neuron"),))
            losses += [r.item() for r in (result if pair else [result])]
    kept._writer.wait()
    return losses


@pytest.mark.parametrize("pair", [False, True])
def test_a_loop_is_replayed_and_goes_on(tmp_path: Path, pair: bool) -> None:
    whole = trained(replay.StepReplay(CheckpointPlan(str(tmp_path / "a"), every=100)), 7, pair=pair)
    trained(replay.StepReplay(CheckpointPlan(str(tmp_path / "b"), every=2)), 5, pair=pair)
    again = replay.StepReplay(CheckpointPlan(str(tmp_path / "b"), every=2))
    assert again.until == 4
    assert trained(again, 7, pair=pair) == whole


def test_a_loop_that_does_not_repeat_itself_is_stopped(tmp_path: Path) -> None:
    trained(replay.StepReplay(CheckpointPlan(str(tmp_path), every=2)), 2)
    with pytest.raises(RunError) as caught:
        trained(replay.StepReplay(CheckpointPlan(str(tmp_path), every=2)), 4, seed=4)
    assert caught.value.code == "TRN535"


def test_a_step_that_returns_more_than_numbers_is_refused_at_once(tmp_path: Path) -> None:
    kept = replay.StepReplay(CheckpointPlan(str(tmp_path), every=2))
    model, optimizer = parts()
    with use(InterpreterEngine()):
        step = compile_step(model, optimizer, lambda m, x: (loss_of(m, x), m(x)))
        with pytest.raises(RunError) as caught:
            kept.call(step, (torch.randn(8, 4).to("neuron"),))
    assert caught.value.code == "TRN533"


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    model, optimizer = parts()
    run = checkpoint.resume(str(tmp_path), every=1, model=model, optimizer=optimizer)
    run.stepped()
    run.wait()
    wider, others = parts(5)
    for objects in ({"model": wider}, {"model": nn.Linear(4, 4)}, {"ema": wider}, {"optimizer": others}):
        if "optimizer" in objects:
            objects["optimizer"] = torch.optim.Adam([*others.param_groups[0]["params"], nn.Parameter(torch.ones(1))])
        with pytest.raises(RunError) as caught:
            checkpoint.resume(str(tmp_path), **objects)
        assert caught.value.code == "TRN530"


def test_without_a_place_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = checkpoint.resume(model=nn.Linear(2, 2), every=1)
    assert [list(run.batches([1, 2], epochs=2)), run.step] == [[1, 2, 1, 2], 0]
    run.stepped()
    assert not list(tmp_path.iterdir())
    for every, keep in ((0, 3), (5, -1)):
        with pytest.raises(UsageError) as caught:
            checkpoint.resume(str(tmp_path / "x"), every=every, keep=keep)
        assert caught.value.code == "TRN534"


def test_states_of_bf16_weights_keep_their_fp32_moments(tmp_path: Path) -> None:
    """`Optimizer.load_state_dict` would round them to the weights' format."""
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)
    optimizer.state[weight]["momentum_buffer"] = torch.tensor([1.00001, 2.00002, 3.00003])
    files, _ = state_files.packed({"optimizer": training_state.taken(optimizer)})
    read = {name: b"".join(x) if isinstance(x, list) else bytes(x) for name, x in files.items()}
    state = state_files.unpacked(read)["optimizer"]
    other = torch.optim.SGD([weight], 0.5, momentum=0.1)
    training_state.put_back(other, state, "optimizer")
    assert other.state[weight]["momentum_buffer"].tolist() == torch.tensor([1.00001, 2.00002, 3.00003]).tolist()
    assert other.param_groups[0]["lr"] == 0.1


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    with pytest.raises(RunError) as caught:
        state_files.from_bytes(pickle.dumps(Evil()))
    assert caught.value.code == "TRN532"
    assert not (tmp_path / "ran").exists()


def test_differences_are_named() -> None:
    a = {"w": torch.tensor([1.0, 2.0]), "n": 1, "nan": float("nan"), "l": [1, 2]}
    b = {"w": torch.tensor([1.0, 2.5]), "n": 1, "nan": float("nan"), "l": [1, 3]}
    assert training_state.differences(a, a) == []
    assert training_state.differences(a, b) == ["w: 1 of 2 elements differ, by up to 0.5", "l: [1, 2] and [1, 3]"]


def test_the_wait_for_data_is_told_to_the_run() -> None:
    waits: list[float] = []
    told = session.Session(chips.target("trn1.2xlarge"))
    told.run = SimpleNamespace(waited=waits.append)  # type: ignore[assignment]
    with session.activate(told):
        assert list(checkpoint.resume(place="").batches([1, 2], epochs=2)) == [1, 2, 1, 2]
    assert len(waits) == 6  # the end of an epoch is waited for, too
    assert min(waits) >= 0
    summary = {"input_s": 0.5, "steps": 10, "step_time_s": 0.01}
    assert list(input_wait(summary)) == ["waited for 50 ms a step on this machine, 5 times what it takes on the chip"]
    assert list(input_wait({"steps": 10})) == []
