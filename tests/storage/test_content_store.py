# SPDX-License-Identifier: Apache-2.0
"""Small results by what they were made from: found again, damage noticed, writers at once, folders that are none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from trnlab.storage.content import ContentStore


def test_a_record_is_found_by_what_it_was_made_from(tmp_path):
    store = ContentStore(tmp_path / "kept")
    file = store.file(["version", {"b": 1, "a": 2}], prefix="trn1-")
    assert store.record(file) is None
    assert store.write_record(file, {"seconds": 0.1, "name": "é", "parts": [1, None]})
    again = ContentStore(tmp_path / "kept")
    assert again.file(["version", {"a": 2, "b": 1}], prefix="trn1-") == file
    assert again.record(file) == {"seconds": 0.1, "name": "é", "parts": [1, None]}
    assert again.record(again.file(["another version", {"a": 2, "b": 1}], prefix="trn1-")) is None


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b.replace(b"1", b"2"), lambda b: b"{}", lambda b: b"["]
)
def test_damage_is_noticed_and_repaired_by_the_next_writer(tmp_path, damage):
    store = ContentStore(tmp_path)
    file = store.file("x")
    store.write_record(file, {"seconds": 1})
    file.write_bytes(damage(file.read_bytes()))
    assert store.record(file) is None
    store.write_record(file, {"seconds": 1})
    assert store.record(file) == {"seconds": 1}


def test_many_writers_leave_one_whole_file(tmp_path):
    file = ContentStore(tmp_path).file("x")

    def work(number):
        store = ContentStore(tmp_path)
        assert store.write_record(file, {"by": number, "much": "x" * 10_000})
        found = store.record(file)
        return found is not None and len(found["much"])

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(work, range(40))) == {10_000}
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_what_cannot_be_kept_is_not(tmp_path):
    nowhere = ContentStore(None)
    assert nowhere.file("x") is None
    assert not nowhere.write_record(None, {})
    assert nowhere.record(None) is None
    (tmp_path / "file").write_text("")
    store = ContentStore(tmp_path / "file" / "kept")
    assert not store.write_record(store.file("x"), {"a": 1})
    assert store.record(store.file("x")) is None
