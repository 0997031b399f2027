# SPDX-License-Identifier: Apache-2.0
"""The compile cache where many share it: writers of one and of many keys, damage, layers, pruning, copies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import processes
from tests.runtime.runtime_samples import program
from tools.storage.s3 import Proxy, environment
from trnlab.cli.main import main
from trnlab.errors import CacheError, UsageError
from trnlab.runtime.cache import maintenance as cache_care
from trnlab.runtime.cache.executables import Cache, LayeredCache, open_cache
from trnlab.storage.remote import RemoteStore

METADATA = {
    "name": "step",
    "target": "trn1",
    "parts": {},
    "options": {},
    "created": "",
    "script": "",
    "compile_seconds": 1.0,
}


def key_of(i: int) -> str:
    return f"{i:x}".rjust(64, "0")


def fill(cache: Cache, *keys: int) -> None:
    for i in keys:
        assert cache.put(key_of(i), program(f"step{i}"), {**METADATA, "name": f"step{i}"}, "graph")


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def cache(url: str, told: list[str]) -> Cache:
    return Cache(url, told.append)


WRITERS = pytest.mark.parametrize("writers", [16, pytest.param(64, marks=pytest.mark.slow)])


@WRITERS
@pytest.mark.parametrize("alone", [False, True])
def test_many_writers_leave_whole_entries(url: str, writers: int, alone: bool) -> None:
    keys = writers if alone else 1

    def work(i: int) -> tuple[int, bool]:
        cache, key = Cache(url, pytest.fail), i % keys
        fill(cache, key)
        found = cache.get(key_of(key))
        return key, found is not None and found.program.name == f"step{key}"

    with ThreadPoolExecutor(writers) as pool:
        assert all(right for _, right in pool.map(work, range(writers)))
    entries = Cache(url).entries(check=True)
    assert len(entries) == keys
    assert all(entry.problem is None for entry in entries)


@WRITERS
def test_of_many_that_ask_for_a_program_one_builds_it(url: str, writers: int) -> None:
    built: list[int] = []

    def work(i: int) -> bool:
        cache = Cache(url, lambda line: None)
        with cache.building(key_of(1)):
            if cache.get(key_of(1)) is None:
                built.append(i)
                time.sleep(0.05)
                fill(cache, 1)
        return cache.get(key_of(1)) is not None

    with ThreadPoolExecutor(writers) as pool:
        assert all(pool.map(work, range(writers)))
    assert len(built) == 1
    assert [item.name for item in Cache(url).store.items("v1/leases/")] == []


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign", "swapped"])
def test_damage_is_told_missed_and_replaced(cache: Cache, told: list[str], damage: str) -> None:
    fill(cache, 1, 2)
    name = f"v1/{key_of(1)}.trnx"
    whole = cache.store.read(name)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    other = cache.store.read(f"v1/{key_of(2)}.trnx")
    bad = {"truncated": whole[:-1], "flipped": bytes(flipped), "empty": b"", "foreign": b"x" * 500, "swapped": other}
    cache.store.write(name, bad[damage])
    assert [e.key for e in cache.entries(check=True) if e.problem is not None] == [key_of(1)]
    assert cache.get(key_of(1)) is None
    assert len(told) == 1
    assert "rebuilt" in told[0]
    fill(cache, 1)  # who noticed may replace it
    assert cache.get(key_of(1)) is not None
    assert (cache.metrics.damaged, cache.metrics.hits, cache.metrics.misses) == (1, 1, 1)


def test_a_listing_that_is_not_of_now_hides_nothing(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache, 1, 2)
    stale = cache.store.items("v1/")
    cache.remove(key_of(2))
    fill(cache, 3)
    monkeypatch.setattr(cache.store, "items", lambda prefix="": stale)
    assert [entry.key for entry in cache.entries(check=True)] == [key_of(1)]  # 2 is listed, and gone
    assert cache.get(key_of(3)) is not None  # 3 is not listed, and here


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    fill(cache, 1, 2, 3)
    for i in (1, 2, 3):
        os.utime(tmp_path / "v1" / f"{key_of(i)}.trnx", (1000 * i, 1000 * i))
    assert cache.get(key_of(1)) is not None  # the oldest, and used now
    size = cache.entries()[0].size
    limits = cache_care.CacheLimits.read(f"{2 * size + 10}B", None)
    assert [e.key for e in cache_care.prune(cache, limits, dry_run=True)] == [key_of(2)]
    assert [e.key for e in cache_care.prune(cache, limits)] == [key_of(2)]
    assert {e.key for e in cache.entries()} == {key_of(1), key_of(3)}
    assert [e.key for e in cache_care.prune(cache, cache_care.CacheLimits.read(None, "1d"))] == [key_of(3)]


@pytest.mark.parametrize(("size", "age"), [(None, None), ("twenty", None), (None, "3 moons"), ("-1GiB", None)])
def test_pruning_without_a_limit_is_refused(size: str | None, age: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        cache_care.CacheLimits.read(size, age)
    assert caught.value.code == "TRN525"


def test_pruning_on_a_store_goes_by_marks_of_use(url: str) -> None:
    cache = Cache(url)
    fill(cache, 1)
    time.sleep(0.01)
    fill(cache, 2)
    time.sleep(1.1)  # S3 tells whole seconds
    assert cache.get(key_of(1)) is not None
    size = max(entry.size for entry in cache.entries())
    assert [e.key for e in cache_care.prune(cache, cache_care.CacheLimits(size=size))] == [key_of(2)]


def test_a_cache_of_ones_own_over_one_that_is_only_read(url: str, tmp_path: Path, told: list[str]) -> None:
    team = Cache(url)
    fill(team, 1)
    before = {item.name for item in team.store.items()}
    mine = open_cache(f"{tmp_path / 'mine'},{url}", told.append)
    assert isinstance(mine, LayeredCache)
    assert mine.has(key_of(1))
    assert mine.get(key_of(1)) is not None
    fill(mine, 2)
    assert {item.name for item in team.store.items()} == before
    assert {e.key for e in Cache(tmp_path / "mine").entries(check=True)} == {key_of(1), key_of(2)}
    assert not told


def test_push_and_pull_copy_what_is_sound(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = Cache(tmp_path / "mine")
    fill(mine, 1, 2, 0x300)
    damaged = tmp_path / "mine" / "v1" / f"{key_of(2)}.trnx"
    damaged.write_bytes(damaged.read_bytes()[:-5])
    if url.startswith("memory"):
        pytest.skip("the command line would have another memory")
    assert main(["cache", "push", url, "--cache", mine.place]) == 1
    assert "damaged, not copied" in capsys.readouterr().out
    assert {e.key for e in Cache(url).entries(check=True)} == {key_of(1), key_of(0x300)}
    assert main(["cache", "pull", url, "0000", "--cache", str(tmp_path / "third")]) == 0
    assert "copied 2 entries" in capsys.readouterr().out
    assert main(["cache", "verify", url]) == 0
    assert main(["cache", "ls", url]) == 0
    assert "step1" in capsys.readouterr().out
    assert main(["cache", "prune", url, "--size", "0B"]) == 0
    assert "removed 2 entries" in capsys.readouterr().out
    assert main(["cache", "pull", url, "abc", "--cache", str(tmp_path / "third")]) == 2
    assert "TRN124" in capsys.readouterr().err


def test_a_run_goes_on_without_a_store_that_refuses(server: Proxy, bucket: str, told: list[str]) -> None:
    cache = Cache(f"{bucket}/cache", told.append)
    server.fault = lambda method, path: 403
    assert not cache.has(key_of(1))
    with cache.building(key_of(1)):
        assert cache.get(key_of(1)) is None
        assert not cache.put(key_of(1), program(), dict(METADATA), "")
    assert len(told) == 1
    assert "going on without it" in told[0]
    assert "no permission" in told[0]
    with pytest.raises(CacheError) as caught:
        cache.entries()
    assert caught.value.code == "TRN522"


def test_a_run_goes_on_without_a_store_that_is_down(server: Proxy, bucket: str, told: list[str]) -> None:
    cache = Cache(RemoteStore(f"{bucket}/cache", patience_s=0.3), told.append)
    server.fault = lambda method, path: 503
    started = time.monotonic()
    for i in range(20):
        assert cache.get(key_of(i)) is None
    assert time.monotonic() - started < 5  # the patience is spent once
    assert len(told) == 1
    assert "does not answer" in told[0]


def test_four_processes_that_start_on_an_empty_s3_build_each_program_once(server: Proxy, bucket: str) -> None:
    worker = Path(__file__).with_name("builder.py")
    command = [sys.executable, str(worker), f"{bucket}/cache", "3"]
    env = {**os.environ, **environment(server), "PYTHONPATH": os.pathsep.join(sys.path)}
    workers = [processes.start(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    built = [line for process in workers for line in processes.communicate(process, timeout=600)[0].splitlines()]
    assert all(process.returncode == 0 for process in workers)
    assert sorted(built) == [f"built {i}" for i in range(3)]
