# SPDX-License-Identifier: Apache-2.0
"""Kernels timed from clones of repositories: the catalogue is well formed, and sources, edits, launches and refusals
come out right for a repository made here."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from dataclasses import replace

import pytest

from trnlab import documents, policy
from trnlab.cli.main import main
from trnlab.errors import UsageError
from trnlab.validation import sources
from trnlab.validation.anchors import Split
from trnlab.validation.sources import run
from trnlab.validation.sources.catalogue import CatalogueCall, SourceKernel
from trnlab.validation.sources.checkout import source_of
from trnlab.validation.sources.observed import Quantity
from trnlab.validation.sources.recording_cache import RecordingCache
from trnlab.validation.sources.report import covered, pairs, summaries
from trnlab.validation.sources.results import KernelRow, TimedKernel
from trnlab.validation.sources.run import time_one

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="clones are read with git")
KERNEL = """@nki.jit
def add(a, b):
    COLUMNS = 512
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for j in nl.affine_range(a.shape[1] // COLUMNS):
        part = nl.ds(j * COLUMNS, COLUMNS)
        nl.store(out[:, part], nl.add(nl.load(a[:, part]), nl.load(b[:, part])))
    return out
"""


@pytest.fixture
def clones(tmp_path):
    """A folder with one clone, and the commit in it."""
    clone = tmp_path / "someone" / "kernels"
    clone.mkdir(parents=True)
    (clone / "add.py").write_text(KERNEL)
    (clone / "trace.py").write_text("first line\ncode='''" + KERNEL.replace("'", "\\'") + "''',\nlast line\n")

    def git(*arguments):
        command = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=b", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "kernels")
    return tmp_path, git("rev-parse", "HEAD")


def kernel(commit, **changes):
    arrays = CatalogueCall("add", ("float32[128, 2048]", "float32[128, 2048]"))
    made = SourceKernel("K1", Split.CHECK, "add", "someone/kernels", commit, "add.py", "trn2", (arrays,), 10e6, "p50")
    return replace(made, **changes)


def test_the_catalogue_is_well_formed():
    known = sources.load()
    assert len({k.id for k in known}) == len(known)
    assert all(k.problem for k in known)
    kernels = [k for k in known if k.group == "kernels"]
    assert len(kernels) == 83
    assert [sum(k.split is s for k in kernels) for s in (Split.CALIBRATION, Split.CHECK)] == [44, 39]
    assert all(
        k.chip in ("trn1", "trn2") and k.measured > 1e6 and k.statistic in ("p50", "p99", "mean", "profile")
        for k in kernels
    )


@needs_git
def test_a_kernel_is_timed_from_its_clone(clones):
    folder, commit = clones
    with policy.use("as-written"):
        assert time_one(kernel(commit), folder).instructions == 16
    timed = time_one(kernel(commit), folder)
    assert timed.predicted > 5e6
    twice = time_one(kernel(commit, launches=kernel(commit).launches * 2), folder)
    assert twice.predicted == 2 * timed.predicted, "several launches are measured one by one"
    assert time_one(kernel(commit, statistic="profile"), folder).predicted > timed.predicted


@needs_git
def test_edits_make_the_variant_that_was_measured(clones):
    folder, commit = clones
    with policy.use("as-written"):
        fewer = time_one(kernel(commit, edits=(("COLUMNS = 512", "COLUMNS = 1024"),)), folder)
    assert fewer.instructions == 8
    with pytest.raises(ValueError, match=r"nothing in add\.py matches"):
        source_of(kernel(commit, edits=(("ROWS", "COLS"),)), folder)


@needs_git
def test_sources_in_string_literals_are_unquoted(clones):
    folder, commit = clones
    assert source_of(kernel(commit, path="trace.py", lines=(2, 10)), folder) == KERNEL


@needs_git
def test_what_is_refused_is_a_result(clones):
    folder, commit = clones
    timed = time_one(
        kernel(commit, launches=(CatalogueCall("add", ("float32[256, 2048]", "float32[256, 2048]")),)), folder
    )
    assert timed.predicted is None
    assert timed.refusal.startswith("TRN4")


@needs_git
def test_a_missing_clone_says_what_to_clone(clones, capsys):
    folder, _ = clones
    with pytest.raises(UsageError, match=r"git -C \S+ fetch .* https://github\.com/someone/kernels 0000") as raised:
        source_of(kernel("0" * 40), folder)
    assert raised.value.code == "TRN129"
    assert main(["validate", "--sources", str(folder), "--only", "K0289"]) == 2
    assert "https://github.com/allenkchau/trainium-kernel-fusion" in capsys.readouterr().err


@needs_git
def test_the_fetch_list_makes_a_folder_that_lacks_nothing(clones, tmp_path):
    """The commands are run as printed, with the clone above in place of GitHub."""
    folder, commit = clones
    wanted = [kernel(commit)]
    target = tmp_path / "fetched files"
    assert sources.missing(wanted, target) == wanted
    for command in sources.fetch_list(wanted, target):
        here = command.replace("https://github.com/", f"file://{folder}/")
        subprocess.run(shlex.split(here), check=True, capture_output=True)
    assert sources.missing(wanted, target) == []
    assert source_of(wanted[0], target) == source_of(wanted[0], folder)
    assert sources.missing([kernel("0" * 40)], target), "a clone without the commit is not enough"


def test_the_command_prints_the_fetch_list(capsys, tmp_path):
    assert main(["validate", "--fetch-list", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert all(f"https://github.com/{k.repository}" in printed and k.commit in printed for k in sources.load())


@needs_git
def test_recordings_and_results_are_kept_by_content(clones, tmp_path, monkeypatch):
    folder, commit = clones
    kept = RecordingCache(tmp_path / "kept")
    (first,) = sources.time_all([kernel(commit)], folder, kept=kept)
    monkeypatch.setattr(run, "_recorded", None)  # nothing is recorded any more
    (again,) = sources.time_all([kernel(commit)], folder, kept=kept)
    assert (again.timed.predicted, again.model) == (first.timed.predicted, first.model)
    (profiled,) = sources.time_all([kernel(commit, statistic="profile")], folder, kept=kept)
    assert profiled.timed.predicted > first.timed.predicted, "another time of the same recording"
    with pytest.raises(TypeError):
        sources.time_all([kernel(commit, options={"x": 1})], folder, kept=kept)


@needs_git
def test_progress_is_told_before_each_kernel(clones):
    folder, commit = clones
    told = []
    sources.time_all([kernel(commit)], folder, lambda k, number, of: told.append((k.id, number, of)))
    assert told == [("K1", 1, 1)]


def test_what_is_recorded_is_read_back(tmp_path):
    path = tmp_path / "results.json"
    one, two = sources.load()[:2]
    quantity = Quantity("active dma", 2e6, 3e6, "ps")
    rows = [
        KernelRow(TimedKernel(one, 5e6, "", 7, 1.5, (quantity,)), "2026-01-01", "abc", "scheduled"),
        KernelRow(TimedKernel(two, None, "TRN501: no room"), "2026-01-02", "abd", "scheduled"),
    ]
    sources.record(rows, path)
    assert sources.recorded(path=path) == rows
    later = KernelRow(TimedKernel(one, 6e6), "2026-01-03", "abe", "as written")
    sources.record([later], path)
    assert sources.recorded(path=path) == [later, rows[1]], "rows of other kernels stay"
    text = documents.text(sources.document(rows))
    assert "2026-01-01" in text
    assert "may say otherwise" in text


def test_profiles_of_512_keys_are_calibration_and_longer_ones_checks():
    profiles = [k for k in sources.load() if k.profile]
    assert len(profiles) == 8
    assert all((k.split is Split.CALIBRATION) == ("512 keys" in k.name) for k in profiles)


def timed(*rows):
    """Variants of one kernel from pairs of measured and predicted microseconds."""
    return [
        TimedKernel(kernel("c", id=str(i), problem="add", measured=m * 1e6), p if p is None else p * 1e6)
        for i, (m, p) in enumerate(rows)
    ]


def made(results):
    """Rows of results, as of some day."""
    return [KernelRow(t, "2026-01-01", "abc", "scheduled") for t in results]


def test_the_summary_counts_what_matters():
    results = timed((100, 110), (200, 150), (102, 90), (400, None))
    (found,) = summaries(results)
    assert (found.kernels, found.refused, found.worst) == (4, 1, 0.25)
    assert found.median == pytest.approx(12 / 102)
    assert sources.to_json(made(results))["summary"][0]["refused"] == 1


def test_pairs_in_the_wrong_order_are_listed():
    assert pairs(timed((100, 110), (200, 150), (102, 90), (400, None))) == (2, []), "100 and 102 are not ordered"
    results = timed((100, 110), (200, 105), (300, 300))
    assert pairs(results) == (3, [(results[1], results[0])])
    assert "2 of 3 pairs" in documents.text(sources.document(made(results)))
    told = sources.to_json(made(results))["pairs"]
    assert (told["count"], told["wrong"]) == (3, [["1", "0"]])
    (problem,) = told["problems"]
    assert (problem["concordant"], problem["discordant"], problem["equal"]) == (2, 1, 0)


@needs_git
def test_the_alternatives_of_the_policy_give_the_band(clones, monkeypatch):
    folder, commit = clones
    monkeypatch.setattr(policy, "alternatives", lambda p: {("x", "y"): p.with_options(reorder=False, balance=False)})
    (row,) = sources.time_all([kernel(commit)], folder, band=True)
    ((name, other),) = row.alternatives
    assert name == "scheduled,reorder=off,balance=off"
    assert other > row.timed.predicted, "loads wait behind stores"
    assert row.band == (row.timed.predicted, other)
    within = replace(row, timed=replace(row.timed, kernel=kernel(commit, measured=other - 1)))
    assert covered([row, within]) == {("kernels", Split.CHECK): (1 + (row.timed.predicted <= 10e6), 2)}
    assert "reorder=off" in documents.text(sources.document([row]))


@needs_git
def test_a_kept_recording_is_timed_under_the_policy_that_holds_now(clones, tmp_path):
    folder, commit = clones
    kept = RecordingCache(tmp_path)
    times = []
    for text in ("scheduled", "scheduled,reorder=off", "scheduled"):
        with policy.use(text):
            (row,) = sources.time_all([kernel(commit)], folder, kept=kept)
        times.append(row.timed.predicted)
    assert times[0] == times[2] < times[1]
    assert len(list(tmp_path.glob("*.recording"))) == 1
