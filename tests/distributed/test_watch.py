# SPDX-License-Identifier: Apache-2.0
"""When ranks that wait for each other are called a deadlock."""

import json
from types import SimpleNamespace

import pytest

from trnlab.frontends.torch.distributed import watch

pytestmark = pytest.mark.torch


class Store(dict):
    """As PyTorch's stores."""

    def set(self, key, value):
        self[key] = value

    def check(self, keys):
        return all(key in self for key in keys)


@pytest.fixture
def looked(monkeypatch):
    """What a look says when `after` seconds went by, in which both ranks wrote `beats` notes."""
    now = SimpleNamespace(monotonic=lambda: now.s, process_time=lambda: 0.0, s=100.0, beat=0)
    monkeypatch.setattr(watch, "time", now)
    store = Store()
    mine = watch.PeerWatch(SimpleNamespace(rank=0, ranks=(0, 1)), store, 60.0)

    def look(after, beats, progress=3):
        now.s, now.beat = now.s + after, now.beat + beats
        for rank in (0, 1):
            waits = [["the default group", "barrier", "train.py:3", watch.MEETING]]
            note = {"status": "running", "progress": progress, "beat": now.beat, "blocked": True, "waits": waits}
            store.set(f"note/{rank}", json.dumps({**note, "why": "", "verdict": None}))
        return mine._deadlock(mine._notes())

    look(0.0, 1)
    return look


def test_ranks_that_run_and_only_wait_are_in_a_deadlock(looked):
    assert looked(1.0, 4) is None
    assert looked(1.5, 6).code == "TRN272"


def test_a_machine_that_stood_still_is_none(looked):
    assert looked(30.0, 1) is None  # nobody could have gone on meanwhile
    assert looked(0.25, 1) is None
    assert looked(0.25, 1, progress=4) is None  # and somebody does now
    assert looked(1.0, 4, progress=4) is None
    assert looked(1.5, 6, progress=4).code == "TRN272"
