# SPDX-License-Identifier: Apache-2.0
"""Updates of a table whose gradient is a sum of rows by index: only the rows of the batch are touched, where an
update leaves all others as they are bit for bit; and then the time is that of the batch."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import check_graph, execute, integers, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.ir import Graph
from trnlab.numerics.dtypes import bfloat16, float32, int32
from trnlab.sim.timing import time_program

ROWS, COLS, IDS = 6000, 64, 200
RATE = (2.0**-40, 2.0**20)


def descended(b, table, summed, rate):
    """SGD as PyTorch writes it: p + g * -lr."""
    return b.add(table, b.multiply(summed, b.negate(rate)))


UPDATES = {
    "PyTorch's": descended,
    "JAX's": lambda b, p, g, lr: b.subtract(p, b.multiply(lr, g)),
    "a constant rate": lambda b, p, g, lr: b.add(p, b.multiply(g, -0.1)),
    "scaled gradients": lambda b, p, g, lr: b.add(p, b.multiply(b.divide(g, b.multiply(lr, 3.0)), b.negate(lr))),
    "maximized": lambda b, p, g, lr: b.add(p, b.multiply(b.negate(g), lr)),
}
OTHERS = {
    "plus a zero": lambda b, p, g, lr: b.add(p, b.multiply(g, lr)),  # -0 + 0 is 0
    "minus a negative zero": lambda b, p, g, lr: b.subtract(p, b.multiply(g, b.negate(lr))),
    "decay": lambda b, p, g, lr: b.add(p, b.multiply(b.add(g, b.multiply(p, 0.01)), b.negate(lr))),
    "a rate from the gradient": lambda b, p, g, lr: b.subtract(p, b.multiply(g, b.divide(lr, b.sqrt(b.abs(g))))),
    "scaled table": lambda b, p, g, lr: b.subtract(b.multiply(p, lr), b.multiply(g, lr)),
    "through bfloat16": lambda b, p, g, lr: b.subtract(b.convert(b.convert(p, bfloat16), float32), b.multiply(g, lr)),
}


def graph_of(update, *, in_place=True, rate=RATE, dt=float32, rows=ROWS, more=None) -> Graph:
    """Inputs table, ids, updates, rate; the first output is the new table, which is the old one's memory if asked."""
    b = GraphBuilder("update")
    table, ids = b.input("table", (rows, COLS), dt), b.input("ids", (IDS,), int32)
    learnt, lr = b.input("learnt", (IDS, COLS), dt), b.input("rate", (), float32)
    if rate is not None:
        b.graph.bounds[3] = rate
    new = update(b, table, b.scatter_add_rows(ids, learnt, rows), b.convert(lr, dt))
    b.output(new, alias_of=table if in_place else None)
    for value in more(b, table, new) if more is not None else ():
        b.output(value)
    return b.build()


def hostile(rows=ROWS, seed=0) -> np.ndarray:
    """A table with every kind of number, signalling NaN aside, in rows of all fates."""
    x = random(rows, COLS, seed=seed)
    kinds = [-0.0, 0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4e38]
    places = np.random.default_rng(seed).integers(0, x.size, (len(kinds), 3000))
    for number, where in zip(kinds, places):
        x.ravel()[where] = number
    x.view(np.uint32).ravel()[places[0][::2]] = 0xFFC12345  # NaN with a payload
    return x


def inputs(rows=ROWS, high=None, seed=0):
    """Many indices several times, some beyond the table, and updates that are not finite."""
    ids = integers(IDS, high=high or rows, seed=seed)
    ids[::3] = ids[1]
    ids[5:9] = [-1, rows, 2**31 - 1, -(2**31)]
    learnt = random(IDS, COLS, seed=seed + 1)
    learnt[4:40:7, ::5] = np.inf
    learnt[::9, 3] = np.nan
    learnt[::11, 7] = -0.0
    return [hostile(rows, seed), ids, learnt, np.array(0.37, np.float32)]


def names(graph: Graph) -> str:
    program = compile(graph, chips.get("trn1"), {"precision": "fp32"})
    return " ".join(call.label for call in program.calls)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint16 if x.dtype.itemsize == 2 else np.uint32)


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("chip", ["trn1", "trn2"])
def test_rows_alone_are_the_whole_table_bit_for_bit(name, chip):
    """As the program that walks over all rows computes it, since nobody gave it the table's memory."""
    alone, whole = graph_of(UPDATES[name]), graph_of(UPDATES[name], in_place=False)
    assert "put_rows" in names(alone)
    assert "put_rows" not in names(whole)
    (got,), (want,) = (execute(g, [np.array(x) for x in inputs()], chip=chip) for g in (alone, whole))
    np.testing.assert_array_equal(bits(got), bits(want))


