# SPDX-License-Identifier: Apache-2.0
"""Damaged files of every kind are read or refused with a code; what the fuzzer looks for it finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.fuzz import __main__ as command
from tools.fuzz import guard, mutate, readers, work

INPUTS = 2000
TABLES = {r.name for r in readers._tables()}
HEAVY = {"StableHLO", "state of a training", *TABLES}  # import JAX and PyTorch


def test_no_reader_fails_on_damaged_files(tmp_path: Path) -> None:
    chosen = [r for r in readers.all_readers() if r.name not in HEAVY]
    counts = command.shares(INPUTS, chosen)
    found = {name: work.inputs(name, 1, range(count), str(tmp_path)) for name, count in counts.items()}
    assert {name: outcome.failures for name, outcome in found.items() if outcome.failures} == {}
    assert {name: outcome.accepted + sum(outcome.codes.values()) for name, outcome in found.items()} == counts


@pytest.mark.torch
@pytest.mark.parametrize("name", sorted(HEAVY))
def test_nor_do_those_that_other_libraries_help(name: str, tmp_path: Path) -> None:
    pytest.importorskip("jax" if name == "StableHLO" else "torch")
    outcome = work.inputs(name, 1, range(60), str(tmp_path))
    assert outcome.failures == {}
    assert sum(outcome.codes.values()) > 20


def test_the_same_seed_gives_the_same_inputs(tmp_path: Path) -> None:
    work.prepare(str(tmp_path))
    reader = next(r for r in readers.all_readers() if r.name == "model in JSON")
    assert [work.made(reader, 3, n) for n in range(20)] == [work.made(reader, 3, n) for n in range(20)]
    assert work.made(reader, 3, 1) != work.made(reader, 4, 1)


def _runs_code(data: bytes, folder: Path) -> None:
    os.system("true")


def _writes_elsewhere(data: bytes, folder: Path) -> None:
    (folder.parent.parent / "escaped").write_bytes(data)


def _shows_markup(data: bytes, folder: Path) -> None:
    readers.no_markup(f"<p>{data.decode()}</p>")


def _has_a_bug(data: bytes, folder: Path) -> None:
    raise KeyError("a")


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (_runs_code, "os.system"),
        (_writes_elsewhere, "was opened for writing"),
        (_shows_markup, "markup of a name became an element"),
        (_has_a_bug, "KeyError"),
    ],
)
def test_what_no_reader_may_do_is_noticed(
    read: readers.Read, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = readers.Reader("bad", list, lambda data, pick: data, read)
    monkeypatch.setattr(readers, "all_readers", lambda: (bad,))
    monkeypatch.setattr(work, "made", lambda reader, seed, number: mutate.MARKUP[0].encode())
    outcome = work.inputs("bad", 0, range(3), str(tmp_path))
    ((where, (first, count)),) = outcome.failures.items()
    assert said in where
    assert (first, count) == (0, 3)


def test_markup_is_told_from_its_text() -> None:
    readers.no_markup("<p>&lt;xfuzz onxfuzz=1&gt;</p>")
    with pytest.raises(guard.BrokenError):
        readers.no_markup('<p title=""><xfuzz x=""></p>')
