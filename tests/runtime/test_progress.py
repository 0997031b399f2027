# SPDX-License-Identifier: Apache-2.0
"""What is said while a program is compiled, and while Numba compiles loops."""

import time

import pytest

from trnlab.compiler.progress import counted, watched
from trnlab.loops.compile_progress import CompileProgress
from trnlab.runtime.progress import Compiling


class _Clock:
    """Of the processor, and of the wall, which goes twice as fast."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "process_time", lambda: self.now)
        monkeypatch.setattr(time, "perf_counter", lambda: 2 * self.now)


def test_parts_are_told_of_only_to_who_asked() -> None:
    told: list[tuple[int, int]] = []
    assert list(counted("abc")) == ["a", "b", "c"]
    with watched(lambda done, total: told.append((done, total))):
        assert list(counted("abc")) == ["a", "b", "c"]
    list(counted("de"))
    assert told == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize("kept", [True, False])
def test_a_long_compilation_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kept: bool
) -> None:
    clock = _Clock(monkeypatch)
    progress = Compiling("step", "trn1", kept)
    for done in range(10):
        clock.now = done
        progress(done, 10)
    clock.now = 10
    progress.ended()
    keeps = ", which the cache will keep" if kept else ""
    assert capsys.readouterr().err.splitlines() == [
        f"trnlab: compiling 'step' for trn1{keeps}: 2 of 10 parts, 4 s",
        "trnlab: compiling 'step' for trn1: 7 of 10 parts, 14 s",
        "trnlab: compiled 'step': 10 parts, 20 s",
    ]


def test_a_short_one_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = _Clock(monkeypatch)
    progress = Compiling("step", "trn1", True)
    clock.now = 1.9
    progress(1, 2)
    progress.ended()
    assert capsys.readouterr().err == ""


def test_loops_are_told_of_once_they_took_a_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, teller = _Clock(monkeypatch), CompileProgress()
    for seconds in (0.4, 0.4, 0.4, 3.0, 3.0):
        teller.on_start(None)
        teller.on_start(None)  # what it calls
        teller.on_end(None)
        clock.now += seconds
        teller.on_end(None)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2].partition(": ")[2] for line in said] == ["3 so far, 1 s", "5 so far, 7 s"]
