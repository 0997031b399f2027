# SPDX-License-Identifier: Apache-2.0
"""`trnlab run` with scripts of kernels, as their authors have them: imports, chips, what the run shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from trnlab.policy import alternatives, parse

KERNEL = """
    import numpy as np
    import nki
    import nki.language as nl

    @nki.jit
    def double(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.multiply(nl.load(x), 2.0))
        return out

    def test_double():
        x = np.ones((128, 64), np.float32)
        assert (double(x) == 2).all()
"""
CALLS = (
    KERNEL
    + """
    test_double()
    double(np.ones((128, 64), np.float32))
    double(np.ones((64, 64), np.float32))
"""
)


def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRNLAB", "NEURON"))}
    return processes.run(
        [sys.executable, "-m", "trnlab.cli.main", "run", *arguments],
        cwd=folder,
        env={**kept, "TRNLAB_CACHE": str(folder / "cache"), **more},
        timeout=300,
    )


def script(folder: Path, text: str, name: str = "bench.py") -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name


def summary(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "runs" / name / "summary.json").read_text())
    return found


def test_kernels_appear_with_their_calls_and_times(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, CALLS))
    assert done.returncode == 0, done.stderr
    found = summary(tmp_path, "bench-1")
    assert [(k["name"], k["calls"], k["chip"]) for k in found["kernels"]] == [
        ("double", 2, "trn2"),
        ("double", 1, "trn2"),
    ]
    per_call = [k["instructions"] for k in found["kernels"]]
    assert found["instructions"] == 2 * per_call[0] + per_call[1]
    assert found["step_time_s"] == pytest.approx(sum(k["time_s"] for k in found["kernels"])), "each once"
    for kernel in found["kernels"]:
        worked = [kernel["engines"][name] for name in ("vector", "scalar") if kernel["engines"][name]["busy"]]
        assert worked
        assert all(engine["busy"] <= engine["active"] for engine in worked)
    assert "double: " in done.stdout
    assert "2 calls" in done.stdout
    assert (tmp_path / "runs/bench-1/report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "more", "chip"),
    [
        ((), {"NKI_SIMULATOR": "1", "NEURON_PLATFORM_TARGET_OVERRIDE": "gen2"}, "trn1"),
        (("--target", "trn1.2xlarge"), {"NEURON_PLATFORM_TARGET_OVERRIDE": "trn3"}, "trn1"),
        ((), {"TRNLAB_TARGET": "trn3"}, "trn3"),
    ],
)
def test_the_chip_is_the_target_or_what_the_vendors_variable_says(
    tmp_path: Path, arguments: tuple[str, ...], more: dict[str, str], chip: str
) -> None:
    done = run(tmp_path, *arguments, script(tmp_path, CALLS), **more)
    assert done.returncode == 0, done.stderr
    assert {k["chip"] for k in summary(tmp_path, "bench-1")["kernels"]} == {chip}


def test_a_file_of_tests_runs_with_pytest_and_says_so_without(tmp_path: Path) -> None:
    name = script(tmp_path, KERNEL, "my_kernel_test.py")
    alone = run(tmp_path, name)
    assert alone.returncode == 0
    assert "nothing ran on the simulated chip" in alone.stderr
    assert "trnlab run -m pytest my_kernel_test.py" in alone.stderr
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert summary(tmp_path, "pytest-1")["kernels"][0]["calls"] == 1


def test_a_module_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "no_such_module")
    assert done.returncode == 2
    assert "TRN123" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_script_that_only_computes_on_the_host_is_told_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, "print(1 + 1)"))
    assert (done.returncode, done.stdout) == (0, "2\n")
    assert "call a kernel (@nki.jit) on arrays" in done.stderr


def test_the_vendors_package_wins_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "nki").mkdir()
    (tmp_path / "nki/__init__.py").write_text("vendor = True\n")
    name = script(tmp_path, "import nki\nprint(hasattr(nki, 'vendor'))\n")
    path = {"PYTHONPATH": str(tmp_path)}
    assert run(tmp_path, name, **path).stdout == "True\n"
    assert run(tmp_path, "--own-nki", name, **path).stdout == "False\n"


def test_benchmarked_kernels_are_in_the_summary(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, KERNEL + "\n    nki.benchmark(double)(np.ones((128, 64), np.float32))\n"))
    assert done.returncode == 0, done.stderr
    found = summary(tmp_path, "bench-1")
    assert ([k["calls"] for k in found["kernels"]], found["instructions"]) == ([1], 0)
    assert "predicted" in done.stdout


def test_a_band_comes_from_the_choices_of_the_compiler_that_nobody_knows(tmp_path: Path) -> None:
    done = run(tmp_path, "--band", script(tmp_path, CALLS))
    assert done.returncode == 0, done.stderr
    found = summary(tmp_path, "bench-1")
    undecided = set(alternatives(parse("scheduled", found["chip"], "nki")))
    assert {(c["option"], c["value"]) for c in found["choices"]} == undecided, "of both kernels together"
    low, high = found["step_time_band_s"]
    changes = [c["change"] for c in found["choices"]]
    assert low / found["step_time_s"] <= 1 + min(changes) + 1e-9
    assert high / found["step_time_s"] >= 1 + max(changes) - 1e-9
    assert "otherwise" in done.stdout
    plain = run(tmp_path, script(tmp_path, CALLS))
    assert "choices" not in summary(tmp_path, "bench-2"), plain.stderr


def test_a_module_whose_package_needs_another_says_which(tmp_path):
    """`trnlab run -m`: not that the module is missing, but where its package imports what is not here."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import neuronx_frobnicate\n")
    (package / "tool.py").write_text("print('here')\n")
    start = "import sys; from trnlab.cli.main import main; sys.exit(main(['run', '-m', 'package.tool']))"
    done = processes.run([sys.executable, "-c", start], cwd=tmp_path)
    assert done.returncode == 1
    assert "import neuronx_frobnicate" in done.stderr
    assert "No module named 'neuronx_frobnicate'" in done.stderr
