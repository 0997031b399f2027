# SPDX-License-Identifier: Apache-2.0
"""The names that functions mention are noted once per function, and other events cost next to nothing."""

import cProfile
import sys
from types import SimpleNamespace
from typing import Any, cast

from trnlab.guards.closures import Closures
from trnlab.guards.state_snapshot import StateSnapshot
from trnlab.guards.watch import FunctionWatch


class _Noted:
    """Stands in for an image: keeps what it is told of."""

    framework = SimpleNamespace(
        library=lambda file: not file.endswith("test_function_watch.py"), names_only=lambda file: False
    )

    def __init__(self) -> None:
        self.names: list[str] = []
        self.opaque: dict[int, Any] = {}
        self.closures = Closures()

    def mention(self, code: Any, names: Any) -> None:
        self.names.append(code.co_name)
        assert names is globals()


def _square(x: int) -> int:
    return abs(x) * x


def test_a_function_is_noted_once_and_before_it_returns() -> None:
    noted = _Noted()
    with FunctionWatch(cast(StateSnapshot, noted)):
        _square(1)
        _square(2)
    assert noted.names.count("_square") == 1


def _counter(start: int) -> Any:
    def count() -> int:
        return start

    return count


def test_functions_are_found_by_their_code_whenever_they_are_asked_for() -> None:
    first, second = _counter(1), _counter(2)
    closures = Closures()
    for _ in range(3):  # by a look at all objects, then in a table
        assert {id(f) for f in closures.of(first.__code__)} == {id(first), id(second)}
    sys.modules["a module that was imported meanwhile"] = sys
    try:
        third = _counter(3)
        assert third in closures.of(first.__code__)
    finally:
        del sys.modules["a module that was imported meanwhile"]
    closures.forget()
    assert not closures._table


def test_a_profiler_goes_on_behind_the_block() -> None:
    profile, previous = cProfile.Profile(), sys.getprofile()
    profile.enable()
    with FunctionWatch(cast(StateSnapshot, _Noted())):
        _square(1)
    _square(2)
    profile.disable()
    sys.setprofile(previous)
    assert any(entry.code is _square.__code__ for entry in profile.getstats())


def test_only_a_call_looks_at_its_frame() -> None:
    watch = FunctionWatch(cast(StateSnapshot, _Noted()))
    nothing: Any = object()  # without f_code: to look at that of a frame is an audit event
    for event in ("return", "c_call", "c_return", "c_exception"):
        watch._event(nothing, event, None)
    assert not watch._seen
