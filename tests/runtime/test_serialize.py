# SPDX-License-Identifier: Apache-2.0
"""The executable file gives back exactly what was put in, and anything that is not exactly that is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_samples import program

from trnlab.errors import CacheError, Location
from trnlab.files import write_atomic
from trnlab.isa.base import Memory
from trnlab.numerics.dtypes import ALL
from trnlab.program.routine import Program
from trnlab.runtime.cache import serialize
from trnlab.runtime.cache.codec import Encoder, decode, pack, unpack


def same(a: Any, b: Any) -> None:
    """Equal in value, type and, for arrays, dtype and shape; memos do not count."""
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()
    elif dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            if not field.name.startswith("_"):
                same(getattr(a, field.name), getattr(b, field.name))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, tuple | list):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b or (a != a and b != b)


def stored(tmp_path: Path, p: Program) -> Path:
    path = tmp_path / "a.trnx"
    write_atomic(path, *serialize.dump(p, {"name": "step", "parts": {"input x": "float32[8]"}}, "graph text\nß"))
    return path


def test_a_program_comes_back_exactly(tmp_path: Path) -> None:
    original = program()
    found = serialize.load(stored(tmp_path, original))
    same(found.program, original)
    assert found.metadata == {"name": "step", "parts": {"input x": "float32[8]"}}
    assert found.graph == "graph text\nß"
    assert found.program.routines[0].buffers[0].memory is Memory.HBM


def test_a_program_without_instructions_comes_back_exactly(tmp_path: Path) -> None:
    empty = Program("nothing", "trn1", (), (), (), (), ())
    same(serialize.load(stored(tmp_path, empty)).program, empty)


def test_the_file_is_the_same_for_the_same_program() -> None:
    assert serialize.dump(program(), {"a": 1}) == serialize.dump(program(), {"a": 1})


def test_metadata_can_be_read_alone(tmp_path: Path) -> None:
    path = stored(tmp_path, program())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert serialize.loads_metadata(path.read_bytes(), path.name)["name"] == "step"


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
PLAIN = st.recursive(
    SCALARS | st.sampled_from(ALL) | st.sampled_from(Memory),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(PLAIN)
def test_every_value_of_an_attribute_comes_back_exactly(value: Any) -> None:
    encoder = Encoder()
    text = json.dumps(encoder.encode(value), allow_nan=False)
    same(decode(json.loads(text), encoder.arrays), value)


@pytest.mark.parametrize("kind", [d.numpy.name for d in ALL] + ["int64", "uint64", "float64", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (100, 18), (3, 4, 5), (0, 18)])
def test_arrays_of_every_format_come_back_exactly(kind: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    array = rng.integers(0, 256, (*shape, np.dtype(kind).itemsize), dtype=np.uint8).view(kind)[..., 0]
    if kind == "bool":
        array = np.asarray(array.view(np.uint8) % 2 == 1)
    entry, raw = pack(array)
    back, used = unpack(json.loads(json.dumps(entry)), memoryview(b"".join(raw) + b"rest"))
    same(back, array)
    assert used == sum(map(len, raw))


def test_tables_of_small_integers_are_stored_small() -> None:
    table = np.zeros((1000, 18), np.int64)
    table[:, 3] = 40_000
    assert sum(map(len, pack(table)[1])) == 1000 * (17 + 4)


def test_a_type_that_the_format_does_not_know_is_refused_on_writing() -> None:
    with pytest.raises(TypeError, match="complex has no place"):
        Encoder().encode((1, 2j))
    with pytest.raises(TypeError, match="arrays of object"):
        pack(np.array([print], object))


@pytest.mark.parametrize("tree", [{"Popen": ["ls"]}, {"a": 1, "b": 2}, {"Location": [1]}, {"Memory": 77}])
def test_a_tree_with_anything_unknown_is_refused_on_reading(tree: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of the decoder's own
        decode(tree, [])


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = stored(tmp_path, program())
    whole = path.read_bytes()
    for length in [*range(0, 300), *range(300, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(CacheError) as caught:
            serialize.load(path)
        assert caught.value.code == "TRN601"


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = stored(tmp_path, program())
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(2)
    for position in [*range(60), *rng.integers(60, len(whole), 100)]:
        whole[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(whole)
        with pytest.raises(CacheError):
            serialize.load(path)
        path.write_bytes(whole := bytearray(b"".join(serialize.dump(program(), {"name": "step", "parts": {}}))))


def test_trailing_bytes_are_noticed(tmp_path: Path) -> None:
    path = stored(tmp_path, program())
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CacheError, match="bytes of content instead of"):
        serialize.load(path)


def test_another_version_is_told_from_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path, program())
    monkeypatch.setattr(serialize, "FORMAT", 2)
    with pytest.raises(CacheError) as caught:
        serialize.load(path)
    assert caught.value.code == "TRN602"
    monkeypatch.undo()
    monkeypatch.setattr(serialize, "schema", lambda: {"Program": ["name"]})
    with pytest.raises(CacheError) as caught:
        serialize.loads_metadata(path.read_bytes(), path.name)
    assert caught.value.code == "TRN602"


def test_locations_keep_the_users_source_line() -> None:
    place = Location("train.py", 3, "step", "loss.backward()")
    encoder = Encoder()
    assert decode(encoder.encode(place), []) == place
