# SPDX-License-Identifier: Apache-2.0
"""What compiling will take is told from a graph's size, and from what the programs of the cache took."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnlab import chips, documents
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph
from trnlab.numerics.dtypes import float32
from trnlab.runtime import precompile
from trnlab.runtime.cache import compile_cost
from trnlab.runtime.cache import report as cache_report
from trnlab.runtime.cache.compile_cost import GraphSize, Predicted, RequestedProgram, predicted, size_of, wall
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.device import compile_graph
from trnlab.runtime.session import Session

SIZE = GraphSize(1000, 100)


def layers(count: int, width: int = 8) -> Graph:
    b = GraphBuilder("layers")
    x = b.input("x", (4, width), float32)
    for _ in range(count):
        x = b.multiply(b.tanh(x), 2.0)
    b.output(x, "y")
    return b.build()


def kept(seconds: float, size: GraphSize = SIZE) -> dict[str, object]:
    return {"ops": size.ops, "distinct_ops": size.distinct_ops, "compile_seconds": seconds}


def test_layers_that_are_alike_are_distinct_once() -> None:
    one, nine = size_of(layers(1)), size_of(layers(9))
    assert nine.ops > 2 * one.ops
    assert nine.distinct_ops == one.distinct_ops


def test_an_empty_cache_gives_the_measured_figures_and_their_range() -> None:
    found = predicted(SIZE, [])
    assert found.seconds == SIZE.seconds > 0
    assert (found.low, found.high) == (SIZE.seconds * compile_cost.LEAST, SIZE.seconds * compile_cost.MOST)
    assert "another machine" in found.basis
    assert predicted(SIZE, [kept(1.0)] * (compile_cost.ENOUGH - 1)).seconds == SIZE.seconds


def test_programs_of_the_cache_say_how_fast_the_machine_is() -> None:
    """Those of other sizes by their ratio to the figures; a tenth of them lies outside on each side."""
    small = GraphSize(10, 10)
    ratios = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    others = [{"compile_seconds": 0.0}, {"ops": 3, "compile_seconds": 1.0}]  # a kernel, and one of another version
    found = predicted(SIZE, [*others, *(kept(r * small.seconds, small) for r in ratios)])
    expected = [2.0 * SIZE.seconds, 6.0 * SIZE.seconds, 10.0 * SIZE.seconds]
    assert [found.low, found.seconds, found.high] == pytest.approx(expected)
    assert "11 programs of the cache" in found.basis


def test_processes_share_what_is_missing() -> None:
    def program(seconds: float, there: bool = False) -> RequestedProgram:
        return RequestedProgram("k", "n", 1, 1, there, Predicted(seconds, seconds / 2, seconds * 2, "b"))

    programs = [program(4), program(3), program(2), program(1), program(9, True)]
    assert [wall(programs, jobs).seconds for jobs in (1, 2, 8)] == pytest.approx([10, 5, 4])
    assert wall(programs, 2).high == pytest.approx(10)
    assert wall([program(9, True)], 1).seconds == 0


def test_what_the_cache_has_takes_nothing_and_is_explained(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    session = Session(chips.target("trn1.2xlarge"), cache=cache)
    executable = compile_graph(layers(3), session)
    assert executable.metadata["ops"] == size_of(layers(3)).ops
    programs = precompile.distinct([layers(3), layers(5)], session)
    missing, there = compile_cost.ahead(programs, cache)
    assert (there.key, there.there, missing.there) == (executable.key, True, False)
    assert "in the cache" in there.row()
    assert missing.ops > there.ops
    assert "predicted" not in documents.text(cache_report.listing(cache))
    text = documents.text(cache_report.explain(cache, executable.key))
    assert f"{there.ops} operations, {there.distinct_ops} distinct: " in text
    assert "predicted, by the figures of another machine" in text
