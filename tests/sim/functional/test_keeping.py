# SPDX-License-Identifier: Apache-2.0
"""Loops are compiled once for all environments of a user that have the same sources."""

import os
import time
from pathlib import Path
from types import FunctionType

import pytest
from numba import cfunc
from numba.core import config
from numba.types import int64 as i64

from trnlab.loops.places import own_folder
from trnlab.sim.functional import loop_cache
from trnlab.sim.functional.linking import versioned


def _twice(x):
    return x + x


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(config, "CACHE_DIR", "")
    loop_cache.install()


def _compiled(line: int = 0) -> object:
    code = _twice.__code__ if not line else _twice.__code__.replace(co_firstlineno=line)
    return cfunc(i64(i64), cache=True)(versioned(FunctionType(code, globals())))


def test_the_second_finds_what_the_first_has_compiled() -> None:
    first, again = _compiled(), _compiled()
    assert (first.cache_hits, again.cache_hits) == (0, 1)
    assert again.ctypes(21) == 42
    (made,) = own_folder().iterdir()
    assert {path.suffix for path in made.iterdir()} == {".nbi", ".nbc"}
    assert made.stat().st_mode & 0o077 == 0


def test_only_loops_are_kept_here_and_numbas_setting_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loop_cache.Shared.from_function(_twice, __file__) is None
    assert loop_cache.Shared.from_function(versioned(_twice), __file__) is not None
    monkeypatch.setattr(config, "CACHE_DIR", "/somewhere")
    assert loop_cache.Shared.from_function(versioned(_twice), __file__) is None


def test_a_folder_that_others_may_write_to_is_left_alone() -> None:
    own_folder().mkdir()
    own_folder().chmod(0o777)
    assert loop_cache.Shared.from_function(versioned(_twice), __file__) is None


def test_loops_of_other_sources_go_after_a_month() -> None:
    old, recent = own_folder() / "numba-old", own_folder() / "numba-recent"
    for place in (old, recent):
        place.mkdir(parents=True)
    own_folder().chmod(0o700)
    os.utime(old, (time.time() - 40 * 24 * 3600,) * 2)
    assert loop_cache.Shared.from_function(versioned(_twice), __file__) is not None
    assert (old.exists(), recent.exists()) == (False, True)


def test_what_somebody_put_there_stays(tmp_path: Path) -> None:
    mine = {"numba-old/notes.txt", "notes/of.nbi", "numba-other/deep/of.nbi"}
    for name in (*mine, "numba-old/f-1.py311.nbi", "numba-old/f-1.py311.1.nbc"):
        path = own_folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "of.nbi").write_bytes(b"x")
    (own_folder() / "numba-link").symlink_to(tmp_path / "elsewhere")
    for place in own_folder().iterdir():
        os.utime(place, (time.time() - 40 * 24 * 3600,) * 2)
    loop_cache._forget_old(own_folder())
    found = {p.relative_to(own_folder()).as_posix() for p in own_folder().rglob("*") if p.is_file()}
    assert found == mine
    assert (tmp_path / "elsewhere" / "of.nbi").exists()
