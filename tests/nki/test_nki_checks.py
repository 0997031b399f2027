# SPDX-License-Identifier: Apache-2.0
"""Levels of checks: who decides, when a kernel's findings are told, and what `lint` says while running."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab import checks
from trnlab.errors import ConstraintError, LintError, UsageError

X = np.ones((128, 64), np.float32)


@pytest.fixture(autouse=True)
def _levels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(checks, "_configured", {})
    monkeypatch.delenv(checks.VARIABLE, raising=False)
    return


@nki.jit
def careless(x):
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile[0:64], src=x[0:64])
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_a_finding_is_an_error_at_every_call() -> None:
    """The second call finds the recorded kernel, and is refused all the same."""
    for _ in range(2):
        with pytest.raises(ConstraintError, match="of which a part was never written") as caught:
            careless(X)
        assert caught.value.code == "TRN430"


def test_the_innermost_block_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block, then command line, then environment, then default."""
    monkeypatch.setenv(checks.VARIABLE, "uninitialised-read=off, race=warn")
    assert (checks.level("uninitialised-read"), checks.level("race")) == ("off", "warn")
    careless(X)
    checks.configure({"uninitialised-read": "error"})
    with pytest.raises(ConstraintError):
        careless(X)
    with nki.checks(uninitialised_read="off"):
        careless(X)
        with nki.checks(uninitialised_read="error"), pytest.raises(ConstraintError):
            careless(X)
        careless(X)
    assert checks.level("overlap") == "error"


def test_a_warning_is_at_the_line_of_the_kernel() -> None:
    """So that Python's filters work on it; the numbers come all the same."""
    with nki.checks(uninitialised_read="warn"), pytest.warns(checks.CheckWarning, match="TRN430") as seen:
        result = careless(X)
    assert (Path(seen[0].filename), seen[0].lineno) == (Path(__file__), careless.function.__code__.co_firstlineno + 5)
    np.testing.assert_array_equal(result[:64], X[:64])


@pytest.mark.parametrize("text", ["races=off", "race=quiet", "race"])
def test_what_is_no_level_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="race") as caught:
        checks.parse(text)
    assert caught.value.code == "TRN127"


@nki.jit
def flagged(x, flag=False):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    if flag is False:
        nisa.dma_copy(dst=out, src=x)
    return out


def test_what_the_compiler_refuses_is_a_warning_while_running() -> None:
    with pytest.warns(checks.CheckWarning, match="is and is not compare identities"):
        flagged(X)
    with nki.checks(lint="error"), pytest.raises(LintError) as caught:
        flagged(X)
    assert caught.value.where is not None
    assert caught.value.where.text == "if flag is False:"
    with nki.checks(lint="off"):
        flagged(X)


def test_kernels_without_source_are_left_alone() -> None:
    """A kernel that was typed into an interpreter cannot be read again."""
    names = {"nl": nl, "nisa": nisa, "nki": nki}
    text = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    if True is True:
        nisa.dma_copy(dst=out, src=x)
    return out
"""
    exec(compile(text, "<typed>", "exec"), names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(names["kernel"](X), X)  # type: ignore[operator]


def test_other_errors_of_python_stay_what_they_are() -> None:
    @nki.jit
    def kernel(x):
        return x.shape + 1

    with pytest.raises(TypeError):
        kernel(X)


@nki.jit
def on_two_cores(x):
    out = nl.ndarray((2, 128, 64), x.dtype, buffer=nl.shared_hbm)
    core = nl.program_id(0)
    nisa.dma_copy(dst=out[core], src=x)
    nisa.core_barrier(data=out, cores=(0, 1))
    swapped = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=swapped, src=out[1 - core])
    nisa.dma_copy(dst=out[core], src=swapped)
    return out


def test_what_another_core_wrote_counts() -> None:
    """Each core reads from shared HBM what the other one put there."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with nki.checks(race="off"):
            assert on_two_cores[2](X).sum() == 2 * X.size


def test_the_command_line_turns_checks_down(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    lines = Path(__file__).read_text().splitlines()
    start = lines.index("def careless(x):") - 1
    kernel = "\n".join(lines[start : start + 7])
    script.write_text(
        "import numpy as np\nimport nki\nimport nki.isa as nisa\nimport nki.language as nl\n"
        f"{kernel}\nprint('sum', careless(np.ones((128, 64), np.float32))[:64].sum())\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "trnlab.cli.main",
            "run",
            "--out",
            str(tmp_path / "run"),
            "--check",
            "uninitialised-read=warn",
            str(script),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sum 4096.0" in done.stdout
    assert "TRN430" in done.stderr
