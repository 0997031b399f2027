# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks die and that go on: by our own launcher and by torchrun. The losses after a restart are, to the
bit, those of a job that nobody disturbed, from the step behind the newest checkpoint on."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest

from tests import processes
from tests.distributed.ranks import HERE, SECONDS
from trnlab.runtime.jobs import elastic

pytestmark = pytest.mark.torch
SCRIPT = str(HERE / "scripts" / "elastic_script.py")
OURS = (
    sys.executable,
    "-m",
    "trnlab.cli.main",
    "run",
    "--target",
    "trn1.32xlarge",
    "--precision",
    "fp32",
    "--out",
    "job",
)
STEPS = 6


def started(folder, cache, *command, **environment):
    """What a job prints; its losses by (step, rank, ranks), the latest of each; and its exit status."""
    told = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TRNLAB_CACHE": str(cache), "TRNLAB_LIVE": "off"}
    folder.mkdir(exist_ok=True)
    ended = processes.run(command, cwd=folder, env={**os.environ, **told, **environment}, timeout=SECONDS)
    said = ended.stdout + ended.stderr
    found = re.findall(r"loss (\d+) of (\d+)/(\d+): (\S+)", ended.stdout)
    return said, {tuple(map(int, key)): value for *key, value in found}, ended.returncode


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    said, losses, status = started(folder, folder / "cache", *OURS, "--ranks", "2", SCRIPT, str(STEPS))
    assert status == 0, said
    assert len(losses) == 2 * STEPS
    return folder / "cache", losses


def test_a_spare_takes_the_place_of_a_rank_that_was_killed(tmp_path, undisturbed):
    cache, losses = undisturbed
    said, found, status = started(
        tmp_path,
        cache,
        *OURS,
        "--ranks",
        "2",
        "--spares",
        "1",
        "--max-restarts",
        "1",
        "--checkpoint",
        "kept",
        "--every",
        "2",
        "--fault",
        "rank1:step4=kill",
        SCRIPT,
        str(STEPS),
    )
    assert status == 0, said
    assert found == losses
    assert "TRN271: rank 1 is gone, and rank 0 waits for it" in said
    first, second = json.loads((tmp_path / "job" / elastic.FILE).read_text())["attempts"]
    assert (first["dead"], first["last"], first["lost_steps"]) == ([1], 3, 1)
    assert first["lost_tokens"] == 8
    assert first["lost_usd"] > 0
    assert (second["first"], second["last"], second["ranks"]) == (3, STEPS, 2)
    assert "lost since the newest checkpoint: 1 step, 8 tokens" in said


def test_a_job_goes_on_with_fewer(tmp_path, undisturbed):
    cache, losses = undisturbed
    said, found, status = started(
        tmp_path,
        cache,
        *OURS,
        "--ranks",
        "1:2",
        "--max-restarts",
        "1",
        "--checkpoint",
        "kept",
        "--every",
        "2",
        "--fault",
        "rank1:step4=ecc",
        SCRIPT,
        str(STEPS),
    )
    assert status == 0, said
    assert "TRN555: an uncorrectable error in the HBM of rank 1" in said
    assert "going on after step 2" in said
    whole = {step: float.fromhex(value) for (step, _, ranks), value in found.items() if ranks == 1}
    assert sorted(whole) == [3, 4, 5, 6]
    for step, loss in whole.items():  # the mean over the batch is that of its halves, but for rounding
        halves = [float.fromhex(losses[step, rank, 2]) for rank in (0, 1)]
        assert loss == pytest.approx(sum(halves) / 2, rel=1e-5)


def test_torchrun_restarts_a_job(tmp_path, undisturbed):
    cache, losses = undisturbed
    said, found, status = started(
        tmp_path,
        cache,
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "1:2",
        "--nproc-per-node",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "127.0.0.1:0",
        "--max-restarts",
        "1",
        "--rdzv-conf",
        "last_call_timeout=1",  # nobody else comes
        SCRIPT,
        str(STEPS),
        TRNLAB_TARGET="trn1.32xlarge",
        TRNLAB_PRECISION="fp32",
        TRNLAB_CHECKPOINT=str(tmp_path / "kept"),
        TRNLAB_CHECKPOINT_EVERY="2",
        TRNLAB_FAULT="rank1:step4=kill",
    )
    assert status == 0, said
    assert found == losses
    assert "going on after step 2" in said
