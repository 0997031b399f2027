# SPDX-License-Identifier: Apache-2.0
"""Stores: what they promise holds in a folder, in memory and on S3; what goes wrong is waited out, or said."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from tools.storage.s3 import Proxy
from trnlab.errors import UsageError
from trnlab.storage import Store, open_store
from trnlab.storage.plain_files import NotPlainFileError
from trnlab.storage.remote import RemoteStore
from trnlab.storage.store_errors import explained, reason


def test_objects_are_written_read_listed_and_removed(store: Store) -> None:
    assert store.items() == []
    assert not store.exists("a/one")
    store.write("a/one", b"12", memoryview(b"34"))
    store.write("a/b/two", b"")
    store.write("other", b"x")
    assert store.read("a/one") == b"1234"
    assert store.read("a/one", 3) == b"123"
    assert store.exists("a/one")
    assert sorted((item.name, item.size) for item in store.items("a/")) == [("a/b/two", 0), ("a/one", 4)]
    assert sorted(item.name for item in store.items()) == ["a/b/two", "a/one", "other"]
    assert [item.name for item in store.items("a/o")] == ["a/one"]
    store.write("a/one", b"new")
    assert store.read("a/one") == b"new"
    store.delete("a/one", "a/never")
    with pytest.raises(FileNotFoundError):
        store.read("a/one")


def test_of_many_that_create_one_succeeds(store: Store) -> None:
    made: list[int] = []
    barrier = threading.Barrier(16)

    def create(i: int) -> None:
        barrier.wait()
        if store.create("lease/1", str(i).encode()):
            made.append(i)

    threads = [threading.Thread(target=create, args=[i]) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert store.read("lease/1") == str(made[0]).encode()
    assert not store.create("lease/1", b"late")


def test_a_storm_of_503_is_waited_out_and_counted(server: Proxy, bucket: str) -> None:
    store = open_store(f"{bucket}/files")
    counts = itertools.count()
    server.fault = lambda method, path: 503 if next(counts) < 3 else None
    store.write("one", b"1")
    assert store.usage.retries == 3
    assert store.read("one") == b"1"


def test_a_store_that_never_answers_is_given_up(server: Proxy, bucket: str) -> None:
    store = RemoteStore(f"{bucket}/files", patience_s=0.5)
    server.fault = lambda method, path: 503
    with pytest.raises(OSError, match="503") as caught:
        store.read("one")
    error = explained("the cache", "read", caught.value)
    assert error.code == "TRN524"
    assert "does not answer" in error.what


def test_a_connection_that_is_cut_half_way_is_tried_again(server: Proxy, bucket: str) -> None:
    store = open_store(f"{bucket}/files")
    content = bytes(range(256)) * 4000
    store.write("one", content)
    cut = iter(["cut", "cut"])
    server.fault = lambda method, path: next(cut, None) if method == "GET" else None
    assert store.read("one") == content
    assert store.usage.retries == 2


def test_a_create_whose_answer_is_lost_is_known_as_ones_own(server: Proxy, bucket: str) -> None:
    store = open_store(f"{bucket}/files")
    cut = iter(["cut"])
    server.fault = lambda method, path: next(cut, None) if method == "PUT" else None
    assert store.create("one", b"mine")
    assert store.usage.retries == 1
    assert not store.create("one", b"mine")


@pytest.mark.parametrize(("status", "code"), [(403, "TRN522"), (400, "TRN521")])
def test_refusals_are_not_tried_again_and_teach(server: Proxy, bucket: str, status: int, code: str) -> None:
    store = open_store(f"{bucket}/files")
    server.fault = lambda method, path: status
    with pytest.raises(OSError, match=r".") as caught:
        store.write("one", b"1")
    error = explained("the cache", "written", caught.value)
    assert (error.code, store.usage.retries) == (code, 0)
    assert error.remedy


def test_without_credentials_it_is_said(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(OSError, match="credentials") as caught:
        open_store(f"{bucket}/files").read("one")
    assert explained("the cache", "read", caught.value).code == "TRN521"


def test_a_bucket_that_is_not_there_is_said(bucket: str) -> None:
    store = open_store("s3://no-such-bucket-here/files")
    with pytest.raises(FileNotFoundError) as caught:
        store.items()
    assert reason(caught.value) == "there is no such bucket"
    with pytest.raises(FileNotFoundError, match="bucket") as caught:
        store.write("one", b"")
    assert explained("it", "written", caught.value).code == "TRN523"


@pytest.mark.parametrize("url", ["nosuchkind://a/b", "s3://", "memory://"])
def test_urls_of_no_known_kind_are_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert caught.value.code == "TRN520"


def test_file_urls_are_folders(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/x")
    store.write("a", b"1")
    assert (tmp_path / "x" / "a").read_bytes() == b"1"


def test_what_is_too_large_is_no_object_of_ours(store: Store) -> None:
    store.write("large", b"x" * 11)
    store.write("empty", b"")
    assert store.read("large", most=11) == b"x" * 11
    assert store.read("empty", most=0) == b""
    with pytest.raises(NotPlainFileError, match=r"11 bytes|more than 10 bytes"):
        store.read("large", most=10)
    with pytest.raises(FileNotFoundError):
        store.read("never", most=10)
