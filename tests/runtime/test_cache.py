# SPDX-License-Identifier: Apache-2.0
"""The compile cache under many writers, killed writers, damage, and folders that cannot be used."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from cache_worker import key_of
from runtime_samples import program

from trnlab import documents
from trnlab.errors import CacheError, UsageError
from trnlab.files import write_atomic
from trnlab.runtime.cache import report as cache_report
from trnlab.runtime.cache.executables import Cache

WORKER = Path(__file__).with_name("cache_worker.py")
METADATA = {
    "name": "step",
    "target": "trn1",
    "parts": {},
    "options": {},
    "created": "",
    "script": "",
    "compile_seconds": 1.0,
}


class Told(list[str]):
    """Collects what the cache says."""

    def __call__(self, line: str) -> None:
        assert "\n" not in line
        self.append(line)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def cache(tmp_path: Path, told: Told) -> Cache:
    return Cache(tmp_path / "cache", told)


def fill(cache: Cache, *keys: int) -> None:
    for i in keys:
        assert cache.put(key_of(i), program(f"step{i}"), {**METADATA, "name": f"step{i}"}, "graph")


def worker(root: Path | str, rounds: int, keys: int = 4) -> subprocess.Popen[bytes]:
    """A process at work on the cache, past its start."""
    command = [sys.executable, str(WORKER), str(root), str(rounds), str(keys)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def file_of(cache: Cache, key: str) -> Path:
    return Path(cache.place, "v1", f"{key}.trnx")


def only_file(cache: Cache) -> Path:
    (entry,) = cache.entries()
    return file_of(cache, entry.key)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Permissions do not bind root; within the block we are nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_was_put_is_found_and_hits_are_counted(cache: Cache, told: Told) -> None:
    assert cache.get(key_of(1)) is None
    fill(cache, 1)
    for _ in range(3):
        found = cache.get(key_of(1))
        assert found is not None
        assert found.program.name == "step1"
    (entry,) = cache.entries()
    assert (entry.key, entry.hits, entry.metadata["name"]) == (key_of(1), 3, "step1")
    assert told == []


def test_an_empty_cache_makes_no_folder(cache: Cache) -> None:
    assert cache.get(key_of(1)) is None
    assert cache.entries() == []
    assert cache.clear() == (0, 0)
    assert not Path(cache.place).exists()


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "foreign", "other key"])
def test_a_damaged_entry_is_told_once_missed_and_replaced(cache: Cache, told: Told, damage: str) -> None:
    fill(cache, 1)
    path = only_file(cache)
    whole = path.read_bytes()
    if damage == "other key":
        fill(cache, 2)
        path.write_bytes((path.parent / f"{key_of(2)}.trnx").read_bytes())
    else:
        flipped = bytearray(whole)
        flipped[-100] ^= 1
        path.write_bytes({"truncate": whole[:-1], "flip": flipped, "empty": b"", "foreign": b"x" * 500}[damage])
    assert cache.get(key_of(1)) is None
    assert len(told) == 1
    assert key_of(1)[:12] in told[0]
    assert "rebuilt" in told[0]
    fill(cache, 1)
    assert cache.get(key_of(1)) is not None
    assert len(told) == 1


def test_verify_finds_exactly_the_damaged_entries(cache: Cache) -> None:
    fill(cache, 1, 2, 3)
    path = file_of(cache, cache.entries()[0].key)
    content = bytearray(path.read_bytes())
    content[-1] ^= 255
    path.write_bytes(content)
    found, sound = cache_report.verify(cache)
    text = documents.text(found)
    assert not sound
    assert path.stem[:12] in text
    assert "TRN601" in text
    assert "2 of 3 entries are sound" in text


def test_clear_removes_everything(cache: Cache) -> None:
    fill(cache, 1, 2)
    cache.get(key_of(1))
    count, size = cache.clear()
    assert count == 2
    assert size > 1000
    assert cache.entries() == []
    assert [p for p in Path(cache.place).rglob("*") if p.is_file()] == []


def test_eight_writers_at_once_leave_only_whole_entries(cache: Cache) -> None:
    workers = [worker(cache.place, 12) for _ in range(8)]
    for process in workers:
        _, stderr = process.communicate(timeout=600)
        assert (process.returncode, stderr) == (0, b"")
    entries = cache.entries(check=True)
    assert len(entries) == 4
    assert all(e.problem is None for e in entries)
    assert cache.leftovers() == []


def test_killed_writers_never_leave_half_an_entry(cache: Cache) -> None:
    """kill -9 at random moments; after each, whatever can be read is whole.

    Each dies after some entries of its own, however slow the machine is, in what it is doing within the next 20 ms.
    There are so many keys that it is still writing then: for what is there already nothing is written.
    """
    rng = np.random.default_rng(3)
    for _ in range(8):
        wanted = len(cache.entries()) + int(rng.integers(1, 6))
        process = worker(cache.place, 100_000, keys=100_000)
        while len(cache.entries()) < wanted:
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(float(rng.uniform(0, 0.02)))
        process.send_signal(signal.SIGKILL)
        _, stderr = process.communicate(timeout=600)
        assert stderr == b""
        entries = cache.entries(check=True)
        assert len(entries) >= wanted
        assert all(e.problem is None for e in entries)


@pytest.mark.parametrize("stop", [0, 1, 2])
def test_a_write_that_dies_at_any_step_leaves_a_whole_entry(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """The steps are: content written, flushed to disk, renamed."""
    fill(cache, 1)
    before = only_file(cache).read_bytes()

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    target = ["fsync", "replace", "fsync"][stop]
    if stop == 2:  # dies after the rename: the new entry is whole
        real, calls = os.fsync, iter([os.fsync, die])
        monkeypatch.setattr(os, target, lambda fd: next(calls, real)(fd))
    else:
        monkeypatch.setattr(os, target, die)
    with pytest.raises(Killed):
        write_atomic(only_file(cache), b"new")
    monkeypatch.undo()
    assert only_file(cache).read_bytes() == (b"new" if stop == 2 else before)
    assert cache.leftovers() == []


def test_leftovers_of_killed_writers_are_never_entries_and_are_swept(cache: Cache) -> None:
    fill(cache, 1)
    folder = only_file(cache).parent
    old, fresh = folder / f".{key_of(1)}.trnx.999-0.tmp", folder / f".{key_of(1)}.trnx.998-0.tmp"
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert len(cache.entries()) == 1
    assert cache.leftovers() == [f"v1/{path.name}" for path in (fresh, old)]
    assert "left behind" in documents.text(cache_report.verify(cache)[0])
    fill(cache, 1)
    assert not old.exists()
    assert fresh.exists()


@pytest.mark.parametrize("noticed_after_s", [0.1, 60.0])
def test_only_one_process_builds_and_the_others_wait(
    cache: Cache, told: Told, noticed_after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trnlab.runtime.cache.executables.NOTICED_AFTER_S", noticed_after_s)
    other = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"""
