# SPDX-License-Identifier: Apache-2.0
"""Loops are compiled when they are first called, and what prevents it reaches the caller in Python."""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import llvmlite.binding as llvm
import pytest
from numba import njit
from numba.core.errors import TypingError

from trnlab.loops import Exported
from trnlab.loops.kinds import float32, i64
from trnlab.sim.functional import linking
from trnlab.sim.functional.binding import Stubs
from trnlab.sim.functional.linking import check_linked, exported, from_python, link

_KIND = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64, ctypes.c_float)
_HALF = _KIND(lambda whole, rest: whole / 2 + rest)


def _stubbed(symbol: str, resolve: Callable[[Exported], int]) -> tuple[Stubs[Exported], Any]:
    stubs = Stubs([Exported(symbol, float32(i64, float32), _HALF)], resolve)
    return stubs, _KIND(llvm.address_of_symbol(symbol))


def test_a_loop_is_asked_for_once() -> None:
    asked: list[str] = []

    def resolve(loop: Exported) -> int:
        asked.append(loop.symbol)
        return ctypes.cast(_HALF, ctypes.c_void_p).value or 0

    stubs, call = _stubbed("trnlab_test_half", resolve)
    assert not asked
    assert [call(3, 0.25), call(4, -1.0)] == [1.75, 1.0]
    assert asked == ["trnlab_test_half"]
    assert (len(stubs), stubs.unresolved()) == (1, 0)


def test_what_cannot_be_had_is_zero_counts_and_is_asked_for_again() -> None:
    addresses = [0, 0, ctypes.cast(_HALF, ctypes.c_void_p).value or 0]
    stubs, call = _stubbed("trnlab_test_late", lambda loop: addresses.pop(0))
    assert [call(3, 1.0), call(3, 1.0), call(3, 1.0)] == [0.0, 0.0, 2.5]
    assert stubs.unresolved() == 2


@exported(float32(i64))
def broken_loop_of_a_test(x):
    """No such attribute."""
    return x.no_such_attribute


@exported(i64(i64))
def loop_of_a_test(x):
    """Compiles."""
    return x + 1


@njit
def _calls_broken(x):
    return broken_loop_of_a_test(x)


@njit
def _calls(x):
    return loop_of_a_test(x)


@pytest.fixture
def linked() -> Iterator[None]:
    """Stubs of the two above; nothing is left to be raised by other tests."""
    link()
    yield
    check_linked()


@pytest.mark.usefixtures("linked")
def test_an_error_while_a_loop_is_compiled_is_raised_afterwards() -> None:
    assert _calls_broken(1) == 0
    with pytest.raises(TypingError, match="no_such_attribute"):
        check_linked()
    check_linked()  # once
    assert _calls(1) == 2
    check_linked()


@pytest.mark.usefixtures("linked")
def test_python_calls_a_loop_and_gets_its_error() -> None:
    assert from_python(loop_of_a_test)(41) == 42
    with pytest.raises(TypingError):
        from_python(broken_loop_of_a_test)(1)


@pytest.mark.usefixtures("linked")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_nothing_could_take_is_raised_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(linking, "_compiled", interrupted)
    monkeypatch.setattr(linking, "_FAILED", None)  # what comes while an error is noted is not noted itself
    taken = len(linking._TAKEN)
    assert _calls_broken(1) == 0
    monkeypatch.undo()
    del linking._TAKEN[taken:]
    with pytest.raises(KeyboardInterrupt):
        check_linked()
