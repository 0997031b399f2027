# SPDX-License-Identifier: Apache-2.0
"""The tutorials run as they stand: every Python block, in order, and what they show is what is printed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tutorial_pages import FOLDER, PAGES, alike, blocks, run

from tests import processes
from trnlab.nki.imports import ROOTS

_new = subprocess.run


def copied(*words, **how):
    """What pages ask for, in a copy of a process; libraries ask for more."""
    return (processes.run if how.keys() == {"capture_output", "text"} else _new)(*words, **how)


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """No target from outside; imports that a page installs go with it; processes that it starts are copies."""
    for name in ("TRNLAB_TARGET", "NEURON_PLATFORM_TARGET_OVERRIDE", "TRNLAB_CHECKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(subprocess, "run", copied)
    yield
    for name in [n for n in sys.modules if n.split(".")[0] in ROOTS]:
        del sys.modules[name]


@pytest.mark.torch
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_prints_what_it_shows(page, tmp_path):
    import trnlab.frontends.torch.check.report  # noqa: F401  estimates are copies of this process

    text = page.read_text()
    assert blocks(text)
    for block, printed in run(page, tmp_path):
        if block.shown is not None:
            shown = text[slice(*block.shown)]
            assert alike(shown, printed), f"{page.name}:{block.line} shows\n{shown}\nbut prints\n{printed}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pictures_and_links_are_there(page):
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    for name in re.findall(r"\]\(([^)#:]+)\)", prose):
        assert (FOLDER / name).exists(), name


def test_numbers_may_move_a_little_and_words_may_not():
    assert alike("time 100 us, 8 %\n", "time  104 us, 10 %\n")
    assert not alike("time 100 us", "time 140 us")
    assert not alike("time 100 us", "took 100 us")
