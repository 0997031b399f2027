# SPDX-License-Identifier: Apache-2.0
"""The vendor's command-line tools, started as harnesses of kernels start them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from trnlab.cli.kernels import vendor_tools
from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import language as nl


@nki.jit
def doubled(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x) * 2)
    return out


def run(command: str, folder: Path) -> str:
    return subprocess.run(command, shell=True, check=True, cwd=folder, capture_output=True, text=True).stdout


def test_a_profile_is_viewed_as_scripts_view_it(tmp_path: Path) -> None:
    neff, ntff = tmp_path / "k.neff", tmp_path / "k.ntff"
    x = np.ones((128, 256), np.float32)
    kernel = nki.baremetal(
        doubled, save_neff_name=str(neff), save_trace_name=str(ntff), additional_compile_opt="--logical-nc-config=1"
    )
    np.testing.assert_array_equal(kernel(x), 2 * x)
    with vendor_tools.on_path(True):
        run(f"neuron-profile view --output-format summary-json -n {neff} -s {ntff} > p.json", tmp_path)
        run(f"neuron-profile capture -n {neff} -s again.ntff --num-exec 20 --profile-nth-exec 10", tmp_path)
        again = run(f"neuron-profile view -n {neff} -s again_exec_20.ntff --output-format=summary-json", tmp_path)
        chips = json.loads(run("neuron-ls --json-output", tmp_path))
    summary = json.loads((tmp_path / "p.json").read_text())
    counters = summary[next(iter(summary))]
    assert counters["total_time"] * 1e12 == pytest.approx(doubled.timeline(x).total)
    assert (counters["hbm_read_bytes"], counters["hbm_write_bytes"]) == (x.nbytes, x.nbytes)
    assert next(iter(json.loads(again).values())) == counters
    assert sum(len(chip["neuroncore_ids"]) for chip in chips) > 0


def test_the_path_is_as_it_was_afterwards(tmp_path: Path) -> None:
    before = os.environ["PATH"]
    with vendor_tools.on_path(True):
        folder = Path(os.environ["PATH"].split(os.pathsep)[0])
        assert {p.name for p in folder.iterdir()} == set(vendor_tools.TOOLS)
    assert (os.environ["PATH"], folder.exists()) == (before, False)


def test_a_damaged_file_is_said_in_a_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.ntff"
    bad.write_bytes(b"none")
    with vendor_tools.on_path(True):
        made = subprocess.run(
            ["neuron-profile", "view", "-n", str(bad), "-s", str(bad)], capture_output=True, text=True, check=False
        )
    assert made.returncode == 1
    assert "Traceback" not in made.stderr
