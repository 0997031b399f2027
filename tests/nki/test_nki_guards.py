# SPDX-License-Identifier: Apache-2.0
"""A kernel is recorded again when anything changed that recording it read, and only then."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

X = np.ones((8, 4), np.float32)
SCALE = 2.0


class Slots:
    __slots__ = ("scale",)

    def __init__(self, scale: float) -> None:
        self.scale = scale


class Config:
    factor = 2.0

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def product(self) -> float:
        return self.scale * self.factor


CONFIG = Config(2.0)
HERE = globals()


def times(x: Any, factor: float) -> Any:
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=tile, data=nl.load(x), op0=nl.multiply, operand0=factor)
    nl.store(out, tile)
    return out


def helper() -> float:
    return SCALE


def counted(function: Callable[..., Any]) -> Any:
    """The kernel, which notes how often it was recorded where no guard looks."""
    kernel = nki.jit(function)
    record, kernel.recordings = kernel.record, 0

    def counting(*args: Any) -> Any:
        kernel.recordings += 1
        return record(*args)

    kernel.record = counting
    return kernel


def by_global(x):
    return times(x, SCALE)


def by_helper(x):
    return times(x, helper())


def by_object(x):
    return times(x, CONFIG.scale)


def by_method(x):
    return times(x, CONFIG.product())


def by_environment(x):
    return times(x, float(os.environ.get("KERNEL_SCALE", "2")))


# the kernel, what changes, the factor before and after
CHANGES: dict[str, tuple[Any, Callable[[pytest.MonkeyPatch], None], float, float]] = {
    "global": (by_global, lambda m: m.setitem(HERE, "SCALE", 3.0), 2, 3),
    "global of a function": (by_helper, lambda m: m.setitem(HERE, "SCALE", 3.0), 2, 3),
    "field of a global object": (by_object, lambda m: m.setattr(CONFIG, "scale", 5.0), 2, 5),
    "class of a global object": (by_method, lambda m: m.setattr(Config, "factor", 3.0), 4, 6),
    "environment": (by_environment, lambda m: m.setenv("KERNEL_SCALE", "7"), 2, 7),
    "function": (by_helper, lambda m: m.setitem(HERE, "helper", lambda: 9.0), 2, 9),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_what_was_read_records_again_and_the_old_state_finds_the_old_trace(
    monkeypatch: pytest.MonkeyPatch, what: str
):
    function, change, before, after = CHANGES[what]
    kernel = counted(function)
    np.testing.assert_array_equal(kernel(X), before * X)
    np.testing.assert_array_equal(kernel(X), before * X)
    assert kernel.recordings == 1
    with monkeypatch.context() as context:
        change(context)
        np.testing.assert_array_equal(kernel(X), after * X)
        assert kernel.recordings == 2
    np.testing.assert_array_equal(kernel(X), before * X)
    assert kernel.recordings == 2


def test_closures_defaults_and_arrays_changed_in_place():
    factor, table = 2.0, np.full(X.shape, 3.0, np.float32)

    def function(x, offset=4.0):
        out = times(x, factor + offset)
        tile = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=tile, data1=nl.load(out), data2=nl.load(nl.shared_constant(table)), op=nl.add)
        nl.store(out, tile)
        return out

    kernel = counted(function)
    np.testing.assert_array_equal(kernel(X), 9 * X)
    factor = 3.0
    np.testing.assert_array_equal(kernel(X), 10 * X)
    table[:] = -0.0
    np.testing.assert_array_equal(kernel(X), 7 * X)
    function.__defaults__ = (5.0,)
    np.testing.assert_array_equal(kernel(X), 8 * X)
    assert kernel.recordings == 4


def test_constants_that_are_equal_to_the_eye_only():
    @counted
    def filled(x, value):
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=value)
        nl.store(out, tile)
        return out

    assert [bool(np.signbit(filled(X, value)[0, 0])) for value in (0.0, -0.0, 0.0)] == [False, True, False]
    assert filled.recordings == 2


def test_objects_as_arguments_count_by_contents():
    kernel = counted(lambda x, config: times(x, config.scale))
    slots = Slots(2.0)
    assert kernel(X, slots)[0, 0] == 2
    slots.scale = 5.0
    assert kernel(X, slots)[0, 0] == 5
    assert [kernel(X, Slots(float(i)))[0, 0] for i in range(6)] == [0, 1, 2, 3, 4, 5]
    assert kernel.recordings == 6


def test_methods_of_an_argument_read_globals_too(monkeypatch: pytest.MonkeyPatch):
    kernel = counted(lambda x, config: times(x, config.product()))
    assert kernel(X, Config(2.0))[0, 0] == 4
    monkeypatch.setattr(Config, "factor", 5.0)
    assert kernel(X, Config(2.0))[0, 0] == 10
    assert kernel.recordings == 2


def test_what_cannot_be_compared_is_recorded_each_time():
    steps = iter([2.0, 3.0])
    kernel = counted(lambda x: times(x, next(steps)))
    assert [kernel(X)[0, 0] for _ in range(2)] == [2, 3]


def test_a_kernel_that_another_calls_counts_with_what_it_read(monkeypatch: pytest.MonkeyPatch):
    inner = nki.jit(by_global)
    kernel = counted(lambda x: inner(x))
    assert kernel(X)[0, 0] == 2
    monkeypatch.setitem(HERE, "SCALE", 3.0)
    assert kernel(X)[0, 0] == 3


def test_the_chip_is_the_one_that_the_environment_names_now(monkeypatch: pytest.MonkeyPatch):
    kernel = counted(by_object)
    chips = []
    for name in ("trn1", "trn2", "trn1"):
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", name)
        chips.append(kernel.timeline(X).target)
    assert chips == ["trn1", "trn2", "trn1"]
    assert kernel.recordings == 2
