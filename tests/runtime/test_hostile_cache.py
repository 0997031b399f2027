# SPDX-License-Identifier: Apache-2.0
"""A cache in a folder that others put things into: they are named, never followed, waited for or removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cache_worker import key_of
from runtime_samples import program

from trnlab.cli.main import main
from trnlab.runtime.cache.executables import Cache
from trnlab.storage.folder import FolderStore
from trnlab.storage.plain_files import NotPlainFileError

METADATA = {"name": "step", "target": "trn1", "parts": {}, "created": "now", "compile_seconds": 1.0, "options": {}}


def sparse(path: Path, victim: Path) -> None:
    with path.open("wb") as file:
        file.truncate(200 << 30)


def locked(path: Path, victim: Path) -> None:
    path.write_bytes(b"secret")
    path.chmod(0)


STRANGE: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "link to nowhere": lambda path, victim: path.symlink_to(path.with_name("nowhere")),
    "loop": lambda path, victim: path.symlink_to(path),
    "FIFO": lambda path, victim: os.mkfifo(path),
    "folder": lambda path, victim: path.mkdir(),
    "sparse": sparse,
    "locked": locked,
}


def tree(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*")}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", ["entry", "lease"])
def test_what_is_no_file_of_ours_is_passed_over(
    tmp_path: Path, kind: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "locked" and os.geteuid() == 0:
        pytest.skip("nothing is locked for root")
    if (name, kind) == ("lease", "sparse"):
        pytest.skip("a lease that nobody renews is taken over when its time is up")
    told: list[str] = []
    cache, victim = Cache(tmp_path / "cache", told.append), tmp_path / "victim"
    victim.write_bytes(b"mine")
    assert cache.put(key_of(2), program(), {**METADATA}, "graph")
    within = {"entry": f"v1/{key_of(1)}.trnx", "lease": f"v1/leases/{key_of(1)}/1"}
    path = Path(cache.place, within[name])
    path.parent.mkdir(parents=True, exist_ok=True)
    STRANGE[kind](path, victim)
    before = path.lstat()
    with cache.building(key_of(1)):
        assert cache.get(key_of(1)) is None
        stored = cache.put(key_of(1), program(), {**METADATA}, "graph")
    assert stored == (name == "lease") or kind in ("sparse", "locked")
    assert cache.get(key_of(2)) is not None, "the rest of the cache serves"
    assert len(told) <= 1
    Cache(cache.place, told.append).get(key_of(1))
    assert main(["cache", "ls", "--cache", cache.place]) == 0
    out = capsys.readouterr().out
    if kind not in ("sparse", "locked", "folder"):
        assert f"{path.name}  is a" in out
    main(["cache", "verify", "--cache", cache.place])
    if name == "entry" and kind not in ("sparse", "locked"):
        assert main(["cache", "clear", "--cache", cache.place]) == 0
        assert (path.lstat().st_mode, path.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert victim.read_bytes() == b"mine"


@pytest.mark.parametrize("kind", ["link", "hard link", "FIFO", "loop"])
def test_uses_are_counted_in_our_own_file_alone(tmp_path: Path, kind: str) -> None:
    cache, victim = Cache(tmp_path / "cache", lambda line: None), tmp_path / "victim"
    victim.write_bytes(b"mine")
    cache.put(key_of(1), program(), {**METADATA}, "graph")
    path = Path(cache.place, "v1", f"{key_of(1)}.hits")
    if kind == "hard link":
        os.link(victim, path)
    else:
        STRANGE[kind](path, victim)
    for _ in range(3):
        assert cache.get(key_of(1)) is not None
    assert victim.read_bytes() == b"mine"


def test_clear_and_prune_remove_what_a_cache_writes_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A project has a folder of this name, too."""
    theirs = [
        "v1/model.safetensors",
        "v1/data/1",
        "v1/leases/notes",
        "v1/.draft.7-8.tmp",
        "v1/short.trnx",
        "v1/a.hits",
    ]
    for name in theirs:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"mine")
    cache = Cache(tmp_path, lambda line: None)
    cache.put(key_of(1), program(), {**METADATA}, "graph")
    cache.get(key_of(1))
    (tmp_path / "v1" / f".{key_of(1)}.trnx.7-8.tmp").write_bytes(b"half")
    with cache.building(key_of(2)):
        pass
    assert main(["cache", "prune", "--size", "0B", "--cache", str(tmp_path)]) == 0
    assert main(["cache", "clear", "--cache", str(tmp_path)]) == 0
    assert "left alone, as no file of a cache: " in capsys.readouterr().out
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()} == {*theirs}


def test_a_linked_folder_is_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = Cache(tmp_path / "real", lambda line: None)
    real.put(key_of(1), program(), {**METADATA}, "graph")
    before = tree(tmp_path / "real")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "v1").symlink_to(tmp_path / "real" / "v1")
    told: list[str] = []
    other = Cache(tmp_path / "other", told.append)
    assert other.get(key_of(1)) is None
    assert not other.put(key_of(2), program(), {**METADATA}, "graph")
    for action in ("ls", "clear"):
        assert main(["cache", action, "--cache", str(tmp_path / "other")]) == 0
    assert "v1  is a link" in capsys.readouterr().out
    assert main(["cache", "prune", "--size", "0B", "--cache", str(tmp_path / "other")]) == 0
    assert tree(tmp_path / "real") == before
    assert (tmp_path / "other" / "v1").is_symlink()


def test_the_folder_of_a_cache_itself_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "large")
    cache = Cache(tmp_path / "cache", lambda line: None)
    assert cache.put(key_of(1), program(), {**METADATA}, "graph")
    assert cache.get(key_of(1)) is not None


def test_a_fifo_is_not_waited_for_in_any_store(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(NotPlainFileError, match="a FIFO"):
        FolderStore(tmp_path).read("x")
