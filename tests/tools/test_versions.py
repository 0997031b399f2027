# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.versions`: what is tried, what of it stands in the page, and what failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.versions import __main__ as command
from tools.versions import cases, environments, page

MARK = (
    "# V\n\ntext\n\n<!-- rows: python -m tools.versions -->\n| what | Python | case | | on |\n|---|---|---|---|---|\n"
)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "versions.md"
    path.write_text(f"{MARK}\n## Next\n\nmore\n")
    return path


def test_a_row_takes_the_place_of_the_last_one_of_the_same(written: Path) -> None:
    def row(what: str, case: str, passed: bool, said: str) -> page.Row:
        return page.row(what, "3.11", case, passed, said)

    page.write([row("A 1", "demo", True, ""), row("B 2", "demo", True, "")], written)
    page.write([row("A 1", "tests/x/test_y.py", True, "3 passed"), row("B 2", "demo", False, "E: a | b")], written)
    assert [tuple(each)[:4] for each in page.rows(written)] == [
        ("A 1", "3.11", "demo", "passes"),
        ("A 1", "3.11", "`x/test_y.py`", "3 passed"),
        ("B 2", "3.11", "demo", "**fails**: E: a / b"),
    ]
    text = written.read_text()
    assert text.startswith("# V\n\ntext\n\n")
    assert text.endswith(" |\n\n## Next\n\nmore\n")


def test_rows_of_the_page_are_of_packages_that_are_tried() -> None:
    titles = {package.title for package in environments.PACKAGES.values()}
    assert {row.what.rpartition(" ")[0] if row.what not in titles else row.what for row in page.rows()} <= titles


def test_all_releases_with_the_first_python_and_the_newest_with_the_others(tmp_path: Path) -> None:
    found = [(e.package, e.release, e.executable) for e in command.wanted([], ["a", "b"], tmp_path)]
    assert [each for each in found if each[2] == "b"] == [("torch", command.RELEASES[-1], "b"), ("core", "", "b")]
    assert [each[1] for each in found if each[0] == "torch" and each[2] == "a"] == list(command.RELEASES)
    (one,) = command.wanted(["jax==0.9.2"], [sys.executable], tmp_path)
    assert (one.title, one.path.name) == ("JAX 0.9.2", f"python{one.version}-jax-0.9.2")
    with pytest.raises(SystemExit, match="flax: none of core, torch"):
        command.wanted(["flax==1"], ["a"], tmp_path)


def test_files_of_tests_that_are_tried_are_there() -> None:
    files = [case for package in environments.PACKAGES.values() for case in package.cases if case.endswith(".py")]
    assert [file for file in files if not (cases.ROOT / file).exists()] == []


def test_a_python_that_does_not_run_is_none(tmp_path: Path) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert environments.version_of(str(shim)) == environments.version_of(str(tmp_path / "nothing")) == ""


@pytest.mark.parametrize(
    ("status", "printed", "outcome"),
    [
        (0, "..\n12 passed, 1 skipped in 3.21s\n", (True, "12 passed, 1 skipped")),
        (
            1,
            "F\nFAILED tests/x.py::test_a[one] - E: x\n1 failed, 2 passed in 65.00s (0:01:05)\n",
            (False, "1 failed, 2 passed; `test_a[one]`"),
        ),
        (2, "", (False, "status 2")),
    ],
)
def test_of_a_file_of_tests_is_said_how_many_did_what_and_which_failed(
    status: int, printed: str, outcome: tuple[bool, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "_run", lambda *_: subprocess.CompletedProcess([], status, printed, ""))
    assert cases.outcome("tests/x.py") == outcome


def test_of_a_script_that_fails_its_error_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cases.CASES, "wrong", lambda: cases._script("import sys\nraise ValueError('no')"))
    monkeypatch.setattr(sys, "argv", ["cases", "wrong"])
    cases.main()
    assert json.loads(capsys.readouterr().out) == {"case": "wrong", "passed": False, "said": "ValueError: no"}
