# SPDX-License-Identifier: Apache-2.0
"""Leases: one holder at a time; who is gone is taken over, on this host at once, of others when the lease expires."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trnlab.storage import Lease, Store, open_store
from trnlab.storage.lease import _place


def never() -> bool:
    return False


def test_one_holds_and_the_next_follows(store: Store) -> None:
    first, second = Lease(store, "leases/a"), Lease(store, "leases/a")
    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    assert store.items("leases/a/") == []
    assert second.acquire(never)
    assert second.taken_over is None
    second.release()


def test_what_is_done_meanwhile_needs_no_lease(store: Store) -> None:
    first, second = Lease(store, "leases/a"), Lease(store, "leases/a")
    assert first.try_acquire()
    answers = iter([False, True])
    assert not second.acquire(lambda: next(answers))
    first.release()


class Clock:
    """Stands in for the module `time`, as far as a lease asks it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.time = time.time

    def monotonic(self) -> float:
        return self.now


def test_a_holder_that_beats_keeps_its_lease_and_a_silent_one_loses_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("trnlab.storage.lease.time", clock)
    lively, waiter = Lease(store, "leases/a", beat_s=3600.0), Lease(store, "leases/a", expires_s=30.0)
    assert lively.try_acquire()
    for beat in range(1, 5):
        assert not waiter.try_acquire()
        clock.now += 20.0
        store.write("leases/a/1", lively._content(beat))
    assert not waiter.try_acquire()
    clock.now += 29.0
    assert not waiter.try_acquire()
    clock.now += 2.0  # its host is gone: no more beats, nothing given back
    assert waiter.try_acquire()
    assert waiter.taken_over is not None
    waiter.release()
    lively.release()


def test_a_holder_beats(store: Store) -> None:
    lease = Lease(store, "leases/a", beat_s=0.01)
    assert lease.try_acquire()
    while json.loads(store.read("leases/a/1"))["beats"] < 3:
        time.sleep(0.01)
    lease.release()


def test_a_lease_that_nobody_can_read_expires(store: Store) -> None:
    store.write("leases/a/7", b"half of {")
    waiter = Lease(store, "leases/a", expires_s=0.2)
    assert waiter.acquire(never)
    assert [item.name for item in store.items("leases/a/")] == ["leases/a/8"]
    waiter.release()


def test_of_many_that_take_over_one_succeeds(store: Store) -> None:
    dead = {"holder": "a:1", "place": _place(), "process": 1, "born": "before this boot"}
    store.write("leases/a/1", json.dumps(dead).encode())
    holding, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal holding, most
        lease = Lease(store, "leases/a")
        lease.acquire(never)
        with lock:
            holding += 1
            most = max(most, holding)
        time.sleep(0.01)
        with lock:
            holding -= 1
        lease.release()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_number_that_is_free_again_is_not_taken_beside_its_new_holder(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a dead holder and the creation, another takes over and gives back, a third begins anew."""
    dead = {"holder": "a:1", "place": _place(), "process": 1, "born": "before this boot"}
    store.write("leases/a/1", json.dumps(dead).encode())
    slow, second, third = (Lease(store, "leases/a") for _ in range(3))
    create = store.create

    def later(name: str, *parts: bytes | memoryview) -> bool:
        monkeypatch.setattr(store, "create", create)
        assert second.try_acquire()
        second.release()
        assert third.try_acquire()
        return create(name, *parts)

    monkeypatch.setattr(store, "create", later)
    assert not slow.try_acquire()
    assert [item.name for item in store.items("leases/a/")] == ["leases/a/1"]  # the third's, who has it still
    third.release()
    assert slow.try_acquire()
    assert slow.taken_over is None
    slow.release()


def test_a_killed_process_of_this_host_is_taken_over_at_once(tmp_path: Path) -> None:
    code = """
import sys
from trnlab.storage import Lease, open_store
Lease(open_store(sys.argv[1]), "leases/a").try_acquire()
print("held", flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    lease = Lease(open_store(tmp_path), "leases/a", expires_s=3600)
    assert not lease.try_acquire()
    other.kill()
    assert lease.acquire(never)
    other.communicate()
    assert lease.taken_over is not None
    assert lease.taken_over.endswith(f":{other.pid}")
    lease.release()


def test_a_lease_of_long_ago_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    store.write("leases/a/1", json.dumps({"holder": "a:1", "place": "elsewhere", "process": 1}).encode())
    monkeypatch.setattr("trnlab.storage.lease.LONG_AGO_S", -1.0)
    lease = Lease(store, "leases/a")
    assert not lease.try_acquire() or lease.taken_over == "a:1"
    lease.release()
