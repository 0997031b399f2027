# SPDX-License-Identifier: Apache-2.0
"""Loops that were made ahead of time compute what Numba's compute, and are used only where they belong."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from trnlab import loops
from trnlab.loops import build, kinds, places, prebuilt
from trnlab.loops.kinds import float32, i64, void


class Both(NamedTuple):
    """Passed as one argument."""

    left: np.ndarray
    right: np.ndarray


@loops.compiled
def cumulated(values, offset, wanted):
    """Sums up to each value, in memory of its own; and the whole."""
    out = np.zeros(values.shape[0], np.int64)
    total = offset
    for i in range(values.shape[0]):
        if wanted[i]:
            total += values[i]
        out[i] = total
    return out, total


@loops.compiled
def scaled(pair, factor, narrow):
    """Writes the first by the second; a number of each kind comes back."""
    for i in range(pair.left.shape[0]):
        for j in range(pair.left.shape[1]):
            pair.left[i, j] = pair.right[i, j] * factor
    return narrow * np.float32(0.5), factor, pair.left[0, 0] < 0


@loops.compiled
def written(values, number):
    """Nothing comes back."""
    values[number] = cumulated(values, number, values > 0)[1]


@loops.compiled
def quotient(a, b):
    """Raises for b = 0."""
    return a // b


def _spread(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.repeat(x, 2))[::2]


CALLS: list[tuple[loops.CompiledLoop, Callable[[], tuple[Any, ...]]]] = [
    (cumulated, lambda: (np.arange(-4, 7), 3, np.arange(11) % 3 == 0)),
    (cumulated, lambda: (np.arange(0), 3, np.zeros(0, np.bool_))),
    (cumulated, lambda: (_spread(np.arange(5)), np.int64(-9), np.ones(5, np.bool_))),
    (scaled, lambda: (Both(np.zeros((3, 2)), np.arange(6.0).reshape(3, 2)), -0.1, np.float32(0.3))),
    (scaled, lambda: (Both(np.zeros((3, 2)), np.arange(6.0).reshape(2, 3).T), 1e300, np.float32(np.inf))),
    (written, lambda: (np.arange(1, 9), 2)),
    (quotient, lambda: (7, -2)),
]


def _job(loop: loops.CompiledLoop, args: tuple[Any, ...]) -> str:
    return f"{loop.name}({', '.join(str(kinds.name_of(arg)) for arg in args)})"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the loops of this module."""
    objects: dict[str, Any] = {}
    code = b""
    keep, loops.KEEP[0] = loops.KEEP[0], False
    try:
        for job in dict.fromkeys(_job(loop, args()) for loop, args in CALLS):
            symbol, about, content = build.make(job)
            objects[symbol] = build.placed(about, code, content)
            code += content
    finally:
        loops.KEEP[0] = keep
    folder = tmp_path_factory.mktemp("loops")
    folder.chmod(0o700)
    path = folder / places.file_name()
    path.write_bytes(build.joined([(objects, code)], None))
    path.chmod(0o600)
    return path


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, tuple) else (type(value), value)


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_what_was_made_computes_what_numba_makes_of_it(made: Path, number: int) -> None:
    loop, arguments = CALLS[number]
    read = prebuilt.read(made)
    assert read is not None
    mine, numbas = arguments(), arguments()
    entry = prebuilt.entry_of(read, loop.name, _job(loop, mine).removeprefix(loop.name))
    assert entry is not None
    found, expected = entry(*mine), loop.dispatcher(*numbas)
    assert _plain(found) == _plain(expected)
    assert _plain(mine) == _plain(numbas)


def test_an_exception_is_no_result(made: Path) -> None:
    read = prebuilt.read(made)
    assert read is not None
    entry = prebuilt.entry_of(read, quotient.name, "(int64, int64)")
    assert entry is not None
    with pytest.raises(RuntimeError, match="quotient"):
        entry(1, 0)


def _rewritten(path: Path, change: Callable[[dict[str, Any], bytearray], None]) -> None:
    first, _, rest = path.read_bytes().partition(b"\n")
    header, code = json.loads(first), bytearray(rest)
    change(header, code)
    path.write_bytes(json.dumps(header).encode() + b"\n" + code)


