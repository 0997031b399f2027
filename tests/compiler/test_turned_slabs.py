# SPDX-License-Identifier: Apache-2.0
"""Images that are turned while their pixels are put in another order: every element where NumPy has it, bit for bit,
and in transfers of runs."""

import ml_dtypes
import numpy as np
import pytest
from compiled import build, execute_in_both_orders

from trnlab import chips
from trnlab.compiler import compile
from trnlab.compiler.lowerings import move
from trnlab.kernels.moves import turned_slabs as kernel
from trnlab.sim.timing import time_program

# Shape, and the order of dimensions, of channels before pixels or behind them.
CASES = {
    "windows of images": ((24, 2, 4, 7, 4, 7), (1, 2, 4, 3, 5, 0)),
    "grids of images": ((24, 2, 7, 4, 7, 4), (1, 3, 5, 2, 4, 0)),
    "images of windows": ((2, 4, 4, 7, 7, 24), (5, 0, 1, 3, 2, 4)),
    "images of grids": ((2, 7, 7, 4, 4, 24), (0, 5, 3, 1, 4, 2)),
    "many channels": ((200, 3, 5, 2, 5, 2), (1, 3, 5, 2, 4, 0)),
    "many channels, back": ((3, 5, 5, 2, 2, 200), (5, 0, 3, 1, 4, 2)),
    "channels of several banks": ((1100, 2, 3, 2, 3), (1, 3, 2, 4, 0)),
    "a few pixels": ((9, 3, 2, 3, 2), (2, 4, 1, 3, 0)),
    "long rows": ((16, 2, 3, 130, 2, 3), (1, 2, 4, 3, 5, 0)),
    "weights": ((40, 130, 3, 3), (2, 3, 1, 0)),
    "heads": ((5, 128, 3, 20), (2, 0, 3, 1)),
    "three levels": ((10, 2, 3, 2, 3, 2, 3), (1, 3, 5, 2, 4, 6, 0)),
}


def moved(name):
    _, order = CASES[name]
    return lambda b, x: b.transpose(x, order)


def numbers(shape, kind):
    x = np.random.default_rng([*shape]).standard_normal(shape).astype(kind)
    flat = x.reshape(-1)
    flat[:: flat.size // 9] = np.resize([np.nan, np.inf, -np.inf, -0.0], len(flat[:: flat.size // 9])).astype(kind)
    return x


@pytest.fixture
def always(monkeypatch):
    """Slabs wherever there are any, and how many there were."""
    found = []

    def turned(*given):
        slabs = kernel.turned_slabs(*given)
        found.extend([slabs] if slabs is not None else [])
        return slabs

    monkeypatch.setattr(move, "turned_slabs", turned)
    monkeypatch.setattr(move, "transposed_ns", lambda *given: np.inf)
    return found


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_every_element_is_where_it_belongs(name, kind, chip, always):
    shape, order = CASES[name]
    x = numbers(shape, kind)
    (got,) = execute_in_both_orders(build(moved(name), x), [x], chip=chip)
    assert always, "turned by slabs"
    assert got.tobytes() == np.ascontiguousarray(x.transpose(order)).tobytes()


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_any_shape(seed, always):
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 7, rng.integers(3, 7)))
    order = tuple(int(d) for d in rng.permutation(len(shape)))
    x = rng.standard_normal(shape).astype(np.float32)
    (got,) = execute_in_both_orders(build(lambda b, x: b.transpose(x, order), x), [x])
    assert got.tobytes() == np.ascontiguousarray(x.transpose(order)).tobytes()


@pytest.mark.parametrize(
    ("shape", "order"), [((64, 8, 7, 8, 7, 8), (1, 3, 5, 2, 4, 0)), ((512, 512, 3, 3), (2, 3, 1, 0))]
)
def test_it_is_chosen_where_it_is_much_sooner(shape, order, monkeypatch):
    """Less than half of what rows that lie in partitions take."""
    chip, graph = chips.get("trn1"), build(lambda b, x: b.transpose(x, order), np.zeros(shape, ml_dtypes.bfloat16))
    sooner = time_program(compile(graph, chip, {"precision": "fp32"}), chip).total
    monkeypatch.setattr(move, "turned_slabs", lambda *given: None)
    assert 2 * sooner < time_program(compile(graph, chip, {"precision": "fp32"}), chip).total
