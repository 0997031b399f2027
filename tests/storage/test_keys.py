# SPDX-License-Identifier: Apache-2.0
"""A team's key: what has its seal is read, in folders and on S3; what has none is not, and is replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trnlab.errors import UsageError
from trnlab.numerics.dtypes import float32
from trnlab.program.routine import Program, ProgramTensor
from trnlab.runtime.cache.executables import Cache, open_cache
from trnlab.runtime.cache.maintenance import CacheLimits, copy, prune
from trnlab.storage.content import ContentStore
from trnlab.storage.keys import SEAL_BYTES, VARIABLE, team_key

KEY, OTHER = "a" * 64, "b" * 64
METADATA = {"name": "p", "target": "trn1", "parts": {}, "created": "now", "compile_seconds": 1.0, "options": {}}
PROGRAM = Program("p", "trn1", (), (ProgramTensor(0, "x", (4,), float32, 16, "input"),), (), (0,), (0,))


def key_file(folder: Path, content: str = "0123456789abcdef" * 4, mode: int = 0o600) -> Path:
    path = folder / f"key{len(list(folder.iterdir()))}"
    path.write_text(content)
    path.chmod(mode)
    return path


def with_key(monkeypatch: pytest.MonkeyPatch, path: Path | None) -> None:
    if path is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, str(path))


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = key_file(tmp_path)
    with_key(monkeypatch, path)
    return path


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("short", 0o600, "5 bytes"),
        ("k" * 64, 0o644, "mode 644"),
        ("k" * 64, 0o620, "mode 620"),
        ("k" * 9999, 0o600, "9999"),
    ],
)
def test_what_is_no_key_is_refused(
    content: str, mode: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(monkeypatch, key_file(tmp_path, content, mode))
    with pytest.raises(UsageError) as caught:
        Cache(tmp_path / "cache")
    assert caught.value.code == "TRN605"
    assert said in str(caught.value.got)
    assert content not in str(caught.value)


def test_a_key_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for name in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="names no key"):
            team_key({VARIABLE: str(name)})
    assert team_key({}) is None


def test_a_seal_is_of_name_and_content(team: Path) -> None:
    key = team_key()
    assert key is not None
    seal = key.seal("name", b"con", memoryview(b"tent"))
    assert len(seal) == SEAL_BYTES
    assert key.fits(seal, "name", b"content")
    assert not any(key.fits(seal, name, content) for name, content in (("n", b"amecontent"), ("name", b"Content")))


def test_entries_with_the_seal_are_used_wherever_they_lie(url: str, team: Path) -> None:
    told: list[str] = []
    assert Cache(url, told.append).put(KEY, PROGRAM, {**METADATA}, "graph")
    found = Cache(url, told.append).get(KEY)
    assert found is not None
    assert found.graph == "graph"
    assert [entry.problem for entry in Cache(url).entries(check=True)] == [None]
    assert told == []


def test_entries_of_others_are_told_and_replaced(url: str, team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    for path in (None, key_file(team.parent, "another" * 9)):
        with_key(monkeypatch, path)
        Cache(url).remove(KEY)
        Cache(url).put(KEY, PROGRAM, {**METADATA}, "theirs")
        with_key(monkeypatch, team)
        cache = Cache(url, told.append)
        assert cache.get(KEY) is None
        assert "has not the seal" in told.pop()
        assert [entry.problem.code for entry in cache.entries(check=True) if entry.problem] == ["TRN604"]
        assert cache.put(KEY, PROGRAM, {**METADATA}, "ours")
        ours = Cache(url, told.append).get(KEY)
        assert ours is not None
        assert ours.graph == "ours"
    assert told == []


def test_an_entry_is_not_another_ones(tmp_path: Path, team: Path) -> None:
    cache = Cache(tmp_path / "cache", lambda line: None)
    cache.put(KEY, PROGRAM, {**METADATA}, "graph")
    folder = tmp_path / "cache/v1"
    (folder / f"{OTHER}.trnx").write_bytes((folder / f"{KEY}.trnx").read_bytes())
    assert cache.get(OTHER) is None


def test_who_has_no_key_reads_sealed_entries(tmp_path: Path, team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any entry: who writes there is trusted."""
    Cache(tmp_path / "cache").put(KEY, PROGRAM, {**METADATA}, "graph")
    with_key(monkeypatch, None)
    assert Cache(tmp_path / "cache").get(KEY) is not None


def test_copies_are_sealed_and_strangers_stay_behind(
    tmp_path: Path, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(monkeypatch, None)
    Cache(tmp_path / "theirs").put(OTHER, PROGRAM, {**METADATA}, "graph")
    with_key(monkeypatch, team)
    Cache(tmp_path / "theirs").put(KEY, PROGRAM, {**METADATA}, "graph")
    source, target = Cache(tmp_path / "theirs", lambda line: None), Cache(tmp_path / "ours", lambda line: None)
    done = copy(source, target)
    assert ([e.key for e in done.copied], [e.key for e in done.damaged]) == ([KEY], [OTHER])
    assert target.get(KEY) is not None
    layered = open_cache(f"{tmp_path / 'new'},{tmp_path / 'theirs'}", lambda line: None)
    assert layered.get(KEY) is not None
    assert layered.get(OTHER) is None
    assert Cache(tmp_path / "new").get(KEY) is not None


def test_kept_results_are_sealed_too(tmp_path: Path, team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ContentStore(tmp_path / "kept")
    file = store.file(["made from"])
    assert file is not None
    assert store.write_record(file, {"a": 1})
    assert store.record(file) == {"a": 1}
    other = store.file(["something else"])
    assert other is not None
    other.write_bytes(file.read_bytes())
    assert store.record(other) is None
    with_key(monkeypatch, None)
    ContentStore(tmp_path / "kept").write_record(file, {"a": 2})
    assert json.loads(file.read_bytes())["a"] == 2
    assert store.record(file) is None


def test_pruning_removes_what_nobody_may_use(tmp_path: Path, team: Path) -> None:
    cache = Cache(tmp_path / "cache", lambda line: None)
    cache.put(KEY, PROGRAM, {**METADATA}, "graph")
    assert prune(cache, CacheLimits(size=1e9)) == []
