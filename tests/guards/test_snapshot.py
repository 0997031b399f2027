# SPDX-License-Identifier: Apache-2.0
"""Snapshots are equal exactly where nothing has changed that a program could read."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import random
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from trnlab.guards.snapshot import LIMIT, difference, snapshot


class Slots:
    __slots__ = ("__hidden", "scale")

    def __init__(self, scale: Any, hidden: Any = 0) -> None:
        self.scale, self.__hidden = scale, hidden


class Fields:
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


@dataclass(frozen=True)
class Frozen:
    size: int
    name: str = "x"


class Pair(NamedTuple):
    a: int
    b: int


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Count(int):
    pass


class Table(dict):  # type: ignore[type-arg]
    pass


def nested(values: list[Any]) -> Any:
    return {"list": values, "object": Fields(inner=(1, [2.0])), "none": None}


def table(**fields: Any) -> Table:
    made = Table(a=1)
    vars(made).update(fields)
    return made


DIFFERENT = [
    (0.0, -0.0),
    (1, 1.0),
    (1, True),
    (1.0, np.float32(1)),
    (np.float32(0), np.float32(-0.0)),
    (0j, complex(0, -0.0)),
    ("1", 1),
    (b"1", "1"),
    (None, 0),
    ((1, 2), [1, 2]),
    ([1, 2], [2, 1]),
    (Pair(1, 2), (1, 2)),
    ({1: 2}, {1: 3}),
    ({1: 0, 2: 0}, {2: 0, 1: 0}),
    ({1}, {1, 2}),
    ({0.0}, {-0.0}),
    ([], ()),
    (Color.RED, Color.BLUE),
    (Count(1), 1),
    (Count(1), Count(2)),
    (table(a=1), table(a=2)),
    (Slots(2.0), Slots(5.0)),
    (Slots(1, 2), Slots(1, 3)),
    (Fields(a=1), Fields(a=2)),
    (Fields(a=1), Fields(b=1)),
    (Fields(a=1), Frozen(1)),
    (Frozen(1), Frozen(1, "y")),
    (np.zeros(3), np.zeros(4)),
    (np.zeros(3), np.zeros(3, np.float32)),
    (np.zeros(2), -np.zeros(2)),
    (np.zeros(4), np.zeros((2, 2))),
    (np.array([1, None]), np.array([2, None])),
    (np.zeros(1 << 18), np.full(1 << 18, 1e-300)),
    (np.dtype("f4"), np.dtype("f8")),
    (np.zeros(2, ml_dtypes.bfloat16), np.zeros(2, np.float16)),
    (random.Random(0), random.Random(1)),
    (np.random.default_rng(0), np.random.default_rng(1)),
    (nested([1, [2]]), nested([1, [3]])),
    (functools.partial(max, 1), functools.partial(max, 2)),
    (functools.partial(max, 1), functools.partial(min, 1)),
    (collections.deque([1]), collections.deque([2])),
    (max, min),
    (int, float),
    (Fields(a=1).__init__, Fields().__init__),
    (threading.Lock(), threading.Lock()),
    (object(), object()),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_what_differs_is_different(one: Any, other: Any):
    assert snapshot(one) != snapshot(other)
    assert difference(snapshot(one), snapshot(other))


@pytest.mark.parametrize("value", [value for pair in DIFFERENT for value in pair])
def test_what_has_not_changed_is_equal_and_has_one_hash(value: Any):
    assert snapshot(value) == snapshot(value)
    assert hash(snapshot(value)) == hash(snapshot(value))
    assert difference(snapshot(value), snapshot(value)) == ""


def test_equal_contents_are_equal_whatever_holds_them():
    assert snapshot(nested([1])) == snapshot(nested([1]))
    assert snapshot(Slots(3)) == snapshot(Slots(3))
    assert snapshot(np.arange(6)[::2]) == snapshot(np.array([0, 2, 4]))
    assert snapshot(float("nan")) == snapshot(-float("nan"))


def test_values_that_contain_themselves():
    def loop(value: int) -> list[Any]:
        items: list[Any] = [value]
        items.append(items)
        return items

    assert snapshot(loop(1)) == snapshot(loop(1)) != snapshot(loop(2))


def test_an_iterator_and_what_is_too_large_are_never_equal():
    for value in (iter([1]), itertools.count(), list(range(LIMIT + 1))):
        before = snapshot(value)
        assert before != snapshot(value)
        assert difference(before, snapshot(value))


def test_differences_are_named_by_their_place():
    before, after = {"layers": [Slots(1.0), Slots(2.0)]}, {"layers": [Slots(1.0), Slots(-0.0)]}
    assert difference(snapshot(before), snapshot(after)) == "['layers'][1].scale was 2.0, is -0.0"
    assert difference(snapshot({"a": 1}), snapshot({"a": 1, "b": 2})) == "['b'] is new"


def test_another_value_can_stand_in():
    def stand_in(value: Any) -> Any:
        return value.a if isinstance(value, Fields) else value

    assert snapshot([Fields(a=1, b=2)], stand_in) == snapshot([Fields(a=1, b=3)], stand_in)


def test_reading_runs_no_code_of_the_users():
    class Trap:
        @property
        def loud(self) -> int:
            raise AssertionError

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        def __hash__(self) -> int:
            raise AssertionError

        def __len__(self) -> int:
            raise AssertionError

        def __init__(self) -> None:
            self.a = 1

    assert snapshot(Trap()) == snapshot(Trap())
