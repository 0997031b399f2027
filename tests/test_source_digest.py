# SPDX-License-Identifier: Apache-2.0
"""The digest of our own sources changes with what the named places hold, and with nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trnlab import sources
from trnlab.runtime.cache.version import PACKAGES, compiler_version
from trnlab.validation.sources.versions import MODEL, RECORDING, version


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in ("above.py", "first/one.py", "first/deep/two.py", "second/three.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    sources.source_digest.cache_clear()
    yield tmp_path
    sources.source_digest.cache_clear()


def digest(*places):
    sources.source_digest.cache_clear()
    return sources.source_digest(*places)


@pytest.mark.parametrize(
    ("changed", "places"),
    [
        ("above.py", {sources.TOP}),
        ("first/deep/two.py", {"first"}),
        ("second/three.py", {"second", "second/three.py"}),
    ],
)
def test_a_change_changes_the_digests_of_its_places_alone(tree, changed, places):
    every = (sources.TOP, "first", "second", "second/three.py", "first/one.py")
    before = {place: digest(place) for place in every}
    (tree / changed).write_text("# otherwise\n")
    assert {place for place in every if digest(place) != before[place]} == places


def test_a_file_that_is_written_again_is_the_same_and_one_that_moves_is_not(tree):
    before = digest("first")
    (tree / "first/one.py").write_bytes((tree / "first/one.py").read_bytes())
    assert digest("first") == before
    (tree / "first/one.py").rename(tree / "first/four.py")
    assert digest("first") != before


def test_versions_are_of_the_sources_that_they_name():
    assert compiler_version() == sources.source_digest(*PACKAGES)[:16]
    assert version(RECORDING) != version(MODEL)
    assert len(version(MODEL)) == 12


def test_no_source_is_read_before_a_digest_is_asked_for():
    code = (
        "import trnlab.sources, trnlab.runtime.cache.fingerprint, trnlab.loops.prebuilt; "
        "assert trnlab.sources.source_digest.cache_info().misses == 0"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
