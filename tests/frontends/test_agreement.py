# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job agree on, through a store that torchrun keeps when it starts them again."""

from __future__ import annotations

import threading

import pytest

dist = pytest.importorskip("torch.distributed")

from trnlab.frontends.torch.parallel.agreement import Votes  # noqa: E402
from trnlab.frontends.torch.parallel.attempts import of_attempt  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def store():
    return dist.HashStore()


def votes(store, rank, attempt, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
    return Votes(of_attempt(store), rank, 2)


def test_a_rank_that_starts_again_waits_for_the_answer_of_its_own_attempt(store, monkeypatch):
    questions = iter([0, 0, 0])  # each process counts from zero
    monkeypatch.setattr("trnlab.frontends.torch.parallel.agreement._questions", questions)
    votes(store, 0, 0, monkeypatch).first("no checkpoint")
    again, told = votes(store, 1, 1, monkeypatch), []
    asks = threading.Thread(target=lambda: told.append(again.first("")), daemon=True)
    asks.start()
    asks.join(0.2)
    assert not told  # and not what was said before the restart
    votes(store, 0, 1, monkeypatch).first("step 2")
    asks.join(60)
    assert told == ["step 2"]
