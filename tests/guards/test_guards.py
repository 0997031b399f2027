# SPDX-License-Identifier: Apache-2.0
"""Guards see every way in which a function reads data, name what changed, and hold while nothing has."""

from __future__ import annotations

import functools
import math
import os
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from trnlab.guards.collected import collected, depend
from trnlab.guards.functions import Guards

SCALE = 2.0
TABLE = {"a": [1, 2]}
ARRAY = np.ones(3)
HERE = globals()


@dataclass
class Config:
    scale: float = 1.0
    limit = 3

    def twice(self) -> float:
        return 2 * self.scale * DEEP

    @property
    def deepest(self) -> float:
        return DEEPER


class Derived(Config):
    pass


CONFIG = Derived()
DEEP, DEEPER, CACHED, LATE = 4, 5, 6, 7
SETTINGS = types.ModuleType("settings")
SETTINGS.__file__ = __file__
SETTINGS.config = Config()  # type: ignore[attr-defined]


def helper() -> float:
    return DEEP


@functools.lru_cache
def cached() -> float:
    return CACHED


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@decorated
def behind(x: Any) -> Any:
    return x * LATE


BOUND = CONFIG.twice
PART = functools.partial(helper)

# how a name is read, what reads it, and what changes
READS = {
    "a global": (lambda: SCALE, "SCALE", 3.0),
    "the sign of zero": (lambda: SCALE, "SCALE", -0.0),
    "a type": (lambda: SCALE, "SCALE", 2),
    "in a nested function": (lambda: [(lambda: SCALE)() for _ in "x"], "SCALE", 3.0),
    "a dict": (lambda: TABLE["a"], "TABLE", {"a": [1, 3]}),
    "an array": (lambda: ARRAY + 1, "ARRAY", np.zeros(3)),
    "a field": (lambda: CONFIG.scale, "CONFIG", Derived(5.0)),
    "a whole object": (lambda: vars(CONFIG), "CONFIG", Derived(5.0)),
    "a method's global": (lambda: CONFIG.twice(), "DEEP", 0),
    "a property's global": (lambda: CONFIG.deepest, "DEEPER", 0),
    "a function's global": (lambda: helper(), "DEEP", 0),
    "a cached function's global": (lambda: cached(), "CACHED", 0),
    "a decorated function's global": (lambda: behind(1), "LATE", 0),
    "a bound method's object": (lambda: BOUND(), "DEEP", 0),
    "a partial's function": (lambda: PART(), "DEEP", 0),
    "a function in a dict": (lambda: {"f": helper}["f"](), "DEEP", 0),
    "a name not there yet": (lambda: NEW, "NEW", 1),  # type: ignore[name-defined]  # noqa: F821
    "a name that hides a builtin": (lambda: max(1, 2), "max", min),
}


@pytest.mark.parametrize("how", READS)
def test_what_is_read_is_guarded(monkeypatch: pytest.MonkeyPatch, how: str):
    function, name, value = READS[how]
    guards = Guards({"f": function})
    assert guards.stable
    assert guards.unchanged()
    assert guards.failed() is None
    monkeypatch.setitem(HERE, name, value)
    assert not guards.unchanged()
    assert name in (guards.failed() or "") or name == "DEEP"
    monkeypatch.undo()
    assert guards.failed() is None


def changed_in_place(function: Any, change: Any) -> str | None:
    guards = Guards({"f": function})
    assert guards.failed() is None
    change()
    return guards.failed()


def test_changes_in_place_are_seen():
    config, items, array, state = Config(), [1], np.zeros(2), {"x": 1}
    cell = 1

    def function(default: Any = config) -> Any:
        return default, items, array, state, cell

    def rebind() -> None:
        nonlocal cell
        cell = 2

    def other_defaults() -> None:
        function.__defaults__ = (1,)

    for change in (
        lambda: setattr(config, "scale", 3.0),
        lambda: items.append(2),
        lambda: array.__setitem__(0, -0.0),
        lambda: state.update(x=2),
        rebind,
        other_defaults,
    ):
        assert changed_in_place(function, change), change


def test_data_and_methods_of_classes_count(monkeypatch: pytest.MonkeyPatch):
    def function() -> Any:
        return CONFIG.limit

    assert changed_in_place(function, lambda: monkeypatch.setattr(Config, "limit", 4)) == "Config.limit was 3, is 4"
    assert changed_in_place(function, lambda: monkeypatch.setattr(Derived, "limit", 4, raising=False))
    assert changed_in_place(function, lambda: monkeypatch.setattr(Config, "twice", lambda self: 0))


def test_modules_and_what_is_imported_inside(monkeypatch: pytest.MonkeyPatch):
    def along() -> Any:
        return SETTINGS.config.scale

    def whole() -> Any:
        return getattr(SETTINGS, "config")  # noqa: B009

    def imported() -> Any:
        from settings import config

        return config

    monkeypatch.setitem(__import__("sys").modules, "settings", SETTINGS)
    for function in (along, whole, imported):
        monkeypatch.setattr(SETTINGS, "config", Config())
        message = changed_in_place(function, lambda: monkeypatch.setattr(SETTINGS, "config", Config(9.0)))
        assert message
        assert message.endswith("scale was 1.0, is 9.0")


def test_code_that_asks_for_all_globals_depends_on_all():
    names: dict[str, Any] = {"a": 1, "b": [2]}
    exec("def function(): return globals()['a']", names)
    assert changed_in_place(names["function"], lambda: names["b"].append(3)) == "b of [1] is new"


def test_the_environment(monkeypatch: pytest.MonkeyPatch):
    for function in (lambda: os.environ.get("CHOICE"), lambda: os.getenv("CHOICE")):
        monkeypatch.delenv("CHOICE", raising=False)
        assert changed_in_place(function, lambda: monkeypatch.setenv("CHOICE", "1"))
    assert changed_in_place(lambda: math.pi, lambda: monkeypatch.setenv("CHOICE", "2")) is None


def test_equal_objects_in_their_place_change_nothing(monkeypatch: pytest.MonkeyPatch):
    guards = Guards({"f": lambda: (CONFIG.scale, TABLE, ARRAY, SCALE)})
    for name, value in (("CONFIG", Derived()), ("TABLE", {"a": [1, 2]}), ("ARRAY", np.ones(3)), ("SCALE", 4.0 / 2)):
        monkeypatch.setitem(HERE, name, value)
    assert guards.failed() is None
    assert guards.unchanged()


def test_what_cannot_be_compared_never_holds():
    steps = iter(range(9))
    guards = Guards({"f": lambda: next(steps)})
    assert not guards.stable
    assert not guards.unchanged()
    assert "iterator" in (guards.failed() or "")


def test_the_key_tells_states_apart(monkeypatch: pytest.MonkeyPatch):
    def key() -> Any:
        return Guards({"f": helper}).key

    first = key()
    monkeypatch.setitem(HERE, "DEEP", 5)
    second = key()
    monkeypatch.undo()
    assert first == key() != second


def test_work_collects_the_guards_of_what_it_uses():
    guards = Guards({"f": helper})
    with collected() as outer, collected() as inner:
        depend(guards), depend(guards)
    depend(Guards({"f": helper}))
    assert outer == inner == [guards]
