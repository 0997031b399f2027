# SPDX-License-Identifier: Apache-2.0
"""Instructions that few programs have: their loops see the interpreter's arrays, and nobody compiles one unasked."""

import numpy as np
from numba import njit

from trnlab.loops import LazyFunction
from trnlab.sim.functional.arguments import address, numbers, operands, two_walks
from trnlab.sim.functional.finite import reads_infinity
from trnlab.sim.functional.interpreter import run
from trnlab.sim.functional.kernels import FLOATS, SLOTS, affine_select, dropout, iota, numbered_bits
from trnlab.sim.functional.matmul import transposing_matmul
from trnlab.sim.functional.occasional import gather, move_rows
from trnlab.sim.functional.views import VIEW


@njit
def _moved(views, walks, floats):
    again, turned, held = operands(address(views)), two_walks(address(walks)), numbers(address(floats))
    again[2, 5] = turned[1, 4, 2] + again.shape[0] + again[3][1]
    turned[0][3, 1] = len(held)
    held[3] += np.float32(0.5)


def test_an_array_is_the_same_behind_its_address() -> None:
    views = np.arange(SLOTS * VIEW).reshape(SLOTS, VIEW)
    walks = np.arange(30).reshape(2, 5, 3)
    floats = np.arange(FLOATS, dtype=np.float32)
    expected, turned = views.copy(), walks.copy()
    expected[2, 5] = walks[1, 4, 2] + SLOTS + views[3, 1]
    turned[0, 3, 1] = FLOATS
    _moved(views, walks, floats)
    assert np.array_equal(views, expected)
    assert np.array_equal(walks, turned)
    assert floats.tolist() == [0.0, 1.0, 2.0, 3.5]


def _compiled_with(function) -> set[str]:
    """Names of what Numba compiles for a function: it, and what it calls by other means than a symbol."""
    names, left = set(), [function]
    while left:
        function = left.pop()
        names.add(function.__name__)
        named = [function.__globals__.get(name) for name in function.__code__.co_names]
        called = [
            inner.py_func
            for inner in named
            if isinstance(inner, LazyFunction) and hasattr(inner.dispatcher, "py_func")
        ]
        left += [inner for inner in called if inner.__name__ not in names]
    return names


def test_nobody_compiles_a_kernel_of_few_programs_unasked() -> None:
    names = _compiled_with(run.py_func)
    assert {"execute", "stream", "matmul", "fill", "copy_view"} <= names
    rare = {gather, move_rows, transposing_matmul, iota, affine_select, dropout, numbered_bits, reads_infinity}
    assert names.isdisjoint(kernel.py_func.__name__ for kernel in rare)