def test_rows_without_an_index_keep_every_bit():
    given = inputs()
    before = np.array(given[0])
    (after,) = execute(graph_of(descended), given)
    kept = np.setdiff1d(np.arange(ROWS), given[1])
    np.testing.assert_array_equal(bits(after[kept]), bits(before[kept]))
    assert not np.array_equal(bits(after), bits(before))


@pytest.mark.parametrize("name", OTHERS)
def test_updates_that_move_other_rows_walk_over_all(name):
    """And what they compute is right, a zero's sign too."""
    graph = graph_of(OTHERS[name])
    assert "put_rows" not in names(graph)
    given = inputs()
    given[2] = random(IDS, COLS)
    given[0][~np.isfinite(given[0]) | (np.abs(given[0]) > 10)] = -0.0
    check_graph(graph, given)
    (got,) = execute(graph, [np.array(x) for x in given])
    if name == "plus a zero":
        kept = np.setdiff1d(np.arange(ROWS), given[1])
        assert not np.signbit(got[kept][given[0][kept] == 0]).any()


@pytest.mark.parametrize("rate", [None, (-1.0, 1.0), (0.0, 1.0)])
def test_a_rate_of_unknown_sign_walks_over_all(rate):
    """Infinity times zero is NaN, and a negative rate makes minus zeros plus zeros."""
    assert "put_rows" not in names(graph_of(descended, rate=rate))


def test_tables_in_bfloat16():
    given = inputs()
    given[0], given[2] = (x.astype(bfloat16.numpy) for x in (given[0], given[2]))
    alone, whole = (graph_of(descended, dt=bfloat16, in_place=i) for i in (True, False))
    assert "put_rows" in names(alone)
    (got,), (want,) = (execute(g, [np.array(x) for x in given]) for g in (alone, whole))
    np.testing.assert_array_equal(bits(got), bits(want))


def test_rows_added_to_a_table():
    """A scatter into the table leaves other rows alone by its definition, minus zeros too."""
    b = GraphBuilder("add")
    table, ids = b.input("table", (ROWS, COLS), float32), b.input("ids", (IDS,), int32)
    new = b.scatter_add_rows(ids, b.input("learnt", (IDS, COLS), float32), ROWS, table)
    b.output(new, alias_of=table)
    graph, given = b.build(), inputs()[:3]
    assert "put_rows" in names(graph)
    before = np.array(given[0])
    (want,) = interpret(graph, [np.array(x) for x in given])
    (after,) = execute(graph, given)
    np.testing.assert_allclose(after, want, rtol=1e-5, atol=1e-5)
    kept = np.setdiff1d(np.arange(ROWS), given[1])
    np.testing.assert_array_equal(bits(after[kept]), bits(before[kept]))


def test_who_reads_the_old_table_has_it():
    """Sums of the old table, which the new one does not hang on, come first; where the table is a result as well, or
    something hangs on both, nothing is overwritten before it was read."""
    readers = {
        "before": lambda b, old, new: [b.reduce(old, (1,))],
        "result": lambda b, old, new: [old],
        "both": lambda b, old, new: [b.multiply(old, b.reduce(new, (0, 1), "maximum"))],
    }
    for more in readers.values():
        given = inputs()
        given[0] = random(ROWS, COLS)
        given[2] = random(IDS, COLS)
        check_graph(graph_of(descended, more=more), given)


def test_small_tables_and_gradients_that_others_read_are_walked_over():
    assert "put_rows" not in names(graph_of(descended, rows=1500))

    def clipped(b, p, g, lr):
        norm = b.reduce(b.multiply(g, g), (0, 1))
        return descended(b, p, b.divide(g, b.add(norm, 1.0)), lr)

    assert "put_rows" not in names(graph_of(clipped))


def test_time_hangs_on_the_batch_alone():
    def total(rows):
        chip = chips.get("trn1")
        program = compile(graph_of(descended, rows=rows), chip, {"precision": "fp32"})
        return time_program(program, chip).total

    assert total(1 << 17) == total(1 << 20)