import sys, time
from pathlib import Path
from trnlab.runtime.cache.executables import Cache
with Cache(Path({cache.place!r})).building({key_of(1)!r}):
    print("building", flush=True)
    sys.stdin.read()
""",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"building\n"
    with cache.building(key_of(2)):
        pass
    assert told == []
    killer = threading.Timer(0.5, other.kill)
    killer.start()
    with cache.building(key_of(1)):  # the lease of a process that is gone is taken over
        waits = [notice for notice in told if "waiting for another process" in notice]
        assert len(waits) == (noticed_after_s < 1)  # short waits are not told
        assert told[-1].startswith(f"{socket.gethostname()}:{other.pid} died while it compiled")
    assert cache.metrics.taken_over == 1
    killer.join()
    other.communicate()


def test_a_read_only_folder_is_told_once_and_the_cache_goes_without(cache: Cache, told: Told) -> None:
    fill(cache, 1)
    told.clear()
    folder = only_file(cache).parent
    folder.parent.chmod(0o755)
    folder.chmod(0o555)
    for parent in Path(cache.place).parents:
        if parent.owner() != "root" or parent == Path("/"):
            break
        parent.chmod(parent.stat().st_mode | 0o055)
    try:
        with without_privileges():
            assert cache.get(key_of(1)) is not None  # reading still works
            for _ in range(2):
                with cache.building(key_of(2)):
                    assert not cache.put(key_of(2), program(), dict(METADATA), "")
            with pytest.raises(CacheError, match="cannot be cleared: no permission") as caught:
                cache.clear()
    finally:
        folder.chmod(0o755)
    assert caught.value.code == "TRN603"
    assert len(told) == 1
    assert "no permission" in told[0]
    assert "going on without it" in told[0]


def test_a_full_disk_is_told_once_and_leaves_nothing(
    cache: Cache, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for i in (1, 2):
        assert not cache.put(key_of(i), program(), dict(METADATA), "")
    assert told == [f"the cache cannot be written, going on without it: the disk is full ({cache.place})"]
    assert cache.entries() == []
    assert cache.leftovers() == []


def test_a_file_in_place_of_the_folder_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        Cache(tmp_path / "file")
    assert caught.value.code == "TRN122"


def test_the_listing_names_every_entry(cache: Cache) -> None:
    assert documents.text(cache_report.listing(cache)).endswith("empty")
    fill(cache, 1, 2)
    cache.get(key_of(2))
    text = documents.text(cache_report.listing(cache))
    head, *rows, total = text.splitlines()
    assert head.split() == ["key", "name", "target", "size", "age", "hits"]
    assert {row.split()[1] for row in rows} == {"step1", "step2"}
    assert {row.split()[-1] for row in rows} == {"0", "1"}
    assert total.startswith("2 entries")
