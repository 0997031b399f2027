# SPDX-License-Identifier: Apache-2.0
"""Every rule of selection, for every format that it declares, records legal instructions on every chip.

The rule is forced, in all forms in which its operands may come: whole tiles, values per row and per column, numbers.
An
instruction that a format makes illegal fails here, and not in a user's step.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from trnlab import chips
from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.analysis.selection import EVERY
from trnlab.compiler.pipeline import Assembly
from trnlab.compiler.rules import RULES, select
from trnlab.errors import GraphError
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.intervals import Range, whole
from trnlab.graph.ops import COMPARISONS, OPS, REDUCTIONS
from trnlab.numerics.dtypes import bool_, int32

ROWS, COLS = 5, 7
GELU = {"approximate": "tanh"}


class Small(Ranges):
    """As if all integers were 0 or 1, and floats had no fractions: whatever a rule asks of ranges, they have it."""

    def of(self, value):
        return replace(super().of(value), whole=True) if value.dtype.is_float else whole(Range(0, 1))


def _forms(b, kind):
    """x and y in full, a row value, a column value, a number, each seen as a whole tensor."""
    x, y = (b.input(n, (ROWS, COLS), kind) for n in "xy")
    row, col = b.input("row", (ROWS, 1), kind), b.input("col", (COLS,), kind)
    one = b.constant(True if kind is bool_ else 1, kind)
    return x, y, row, *(b.broadcast_to(v, (ROWS, COLS)) for v in (row, col, one))


def _operands(b, name, kind):
    """The operands of one op in all forms."""
    x, y, narrow, row, col, one = _forms(b, kind)
    count = len(OPS[name].operands)
    if name == "select":
        pred, p = b.input("p", (ROWS, COLS), bool_), b.input("q", (ROWS, 1), bool_)
        wide = [(pred, u, v) for u, v in ((x, y), (x, row), (row, x), (x, one), (one, x), (row, one), (col, x))]
        return [*wide, (b.broadcast_to(p, x.shape), x, y), (p, narrow, narrow)]
    if count == 1:
        return [(x,), (narrow,)]
    if name.startswith("shift"):
        return [(x, one), (narrow, b.constant(1, kind, narrow.shape)), (x, y), (one, x), (row, x), (x, row)]
    if count == 2:
        return [(x, y), (x, row), (row, x), (x, col), (col, row), (x, one), (one, x), (x, x), (narrow, narrow)]
    return [(one, x, one), (row, x, row), (col, x, one)]


def _attributes(name, rule):
    if name == "compare":
        return [{"comparison_direction": d} for d in COMPARISONS]
    if name == "convert":
        return [{"dtype": d} for d in sorted(rule.results, key=lambda d: d.code)]
    if name == "reduce":
        return [{"dimensions": dims, "kind": kind} for dims in ((1,), (0,)) for kind in REDUCTIONS]
    return [{k: GELU.get(k) for k in OPS[name].attrs}] if OPS[name].attrs else [{}]


def graph_of(name, rule, kind):
    """All forms of the op that lie within what the rule declares, as outputs of one graph."""
    b, known = GraphBuilder(name), Small()
    forms = [(_forms(b, kind)[0],)] if name == "reduce" else _operands(b, name, kind)
    found = []
    for attrs in _attributes(name, rule):
        for operands in forms:
            try:
                op = b.append(name, operands, attrs)
            except GraphError:  # the op does not exist in this format
                continue
            if rule.covers(op, known):
                b.output(op.result)
                found.append(op)
            else:
                b.graph.ops.remove(op)
    return b.graph, found


CASES = [
    (name, i, kind)
    for name, rules in RULES.items()
    for i, rule in enumerate(rules)
    if rule.emit is not None and name not in ("gather", "trn.rng_uniform")
    for kind in sorted(rule.formats, key=lambda d: d.code)
]


@pytest.mark.parametrize("chip", chips.NAMES)
@pytest.mark.parametrize("name", sorted({name for name, _, _ in CASES}))
def test_rules_record_legal_instructions(name, chip):
    for _, i, kind in (case for case in CASES if case[0] == name):
        rule, known = RULES[name][i], Small()
        graph, ops = graph_of(name, rule, kind)
        rules = {op: rule if op in ops else select(op, known) for op in graph.ops}
        if ops:
            assert Assembly(graph, chips.get(chip), rules).program().num_instructions


def test_moves_take_every_format():
    b = GraphBuilder("moves")
    for kind in EVERY:
        x = b.input(kind.name, (2, 3), kind)
        assert all(select(op, Ranges()) is not None for op in (b.transpose(x, (1, 0)).op, b.reshape(x, (6,)).op))
    assert int32 in EVERY
