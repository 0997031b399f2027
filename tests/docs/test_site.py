# SPDX-License-Identifier: Apache-2.0
"""The site: strict builds pass, what is broken is found, and its first page and search have what they should."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.test_accuracy_table import table
from tools.site import docstrings, pages

ROOT = Path(__file__).resolve().parents[2]


def site(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.site", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.torch
def test_every_page_and_docstring_can_be_read_and_every_link_leads_somewhere(tmp_path):
    done = site("--check", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_what_is_broken_is_a_warning(tmp_path):
    """Links to pages and headings that are not there, a page in words, and one that no list has."""
    docs = tmp_path / "source/docs"
    docs.mkdir(parents=True)
    (docs / "index.md").write_text(
        "# One\n\n[a](nowhere.md) [b](#no-heading) [c](other.md#none)\n\n`docs/never.md`\n"
    )
    (docs / "other.md").write_text("# Two\n\nADR 8 and TRN100 are no links without their pages.\n")
    warnings = tmp_path / "warnings"
    config = ["-c", str(ROOT / "tools/site"), "-w", str(warnings), "-q", "-b", "dummy"]
    command = [sys.executable, "-m", "sphinx", *config, str(docs.parent), str(tmp_path / "out")]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    found = re.sub(r"\x1b\[[\d;]*m", "", warnings.read_text())
    for words in (
        "'nowhere.md'",
        "'no-heading'",
        "local id not found in doc 'docs/other': 'none'",
        "no page 'docs/never'",
        "other.md: WARNING: document isn't",
    ):
        assert words in found, words


def test_every_page_is_in_one_list():
    listed = [name for names in pages.GROUPS.values() for name in names.split()]
    there = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").rglob("*.md")}
    below = {name for name in there if re.match(r"(adr|journeys)/\d", name)}
    assert sorted(name for name in listed if not name.startswith("/")) == sorted(there - below - {"index"})


class _Page(HTMLParser):
    """Words, and where links and pictures lead."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.words: list[str] = []
        self.links: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links |= {value for name, value in attrs if name in ("href", "src") and value}

    def handle_data(self, data: str) -> None:
        self.words += data.split()


@pytest.mark.slow
@pytest.mark.torch
def test_the_site_has_its_first_page_search_and_links(tmp_path):
    done = site("--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    first = _Page(tmp_path / "docs/index.html")
    shown = " ".join(first.words)
    for row in table().splitlines()[2:]:
        assert " ".join(row.replace("|", " ").split()).replace("'", "’") in shown
    assert "one step" in shown
    assert "my loss differs" in shown
    assert {"validation.html", "adr/README.html", "api/README.html"} <= first.links
    index = (tmp_path / "searchindex.js").read_text()
    titles = json.loads(index.removeprefix("Search.setIndex(").rstrip(")"))["titles"]
    assert len(titles) > 200
    for path in tmp_path.rglob("*.html"):  # nothing is asked of a network, and nothing is missing
        for link in _Page(path).links:
            place = link.partition("#")[0].partition("?")[0]
            if place and not re.match(r"https?:|mailto:|data:", place):
                assert (path.parent / place).exists(), f"{path.name}: {link}"


def test_docstrings_are_read_as_text():
    assert docstrings.rewritten(["Takes *args and a_ of `x`."]) == [r"Takes \*args and a\_ of ``x``.", ""]
    assert docstrings.rewritten(["One.", "", "    a = 1", "", "    b = 2"]) == [
        *("One.", "", "::", "", "    a = 1", "", "    b = 2", "")
    ]
    assert docstrings.rewritten(["A", "  b `c", "  d`."]) == ["A", "b ``c", "d``.", ""]


def test_the_first_screen_is_the_readmes():
    text = pages.with_contents(pages.FIRST, (ROOT / "docs/index.md").read_text())
    assert pages.first_screen() in text
    assert "](docs/" not in pages.first_screen()
    assert "an index by question" in text
    assert "{toctree}" not in (ROOT / "docs/index.md").read_text(), "readers of the repository see no directives"
