# SPDX-License-Identifier: Apache-2.0
"""A release: what has to be true before one is made, and one of a clone from beginning to end."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from tools.release import rules, trial

ROOT = Path(__file__).resolve().parents[2]
AS = ("-c", "user.name=a", "-c", "user.email=a@example.org")
# Keys that the format wants, and those that it has and could stand here (citation-file-format, schema guide 1.2.0).
CFF_WANTED = {"authors", "cff-version", "message", "title"}
CFF = CFF_WANTED | {
    "abstract",
    "date-released",
    "doi",
    "keywords",
    "license",
    "repository-code",
    "type",
    "url",
    "version",
}


@pytest.fixture
def repository(tmp_path):
    """One that can be released as it is."""
    (tmp_path / "src/trnlab").mkdir(parents=True)
    (tmp_path / "src/trnlab/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3\n\n- More.\n\n## 1.2.2\n\n- Less.\n")
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.3\n")
    rules.git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def commit(folder):
    rules.git(folder, "add", ".")
    rules.git(folder, *AS, "commit", "-qm", "a state", "--allow-empty")


def test_a_repository_that_keeps_the_rules_can_be_released(repository):
    assert rules.version(repository) == "1.2.3"
    assert rules.broken(repository) == []
    rules.git(repository, "tag", "v1.2.3")
    assert rules.broken(repository) == [], "the tag of this very commit"


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("src/trnlab/__init__.py", '__version__ = "1.2"\n', "'1.2' is no version"),
        ("src/trnlab/__init__.py", '__version__ = "1.2.4"\n', "CHANGELOG.md begins with '1.2.3', not with 1.2.4"),
        ("CHANGELOG.md", "# Changelog\n", "CHANGELOG.md begins with none, not with 1.2.3"),
        ("CHANGELOG.md", "# Changelog\n\n## 1.2.3\n\n## 1.2.2\n\n- Less.\n", "CHANGELOG.md says nothing of 1.2.3"),
        ("CITATION.cff", "cff-version: 1.2.0\nversion: 1.2.2\n", "CITATION.cff is of another version"),
    ],
)
def test_what_breaks_a_rule_is_told(repository, file, text, told):
    (repository / file).write_text(text)
    commit(repository)
    assert any(line.startswith(told) for line in rules.broken(repository))


def test_changed_and_new_files_are_told_by_name(repository):
    (repository / "CHANGELOG.md").write_text((repository / "CHANGELOG.md").read_text() + "\n")
    (repository / "new.py").write_text("")
    (line,) = rules.broken(repository)
    assert line.startswith("2 files are not as they were committed (")
    assert "new.py" in line


def test_a_version_is_released_once(repository):
    rules.git(repository, "tag", "v1.2.3")
    commit(repository)
    assert rules.broken(repository) == ["v1.2.3 is another commit: raise __version__ in src/trnlab/__init__.py"]


def test_the_readme_has_the_kernel_that_is_tried():
    code, shown = trial.kernel(ROOT)
    assert "@nki.jit" in code
    assert shown.startswith("gelu(1) = ")


def test_a_file_that_does_not_install_is_told(tmp_path):
    (tmp_path / "trnlab-1.2.3-py3-none-any.whl").write_bytes(b"no wheel")
    assert trial.problem(tmp_path / "trnlab-1.2.3-py3-none-any.whl", ROOT, here=True).startswith("does not install")


def test_version_changelog_and_citation_agree():
    assert list(rules._of_version(ROOT)) == []


def test_the_citation_has_what_its_format_wants():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert set(found) >= CFF_WANTED
    assert set(found) <= CFF
    assert found["cff-version"] == "1.2.0"
    assert found["type"] in ("software", "dataset")
    assert found["license"] == "Apache-2.0"
    assert all(
        set(author) <= {"name", "website", "email", "given-names", "family-names"} for author in found["authors"]
    )


@pytest.mark.slow
def test_a_clone_is_released(tmp_path):
    """Both distributions, tried with the dependencies of this environment, and their sums."""
    clone, out = tmp_path / "clone", tmp_path / "out"
    cloned = subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], capture_output=True, check=False)
    if cloned.returncode:
        pytest.skip("no clone of the repository")
    command = [sys.executable, "-m", "tools.release", "--without-loops", "--here", "--out", str(out)]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    version = rules.version(clone)
    names = {f"trnlab-{version}.tar.gz", f"trnlab-{version}-py3-none-any.whl"}
    sums = dict(reversed(line.split("  ")) for line in (out / "SHA256SUMS").read_text().splitlines())
    assert {path.name for path in out.iterdir()} == names | {"SHA256SUMS"}
    assert sums == {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in names}
    with tarfile.open(out / f"trnlab-{version}.tar.gz") as file:
        source = {name.partition("/src/")[2] for name in file.getnames()}
        assert {"CHANGELOG.md", "CITATION.cff", "LICENSE"} <= {name.partition("/")[2] for name in file.getnames()}
    wheel = set(zipfile.ZipFile(out / f"trnlab-{version}-py3-none-any.whl").namelist())
    assert {name for name in wheel if ".dist-info/" not in name} <= source
    tracked = rules.git(clone, "ls-files", "src").splitlines()
    assert {name.removeprefix("src/") for name in tracked} <= wheel