CHANGES: dict[str, Callable[[dict[str, Any], bytearray], None]] = {
    "other sources": lambda header, code: header.update(stamp="0" * 64),
    "another format": lambda header, code: header.update(format=0),
    "another system": lambda header, code: header.update(triple="riscv64-unknown-linux-gnu"),
    "a processor with more": lambda header, code: header["features"].append("of-the-future"),
    "no objects": lambda header, code: header.pop("features"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_file_that_does_not_belong_here_is_not_used(made: Path, tmp_path: Path, what: str) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / made.name
    path.write_bytes(made.read_bytes())
    path.chmod(0o600)
    assert prebuilt.read(path) is not None
    _rewritten(path, CHANGES[what])
    assert prebuilt.read(path) is None


def test_damage_is_found_before_the_code_is_run(made: Path, tmp_path: Path) -> None:
    path = tmp_path / made.name
    tmp_path.chmod(0o700)
    path.write_bytes(made.read_bytes())
    path.chmod(0o600)
    _rewritten(path, lambda header, code: code.__setitem__(len(code) // 2, code[len(code) // 2] ^ 1))
    read = prebuilt.read(path)
    assert read is not None
    jobs = [(loop.name, _job(loop, args()).removeprefix(loop.name)) for loop, args in CALLS]
    assert None in [prebuilt.entry_of(read, *job) for job in jobs]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files")
def test_code_that_others_could_have_written_is_not_run(made: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / made.name
    path.write_bytes(made.read_bytes())
    path.chmod(0o622)
    assert prebuilt.read(path) is None
    path.chmod(0o600)
    tmp_path.chmod(0o777)
    assert prebuilt.read(path) is None
    tmp_path.chmod(0o700)
    (tmp_path / "link").mkdir(mode=0o700)
    (tmp_path / "link" / made.name).symlink_to(path)
    assert prebuilt.read(tmp_path / "link" / made.name) is None
    assert prebuilt.read(path) is not None


def test_names_say_what_numba_would_say() -> None:
    from numba import typeof

    values = [
        3,
        True,
        2.5,
        None,
        np.float32(1),
        np.int64(1),
        np.zeros(3),
        np.zeros((2, 3), np.int8).T,
        np.zeros(9)[::3],
        np.zeros((2, 2, 2), np.bool_),
        (1, np.zeros(2)),
        Both(np.zeros(1), np.zeros((1, 2))),
        Both(1, 2),
        np.broadcast_to(np.float32(1), (3,)),
    ]
    names = [kinds.name_of(value) for value in values]
    assert None not in names
    parsed = kinds.parse(f"({', '.join(map(str, names))})")
    for value, name in zip(values, parsed, strict=True):
        assert name.numba() == typeof(value), value
    of_shape = dict(zip(map(kinds.shape_of, values), names))
    assert [of_shape[kinds.shape_of(value)] for value in values] == names
    others = [
        np.zeros(2, "i4,f4"),
        np.zeros(2, ">i8"),
        "text",
        [1],
        (1, "text"),
        np.float16(1),
        np.zeros(2, np.float16),
    ]
    assert [kinds.name_of(value) for value in others] == [None] * len(others)


def test_signatures_know_numbas() -> None:
    from numba import types

    assert void(i64, float32).numba() == types.void(types.int64, types.float32)


def test_every_listed_loop_is_there_with_as_many_arguments() -> None:
    build.jobs()
    for job in build.signatures():
        name, _, rest = job.partition("(")
        build.found(name)
        code = loops.LOOPS[name].function.__code__
        assert code.co_argcount == len(kinds.parse(f"({rest}")), name


def test_none_of_them_is_left_to_numba() -> None:
    """`make test` has made them. Where the sources have changed since, there is nothing to look at."""
    if (found := prebuilt.made()) is None:
        pytest.skip("the loops of these sources are not made; python -m trnlab.loops makes them")
    build.jobs()
    assert set(found.header["entries"]) == set(build.signatures())
    ours = {name for name, loop in loops.EXPORTS.items() if loop.function.__module__.startswith("trnlab.")}
    assert ours <= set(found.header["objects"])
