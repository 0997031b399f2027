# SPDX-License-Identifier: Apache-2.0
"""Candidates on the workers of an executor: the same judgements, files once by content, what a lost worker takes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

import pytest

from trnlab.bench import ladder, tuning
from trnlab.bench.away import CandidateExecutor
from trnlab.bench.candidate import KernelCandidate
from trnlab.bench.judging import ProblemSpec
from trnlab.cli.main import main
from trnlab.storage.content import ContentStore

HERE = Path(__file__).parent
CANDIDATES = HERE / "candidates"
KERNELS = [CANDIDATES / name for name in ("softmax.py", "softmax_without_maximum.py", "writes.py", "crashes.py")]
BENCH = ("bench", "--json", "--no-band", "--seed", "1", "--inputs", "large", "--reference")


class _Workers(Executor):
    """Works at once, in this process; some calls are those of a worker that dies."""

    def __init__(self, *dead: int) -> None:
        self.dead, self.calls = dead, 0

    def submit(self, function: Any, /, *words: Any, **more: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self.calls += 1
        if self.calls in self.dead:
            done.set_exception(BrokenExecutor("it is gone"))
        else:
            done.set_result(function(*words))
        return done


def judged(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    main([*BENCH, str(HERE / "softmax_reference.py"), *map(str, words)])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    patient = {"distributed.comm.timeouts.connect": "600s", "distributed.comm.timeouts.tcp": "600s"}
    with (
        dask.config.set(patient),
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as found,
    ):
        yield found


def test_workers_of_dask_judge_as_this_machine_does(
    cluster: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among candidates that write files and end their process: what a worker runs is contained, too."""
    monkeypatch.chdir(tmp_path)
    address = f"dask://{cluster.scheduler_address.removeprefix('tcp://')}"
    there = judged(capsys, "--executor", address, *KERNELS)
    here = judged(capsys, "--jobs", 1, *KERNELS)
    assert [each["verdict"] for each in there["candidates"]] == ["right", "wrong", "refused", "refused"]
    assert there == here
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_is_killed_takes_no_candidate_with_it(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from distributed import Client

    with Client(cluster.scheduler_address, set_as_default=False) as client:
        before = client.run(os.getpid)
        os.kill(next(iter(before.values())), signal.SIGKILL)
        address = f"dask://{cluster.scheduler_address.removeprefix('tcp://')}"
        words = ["tune", "--json", "--no-cache", "--inputs", "usual", "--executor", address, "--param", "rows=64,128"]
        words += ["--reference", str(HERE / "rmsnorm_reference.py"), str(HERE / "tunable_rmsnorm.py")]
        assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tried"] == 2
    assert all(trial["time_ps"] for trial in found["trials"])


def test_files_are_sent_once_by_content_and_written_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "softmax.py").write_text((CANDIDATES / "softmax.py").read_text())
    sent: list[Any] = []
    executor = CandidateExecutor(_Workers(), lambda files: sent.append(files) or files)
    spec = ProblemSpec(None, ("float32[128,128]",), 1, ())
    bench = ladder.KernelBench(spec, band=False)
    candidates = [KernelCandidate(tmp_path / name / "softmax.py") for name in ("one", "two", "one")]
    found = ladder.run(bench, candidates, executor, lambda *said: None)
    assert [entry.judgement.verdict for entry in found] == ["timed"] * 3
    assert len(sent) == 1


def test_a_lost_worker_loses_its_candidates_alone() -> None:
    spec = ProblemSpec(None, ("float32[128,128]",), 1, ())
    bench = ladder.KernelBench(spec, band=False)
    candidates = [KernelCandidate(path) for path in KERNELS[:2]]
    found = ladder.run(bench, candidates, CandidateExecutor(_Workers(1)), lambda *said: None)
    assert [(e.candidate.name, e.judgement.verdict) for e in found] == [
        ("softmax_without_maximum.py", "timed"),
        ("softmax.py", "refused"),
    ]
    assert found[1].judgement.error is not None
    assert found[1].judgement.error.code == "TRN845"


def test_points_of_a_lost_worker_are_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tuning, "BATCH", 1)
    spec = ProblemSpec(None, ("float32[4096,512]", "float32[1,512]"), 1, ())
    bench = ladder.KernelBench(spec, band=False)
    job = bench.job(KernelCandidate(HERE / "tunable_rmsnorm.py"), bench.arguments())
    task = tuning.TuneTask(job, tuning.SearchSpace({"rows": (64, 128)}), spec)
    store, points = ContentStore(tmp_path), []
    told = lambda trial, number, of: points.append((dict(trial.values), trial.lost))  # noqa: E731
    first = tuning.run(task, 8, CandidateExecutor(_Workers(2)), store, told)
    assert points == [({"rows": 64}, False), ({"rows": 128}, True)]
    assert first.trials[1].refused.startswith("TRN845")
    again = tuning.run(task, 8, CandidateExecutor(_Workers()), store, told)
    assert (again.reused, [trial.lost for trial in again.trials]) == (1, [False, False])
