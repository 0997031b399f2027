# SPDX-License-Identifier: Apache-2.0
"""Numbers of the command line have ranges, and what cannot be is one line, whatever the surroundings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trnlab.cli.commands import COMMANDS as COMMANDS_OF_TRNLAB
from trnlab.cli.commands import parser
from trnlab.cli.main import main

COMMANDS = [
    ["doctor", "--ranks", "{}"],
    ["doctor", "--keep", "{}"],
    ["precision", "--steps", "{}", "x.py"],
    ["checkpoint", "diff", "x", "--rank", "{}"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("number", ["-1", "", "1.5", "x", "9" * 5000, "99999999999", "nan"])
def test_a_number_out_of_its_range_is_refused(
    command: list[str], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_joined(command, number)) == 2
    assert "TRN569" in capsys.readouterr().err


def test_every_number_of_the_command_line_has_a_range() -> None:
    """Options of a plain number take any; those of `cli.options` say what can be. A seed may be any number, and what
    settings read themselves has ranges there."""
    known = {"--seed", "--every", "--keep", "--comm-threshold", "--optimize"}
    for name in COMMANDS_OF_TRNLAB:
        for action in _actions(parser(name)):
            if action.type in (int, float):
                assert {*action.option_strings} & known, f"{name} {action.option_strings}"


def _actions(of: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)
        else:
            yield action


def _joined(command: list[str], number: str) -> list[str]:
    """With the number behind an equals sign, so that none is taken for an option."""
    at = command.index("{}")
    return [*command[: at - 1], f"{command[at - 1]}={number}", *command[at + 1 :]]


@pytest.mark.parametrize(
    "command", [["doctor", "--ranks=0"], ["precision", "--steps=0", "x.py"], ["doctor", "--keep=0"]]
)
def test_so_is_none_of_what_there_has_to_be(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    assert "TRN569" in capsys.readouterr().err


def test_more_ranks_than_the_target_starts_start_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *args, **kwargs: pytest.fail("a process was started"))
    assert main(["run", "--target", "trn1.2xlarge", "--ranks", "100000", str(tmp_path / "x.py")]) == 2
    error = capsys.readouterr().err
    assert "TRN180" in error
    assert "at most 2" in error


def test_sizes_that_run_backwards_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fabric", "test", "allr", "--target", "trn1.32xlarge"]
    assert main([*command, "-b", "1G", "-e", "1K"]) == 2
    assert "TRN185" in capsys.readouterr().err
    assert main([*command, "-e", "1K"]) == 0


def test_no_modes_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.py").write_text("")
    command = ["precision", "--target", "trn1.2xlarge", "--modes", "", "--out", str(tmp_path / "out")]
    assert main([*command, str(tmp_path / "x.py")]) == 2
    assert "TRN121" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["-" * 3000 + "1", "a" + ".b" * 3000, "(" * 3000 + ")" * 3000, "not " * 5000 + "x"])
def test_a_deep_expression_is_no_traceback(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.py").write_text(f"x = {text}\n")
    assert main(["lint", str(tmp_path / "x.py")]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_a_home_that_nobody_has(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TRNLAB_CACHE", "~nosuchuser/x")
    assert main(["cache", "ls"]) == 2
    assert "TRN122" in capsys.readouterr().err
    monkeypatch.setenv("TRNLAB_LIVE", "~nosuchuser/x")
    assert main(["monitor"]) == 2
    assert "TRN553" in capsys.readouterr().err


def test_a_closed_output_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["chips"]) == 0
    sys.stdout.close()
