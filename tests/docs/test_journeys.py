# SPDX-License-Identifier: Apache-2.0
"""The journeys run: their commands at a small size, and those that they show are commands that there are."""

from __future__ import annotations

import re

import pytest
from journey_pages import FOLDER, PAGES, arguments, blocks, run

from trnlab.cli.commands import parsed


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One for all pages, whose small models are the same."""
    return tmp_path_factory.mktemp("journeys")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_journey_runs_at_a_small_size(page, cache, monkeypatch):
    monkeypatch.setenv("TRNLAB_CACHE", str(cache))
    found = list(blocks(page.read_text()))
    assert found
    for block in found:
        printed = run(block.small, cache)
        for words in block.says:
            assert words in printed, f"{page.name}: {block.small} does not say {words!r} but\n{printed}"
            assert words in block.shown, f"{page.name}: the page does not show {words!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_that_are_shown_are_understood(page):
    text = page.read_text()
    assert text.count("```sh\n") == len(list(blocks(text))), "every command has an output and a small size"
    for block in blocks(text):
        assert block.shown.strip()
        for command in block.real:
            parsed(arguments(command))


def test_the_index_names_every_page():
    index = (FOLDER / "README.md").read_text()
    assert set(re.findall(r"\]\((\d[\w-]*\.md)\)", index)) == {page.name for page in PAGES}
