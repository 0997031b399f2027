# SPDX-License-Identifier: Apache-2.0
"""`trnlab --version`: the version, and of a clone its commit and whether files differ from it."""

from __future__ import annotations

import subprocess
import tomllib
from importlib.metadata import version as installed
from pathlib import Path

import pytest

import trnlab
from trnlab.cli.main import main
from trnlab.cli.version import version

ROOT = Path(__file__).resolve().parents[2]


def git(folder, *words):
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *name, *words], check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path):
    """A repository that has the package's folder, with one commit."""
    (tmp_path / "src/trnlab").mkdir(parents=True)
    (tmp_path / "src/trnlab/__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def test_a_clone_says_commit_and_state(clone):
    commit = subprocess.run(
        ["git", "-C", str(clone), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert version(clone).startswith(f"trnlab {trnlab.__version__} (commit {commit} of 20")
    assert version(clone).endswith(f", unchanged, from {clone})")
    (clone / "notes.txt").write_text("a file that is not of the repository changes nothing\n")
    assert ", unchanged, " in version(clone)
    (clone / "src/trnlab/__init__.py").write_text("CHANGED = True\n")
    assert ", changed since, " in version(clone)


def test_an_installed_package_says_its_version_alone(clone):
    (clone / "src").rename(clone / "other")
    assert version(clone) == f"trnlab {trnlab.__version__}", "the repository of somebody else"
    assert version(clone / "other") == f"trnlab {trnlab.__version__}", "no repository at all"


def test_without_git_the_place_is_said(clone, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert version(clone) == f"trnlab {trnlab.__version__} (from {clone}; git does not say which commit)"


def test_the_command_prints_it(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert not ended.value.code
    assert capsys.readouterr().out == f"{version()}\n"


def test_the_version_stands_in_one_place():
    with (ROOT / "pyproject.toml").open("rb") as file:
        wanted = tomllib.load(file)
    assert wanted["project"]["dynamic"] == ["version"]
    assert wanted["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "trnlab.__version__"}
    assert installed("trnlab") == trnlab.__version__
