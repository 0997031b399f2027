# SPDX-License-Identifier: Apache-2.0
"""`torchrun` itself, of a script with captured steps: what ranks learn is what one process learns, and to the bit the
same again, whatever the number of threads and whoever starts them."""

import os
import re
import subprocess
import sys

import pytest

from tests.distributed.ranks import HERE, SECONDS

pytestmark = pytest.mark.torch
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
OURS = ("trnlab.cli.main", "run", "--ranks", "2")


def learned(folder, threads, command):
    """By way and rank, the digest of losses and weights."""
    command = [sys.executable, "-m", *command, str(HERE / "scripts" / "compiled_script.py"), str(threads)]
    told = {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONWARNINGS": "ignore",
        "TRNLAB_TARGET": "trn1.32xlarge",
        "TRNLAB_PRECISION": "fp32",
        "TRNLAB_CACHE": str(folder / "cache"),
    }
    ended = subprocess.run(
        command, cwd=folder, env={**os.environ, **told}, text=True, capture_output=True, timeout=SECONDS
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return dict(re.findall(r"^(?:\[rank \d\] )?learned (\w+ \d) ([0-9a-f]{64})$", ended.stdout, re.MULTILINE))


def test_a_captured_step_learns_the_same_bits_on_every_run(tmp_path):
    first = learned(tmp_path, 1, TORCHRUN)
    assert sorted(first) == ["DistributedDataParallel 0", "DistributedDataParallel 1", "shards 0", "shards 1"]
    assert learned(tmp_path, 2, OURS) == first
