# SPDX-License-Identifier: Apache-2.0
"""`trnlab profile` and `trnlab compare` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from profile_samples import measured_dump

from trnlab.cli.main import main


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.json"
    path.write_text(json.dumps(measured_dump()))
    return path


def test_a_run_is_compared_with_itself(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(run_folder), str(run_folder), "--page", str(tmp_path / "both.html")]) == 0
    told = capsys.readouterr().out
    assert "nothing changed" in told
    assert str(tmp_path / "both.html") in told
    assert (tmp_path / "both.html").read_text().startswith("<!doctype html>")


def test_a_comparison_as_json_is_nothing_but_json(
    run_folder: Path, dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "both.html"
    assert main(["compare", str(dump), str(run_folder), "--json", "--page", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["names"] == ["kernel", "train-1"]
    assert found["total_ps"][0] == 3_000_000
    assert page.exists()


def test_a_measured_run_is_imported_and_a_predicted_one_exported(
    run_folder: Path, dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--import", str(dump)]) == 0
    assert str(dump.with_suffix(".html")) in capsys.readouterr().out
    assert main(["profile", str(run_folder), "--json", str(tmp_path / "step.json")]) == 0
    assert json.loads((tmp_path / "step.json").read_text())["metadata"][0]["is_simulation"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("profile", "--import", "missing.json"), "TRN811"),
        (("compare", "missing", "missing"), "TRN810"),
        (("profile", "--import", "kernel.json", "--json", "nowhere/x.json"), "TRN813"),
    ],
)
def test_mistakes_are_told_in_one_line(
    dump: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], code: str
) -> None:
    monkeypatch.chdir(dump.parent)
    assert main(arguments) == 2
    assert code in capsys.readouterr().err
