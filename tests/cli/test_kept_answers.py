# SPDX-License-Identifier: Apache-2.0
"""`trnlab plan` prints what it printed before without searching again, as long as nothing has changed that the answer
hangs on."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from trnlab import sources
from trnlab.cli.main import main
from trnlab.cli.planning import plan_answer
from trnlab.documents import Document, Note
from trnlab.validation import mine

ASKED = ["plan", "llama3-8b", "--tokens", "1B", "--target", "p5.48xlarge"]


@pytest.fixture
def searched(monkeypatch):
    """How many searches there were; each has an answer of its own."""
    found = []

    def answer(args):
        found.append(args)
        return Document("", [Note(f"answer {len(found)}")], record=lambda: {"answer": len(found)}), lambda: None

    monkeypatch.setattr(plan_answer, "answer", answer)
    return found


def _said(capsys, *words):
    assert main([*ASKED, *words]) == 0
    return capsys.readouterr().out.strip()


def test_the_same_question_is_searched_for_once(searched, tmp_path, capsys):
    cache = ["--cache", str(tmp_path)]
    assert _said(capsys, *cache) == _said(capsys, *cache) == _said(capsys, *cache, "--jobs", "2") == "answer 1"
    assert json.loads(_said(capsys, *cache, "--json")) == {"answer": 1}
    assert len(searched) == 1
    assert _said(capsys, *cache, "--region", "us-west-2") == "answer 2"
    assert _said(capsys, "--no-cache") == "answer 3"
    assert _said(capsys, *cache, "--csv", str(tmp_path / "all.csv")) == "answer 4"
    assert _said(capsys, *cache) == "answer 1"


def test_what_an_answer_hangs_on_is_part_of_its_name(searched, tmp_path, capsys, monkeypatch):
    cache = ["--cache", str(tmp_path)]
    assert _said(capsys, *cache) == "answer 1"
    monkeypatch.setenv("TRNLAB_STREAMS", "2")
    assert _said(capsys, *cache) == "answer 2"
    monkeypatch.delenv("TRNLAB_STREAMS")
    mine.keep([], tmp_path / mine.FOLDER)
    assert _said(capsys, *cache) == "answer 3"
    monkeypatch.setattr("trnlab.cli.planning.answers.package_digest", lambda: "another")
    assert _said(capsys, *cache) == "answer 4"


def test_a_models_file_counts_by_its_content(searched, tmp_path, capsys):
    file = tmp_path / "config.json"
    words = ["plan", str(file), *ASKED[2:], "--cache", str(tmp_path / "cache")]
    answers = []
    for content in ("{}", "{ }", "{}"):
        file.write_text(content)
        assert main(words) == 0
        answers.append(capsys.readouterr().out.strip())
    assert answers == ["answer 1", "answer 2", "answer 1"]


def test_a_damaged_answer_is_searched_for_again(searched, tmp_path, capsys):
    cache = ["--cache", str(tmp_path)]
    assert _said(capsys, *cache) == "answer 1"
    (file,) = (tmp_path / "answers").iterdir()
    file.write_text(file.read_text().replace("answer 1", "answer 7"))
    assert _said(capsys, *cache) == "answer 2"


def test_files_of_figures_are_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    found = []
    for name, content in (("prices.csv", "1"), ("prices.csv", "2"), ("made.pyc", "3")):
        (tmp_path / name).write_text(content)
        sources.package_digest.cache_clear()
        found.append(sources.package_digest())
    sources.package_digest.cache_clear()
    assert found[0] != found[1] == found[2]


def test_a_kept_answer_and_the_help_import_no_planner(tmp_path):
    words = [*ASKED, "--cache", str(tmp_path)]
    told = (
        "import sys\nfrom trnlab.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print([m for m in sys.modules if m in ('trnlab.fleet', 'trnlab.documents', 'numpy')])\n"
    )
    said = []
    for asked in (words, words, ["plan", "--help"]):
        done = subprocess.run([sys.executable, "-c", told, *asked], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines())
    assert said[0][:-1] == said[1][:-1] != []
    assert "numpy" in said[0][-1]
    assert said[1][-1] == said[2][-1] == "[]"
