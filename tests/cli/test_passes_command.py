# SPDX-License-Identifier: Apache-2.0
"""What users see of the compiler's part: `trnlab passes`, and the report of room in what a run leaves."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest

from tests import processes
from trnlab.cli.main import main

KERNELS = """
    import numpy as np
    import neuronxcc.nki as nki
    import neuronxcc.nki.isa as nisa
    import neuronxcc.nki.language as nl

    @nki.jit
    def large(x, w):
        out = nl.ndarray((128, 2048), dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = nl.ndarray((30, nl.par_dim(128), 2048), dtype=x.dtype, buffer=nl.sbuf)
        sums = nl.ndarray((12, nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)
        total = nl.zeros((128, 2048), dtype=x.dtype, buffer=nl.sbuf)
        weights, data = nl.load(w), nl.load(x)
        for i in nl.affine_range(12):
            sums[i] = nisa.nc_matmul(weights, data[:, nl.ds(128 * i, 512)])
        for i in nl.sequential_range(30):
            tiles[i] = nl.multiply(nl.load(x), float(i))
        for i in [*range(12), *reversed(range(12))]:
            total[:, 0:512] = nl.add(nl.multiply(total[:, 0:512], 0.5), sums[i])
        for i in [*range(30), *reversed(range(30))]:
            total[...] = nl.add(nl.multiply(total, 0.5), tiles[i])
        nl.store(out, total)
        return out

    large(np.ones((128, 2048), np.float32), np.ones((128, 128), np.float32))
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("passes") / "large.py"
    path.write_text(textwrap.dedent(KERNELS))
    return path


def trnlab(script, *arguments):
    return processes.run([sys.executable, "-m", "trnlab.cli.main", *arguments], cwd=script.parent, timeout=300)


def test_without_a_script_the_options_are_listed(capsys):
    assert main(["passes"]) == 0
    shown = capsys.readouterr().out
    assert ["versions", "on"] in [line.split()[:2] for line in shown.splitlines()]
    assert "policies: as written, scheduled" in shown


def test_a_scripts_kernels_are_timed_without_each_option(script):
    done = trnlab(script, "passes", "large.py")
    assert done.returncode == 0, done.stderr
    first, written, head, *rows = done.stdout.splitlines()
    assert first.startswith("large, scheduled: ")
    assert written.startswith("    as written: ")
    assert head.split() == ["without", "takes", "more", "what", "it", "did"]
    found = {row.split()[0]: row for row in rows}
    assert "does not fit" in found["spill"]
    assert "tiles" in found["versions"]
    assert any("PSUM to SBUF" in row for row in rows)
    assert any("SBUF to HBM" in row and "large.py:" in row for row in rows)


def test_a_run_says_what_left_a_memory_and_what_that_costs(script):
    done = trnlab(script, "run", "--out", "run", "large.py")
    assert done.returncode == 0, done.stderr
    summary = json.loads((script.parent / "run" / "summary.json").read_text())
    spill, (kernel,) = summary["spill"], summary["kernels"]
    ways = ("sbuf", "hbm"), ("psum", "sbuf")
    by_way = {way: [t for t in spill["tiles"] if (t["from"], t["to"]) == way] for way in ways}
    assert spill["save_bytes"] == sum(t["save_bytes"] for t in by_way["sbuf", "hbm"]) > 0
    assert spill["reload_bytes"] == sum(t["reload_bytes"] for t in by_way["sbuf", "hbm"]) > 0
    assert spill["psum_bytes"] == sum(t["save_bytes"] for t in by_way["psum", "sbuf"]) > 0
    assert all("large.py:" in t["line"] for t in spill["tiles"])
    assert 0 < spill["cost_ps"] < summary["step_ps"]
    assert kernel["policy"] == summary["policy"]["name"] == "scheduled"
    assert next(p for p in kernel["passes"] if p["option"] == "versions")["tiles"][1] > 0
    page = (script.parent / "run" / "report.html").read_text()
    for text in (done.stdout, page):
        assert "spilled from SBUF to HBM" in text
        assert "as compiled" in text


def test_with_spilling_off_the_way_out_names_the_option(script):
    done = trnlab(script, "run", "--out", "refused", "--schedule", "spill=off", "large.py")
    assert done.returncode == 2
    assert "TRN50" in done.stderr
    assert "--schedule spill=on" in done.stderr
