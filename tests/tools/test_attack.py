# SPDX-License-Identifier: Apache-2.0
"""A small part of `make attack`: nothing of what docs/trust.md promises is broken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.attack import places, poison, ports, words
from tools.attack.__main__ import ATTACKS

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="an attacked run is a fork")
def test_a_poisoned_cache_ends_no_run() -> None:
    # a process of its own: attacked runs are forks, and this one may have the threads of other tests
    command = [sys.executable, "-m", "tools.attack", "--only", "poisoned cache", "--share", "0.01", "--seed", "11"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (refused,) = re.findall(r"(\d+) refused", ended.stdout)
    assert int(refused) > 30, ended.stdout


def test_programs_that_left_their_memory_once_are_refused(tmp_path: Path) -> None:
    """Found by the attack: cuts of SBUF behind its end, streams without number, tensors without a place."""
    import dataclasses

    import numpy as np

    from trnlab.runtime.cache import serialize

    bench = poison.Bench(tmp_path)
    program = bench.sound.program
    first = program.routines[0]
    cuts = np.append(first.sbuf_cuts, 1 << 40)
    changed = (
        dataclasses.replace(program, streams=1 << 40),
        dataclasses.replace(program, outputs=(0,)),
        dataclasses.replace(program, routines=(dataclasses.replace(first, sbuf_cuts=cuts), *program.routines[1:])),
    )
    for each in changed:
        content = b"".join(serialize.dump(each, bench.sound.metadata, bench.sound.graph))
        assert not bench.taken(content)


def test_nothing_without_the_key_is_used() -> None:
    outcome = poison.with_a_key(30, 12)
    assert outcome.failures == []
    assert outcome.counts["refused"] > 20


def test_numbers_that_cannot_be_are_refused() -> None:
    outcome = words.numbers(1, 0)
    assert outcome.failures == []
    assert outcome.counts["refused"] > 500


def test_results_and_records_of_others_are_passed_over() -> None:
    assert places.results(40, 1).failures == []
    assert places.records(40, 1).failures == []
    assert places.checkpoints(30, 1).failures == []


def test_the_port_answers_its_own_names_and_goes_on() -> None:
    assert ports.listening(4, 1).failures == []


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_is_no_traceback_of_ours() -> None:
    assert words.interrupts(6, 1).failures == []


def test_pages_show_and_run_nothing_that_they_should_not(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("starlette", reason="needs trnlab[ui]")
    from tools.attack import views
    from trnlab.documents import html

    assert views.pages(60, 1).failures == []
    monkeypatch.setattr(html, "escape", str)  # a page that leaves markup as it is
    found = views.pages(60, 1).failures
    assert any("it would run: " in failure for failure in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["names", "network with faults", "folder of a cache"])
def test_so_do_the_longer_ones(name: str) -> None:
    (attack,) = (each for each in ATTACKS if each.name == name)
    assert attack.run(max(1, attack.inputs // 20), 1).failures == []
