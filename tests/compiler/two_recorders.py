# SPDX-License-Identifier: Apache-2.0
"""Programs are the same whether a second process records a part of their routines, and whatever becomes of it."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from trnlab import chips
from trnlab.compiler import ahead, compile, pipeline
from trnlab.errors import CapacityError
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph
from trnlab.program.text import program_text

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux alone")
TRN1 = chips.get("trn1")


def graph(layers: int = 4) -> Graph:
    """Products of different widths, each with a softmax behind it."""
    b = GraphBuilder("layers")
    x = b.input("x", (128, 128), "bfloat16")
    for n in range(layers):
        y = b.dot_general(x, b.input(f"w{n}", (x.shape[1], 128 * (n + 2)), "bfloat16"), ((1,), (0,)))
        top = b.broadcast_in_dim(b.reduce(y, (1,), "maximum"), y.shape, (0,))
        x = b.exponential(b.subtract(y, top))
        b.output(x)
    return b.build()


@pytest.fixture
def shared(monkeypatch):
    """Everything is shared, however little it is; counts what came from the other process."""
    taken, take = [], ahead.SecondRecorder.take

    def counted(self, key):
        found = take(self, key)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(pipeline, "LONG_RECORDING", 0)
    monkeypatch.setattr(ahead, "can_help", lambda: True)
    monkeypatch.setattr(ahead.SecondRecorder, "take", counted)
    return taken


def alone(monkeypatch) -> str:
    with monkeypatch.context() as change:
        change.setattr(ahead, "can_help", lambda: False)
        return program_text(compile(graph(), TRN1, {"precision": "bf16"}))


def wait_for_all(monkeypatch) -> None:
    """Let the other process come first everywhere."""
    start = ahead.SecondRecorder._start

    def started(self, jobs):
        start(self, jobs)
        while self._child and (self._table[:, ahead.STATE] < ahead.DONE).any():
            pass

    monkeypatch.setattr(ahead.SecondRecorder, "_start", started)


def test_programs_are_the_same(shared, monkeypatch):
    expected = alone(monkeypatch)
    shared.clear()
    wait_for_all(monkeypatch)
    assert program_text(compile(graph(), TRN1, {"precision": "bf16"})) == expected
    assert any(shared)


def test_a_process_that_is_ended_is_done_without(shared, monkeypatch):
    expected = alone(monkeypatch)
    start = ahead.SecondRecorder._start

    def killed(self, jobs):
        start(self, jobs)
        self._table[:, ahead.STATE] = ahead.THERE
        os.kill(self._child, signal.SIGKILL)

    monkeypatch.setattr(ahead.SecondRecorder, "_start", killed)
    shared.clear()
    assert program_text(compile(graph(), TRN1, {"precision": "bf16"})) == expected
    assert not any(shared)


def test_errors_are_those_of_this_process(shared, monkeypatch):
    def fails(*_):
        raise CapacityError("too large", code="TRN301", limit="1", got="2", remedy="less")

    wait_for_all(monkeypatch)
    monkeypatch.setattr(pipeline.Assembly, "_build", fails)
    with pytest.raises(CapacityError, match="too large") as found:
        compile(graph(), TRN1, {"precision": "bf16"})
    assert found.value.remedy.startswith("make the tensors of this line smaller")


def test_no_process_is_left(shared, monkeypatch):
    made, start = [], ahead.SecondRecorder._start

    def started(self, jobs):
        start(self, jobs)
        made.append(self._child)

    monkeypatch.setattr(ahead.SecondRecorder, "_start", started)
    compile(graph(), TRN1, {"precision": "bf16"})
    assert made
    for child in made:
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)
