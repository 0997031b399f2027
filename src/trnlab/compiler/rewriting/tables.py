# SPDX-License-Identifier: Apache-2.0
"""Updates of a table in place that touch the rows of a batch and no others.

The gradient of an embedding is a sum of rows by index into zeros. Where an update leaves each row as it is whose
gradient is zero, bit for bit, it is computed of the rows that the indices name:

    f(table, scatter(0, ids, update))
    put_rows(table, ids, f(take_rows(table, ids), sum_rows(update, ids)))

`_Untouched` proves that f(x, +0) is x for every x: minus zero, infinities and NaN too. So the table must go through
nothing but additions of a zero of a known sign that adds nothing: x + (-0) and x - (+0) are x, but -0 + (+0) is +0.
A zero keeps a known sign through factors that are finite, not zero and of one sign, as a learning rate within its
bounds is. Weight decay and momentum move rows without a gradient, and adaptive rates may (a state of NaN does): they
are left as they are, and so is a table that somebody reads once it is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from math import prod

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.compiler.rules.conditions import SMALL_TABLE
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.intervals import EXACT
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import is_zero, rewrite, splat
from trnlab.numerics.dtypes import bfloat16, float16, float32, int32

WORTH = 1024
"""Elements of a table for each index from which on rows are updated one by one. An index then costs some 50 ns more,
of transfers of 128 rows that wait for each other; the table costs four transfers of each element otherwise."""
_EXACT_IN = {float32: frozenset({float32}), bfloat16: frozenset({bfloat16, float32})}
_EXACT_IN[float16] = frozenset({float16, float32})


def update_rows(graph: Graph) -> None:
    """Compute updates of tables for the rows that change, where all others stay as they are."""
    known, users = Ranges(graph), graph.users()
    found: dict[Op, Callable[[GraphBuilder], Value]] = {}
    for out, source in graph.aliases.items():
        new, table = graph.outputs[out], graph.inputs[source]
        if new.op is None or len(table.shape) != 2 or not table.dtype.is_float or new.type != table.type:
            continue
        update = _added_to(new.op, table) or _updated_by(new, table, known, users, graph.wanted())
        if update is not None and _is_overwritten_last(graph, new, table):
            found[new.op] = update
    if found:
        rules = {op.name: lambda op, b: found[op](b) if op in found else None for op in found}
        rewrite(graph, rules)
        remove_dead_ops(graph)


def _is_overwritten_last(graph: Graph, new: Value, table: Value) -> bool:
    """Whether nobody reads an input that `new` overwrites once that is made. Otherwise the table would be copied."""
    after = {new}
    for op in graph.ops:
        if not after.isdisjoint(op.operands):
            after.update(op.results)
    readers = {v for op in graph.ops if table in op.operands for v in op.results} - {new}
    return table not in graph.outputs and after.isdisjoint(readers)


class _Sums:
    """A sum of rows by index of a table [V, C], which is worth making of its rows alone."""

    def __init__(self, op: Op) -> None:
        self.op, (self.into, ids, _) = op, op.operands
        self.count = ids.type.size

    @property
    def fits(self) -> bool:
        """Whether the indices pick rows, few beside the table, of floats."""
        op, (rows, *rest) = self.op, self.into.shape
        attrs, rank = op.attrs, len(op.operands[2].shape)
        by_row = attrs["scatter_dims_to_operand_dims"] == attrs["inserted_window_dims"] == (0,)
        last = attrs["update_window_dims"] == (rank - 1,) and not attrs["input_batching_dims"]
        few = SMALL_TABLE < rows < EXACT and self.into.type.size >= WORTH * self.count > 0
        whole = op.operands[2].type.size == self.count * prod(rest)
        return by_row and last and whole and few and attrs["kind"] == "add" and op.operands[2].dtype.is_float

    def ids(self, b: GraphBuilder) -> Value:
        """The indices, [T]."""
        return b.convert(b.reshape(self.op.operands[1], (self.count,)), int32)

    def old(self, table: Value, b: GraphBuilder) -> Value:
        """The rows [T, C] of the table; any row for an index beyond it."""
        return b.take_rows(table, b.clamp(0, self.ids(b), self.into.shape[0] - 1))

    def rows(self, b: GraphBuilder) -> Value:
        """The sums [T, C], in float32."""
        update = b.reshape(self.op.operands[2], (self.count, *self.into.shape[1:]))
        return b.sum_rows(b.convert(update, float32), self.ids(b), self.into.shape[0])


def _added_to(op: Op, table: Value) -> Callable[[GraphBuilder], Value] | None:
    """The update that adds rows to the table itself, which leaves the others alone by definition."""
    if op.name != "scatter" or op.operands[0] is not table or not _Sums(op).fits:
        return None
    sums = _Sums(op)

    def update(b: GraphBuilder) -> Value:
        old = b.convert(sums.old(table, b), float32)
        return b.put_rows(table, sums.ids(b), b.convert(b.add(old, sums.rows(b)), table.dtype))

    return update


def _updated_by(
    new: Value, table: Value, known: Ranges, users: dict[Value, list[Op]], wanted: set[Value]
) -> Callable[[GraphBuilder], Value] | None:
    """The update by a function of the table and a sum of rows, where the function leaves rows without a sum alone."""
    region = _Untouched(table, known)
    if region.of(new) is not _Row.TABLE or region.sums is None:
        return None
    inside, sums = region.ops, region.sums
    made = {v for op in (*inside, sums.op) for v in op.results} - {new}
    if not made.isdisjoint(wanted) or any(user not in inside for v in made for user in users.get(v, ())):
        return None

    def update(b: GraphBuilder) -> Value:
        ids = sums.ids(b)
        rows = {table: sums.old(table, b), sums.op.result: b.convert(sums.rows(b), sums.op.result.dtype)}
        return b.put_rows(table, ids, _of_rows(new, rows, inside, sums.count, b))

    return update


def _of_rows(value: Value, rows: dict[Value, Value], inside: set[Op], count: int, b: GraphBuilder) -> Value:
    """A value of the update for the rows alone. rows: what is made of them already, the table and the sums."""
    if value in rows:
        return rows[value]
    op = value.op
    if op in inside:
        assert op is not None
        operands = [_of_rows(v, rows, inside, count, b) for v in op.operands]
        rows[value] = b.append(op.name, operands, op.attrs).results[0]
    else:
        assert op is not None, value
        number = op.operands[0] if op.operands else b.constant(op.attrs["value"], value.dtype)
        rows[value] = b.broadcast_in_dim(number, (count, *value.shape[1:]), ())
    return rows[value]


def _is_number(value: Value) -> bool:
    """Whether a value is one number throughout: a constant, or spread from no dimensions."""
    op = value.op
    if op is None or op.name not in ("constant", "broadcast_in_dim"):
        return False
    return splat(value) is not None if op.name == "constant" else not op.operands[0].shape


class _Row(Enum):
    """What an element of a row without a sum is: that of the table, a zero, or a number that a zero keeps its sign
    with."""

    TABLE = "table"
    PLUS_ZERO = "+0"
    MINUS_ZERO = "-0"
    POSITIVE = "positive"
    NEGATIVE = "negative"


_ZEROS = {1: _Row.PLUS_ZERO, -1: _Row.MINUS_ZERO}
_SIGNS = {_Row.PLUS_ZERO: 1, _Row.MINUS_ZERO: -1, _Row.POSITIVE: 1, _Row.NEGATIVE: -1}


class _Untouched:
    """What elements of an update are in rows whose sum is plus zero. ops: those on the way; sums: the one of rows."""

    def __init__(self, table: Value, known: Ranges) -> None:
        self.table, self._known = table, known
        self.ops = set[Op]()
        self.sums: _Sums | None = None

    def of(self, value: Value) -> _Row | None:
        """What the elements of a value in the shape of the table are; None where that is not known."""
        op = value.op
        if value is self.table:
            return _Row.TABLE
        if op is None or value.shape != self.table.shape:
            return None
        if _is_number(value):
            return self._of_number(value)
        if op.name == "scatter":
            return self._of_sums(op)
        if OPS[op.name].kind != ELEMENTWISE:
            return None
        self.ops.add(op)
        given = [self.of(v) for v in op.operands]
        rule = _RULES.get(op.name)
        return None if rule is None or None in given else rule(self, op, given)

    def _of_number(self, value: Value) -> _Row | None:
        x = self._known.of(value)
        if x.infinite or x.nan or not x.is_never_zero:
            return None
        return _Row.POSITIVE if x.low > 0 else _Row.NEGATIVE

    def _of_sums(self, op: Op) -> _Row | None:
        if self.sums is not None and self.sums.op is not op:
            return None
        self.sums = _Sums(op)
        return _Row.PLUS_ZERO if is_zero(self.sums.into) and self.sums.fits else None

    def cast(self, op: Op, given: list[_Row | None]) -> _Row | None:
        """A cast: of the table, to a format that holds all of its numbers."""
        if given[0] is _Row.TABLE:
            return given[0] if op.result.dtype in _EXACT_IN.get(self.table.dtype, ()) else None
        return given[0] if given[0] in _ZEROS.values() else None

    def product(self, op: Op, given: list[_Row | None]) -> _Row | None:
        """A zero times or by what keeps it one: of a quotient, the divisor is none."""
        if op.name == "divide":
            zeros = given[0] in _ZEROS.values() and given[1] not in _ZEROS.values()
        else:
            zeros = any(x in _ZEROS.values() for x in given)
        signs = [_SIGNS[x] for x in given if x in _SIGNS]
        return _ZEROS[signs[0] * signs[1]] if zeros and len(signs) == 2 else None

    def negative(self, op: Op, given: list[_Row | None]) -> _Row | None:
        """Minus a zero."""
        (x,) = given
        return _ZEROS[-_SIGNS[x]] if x is not None and x in _ZEROS.values() else None

    def total(self, op: Op, given: list[_Row | None]) -> _Row | None:
        """A sum of zeros, or of the table and a zero that adds nothing."""
        nothing = _Row.MINUS_ZERO
        if op.name == "subtract":
            given = [given[0], self.negative(op, given[1:])]
        if given in ([_Row.TABLE, nothing], [nothing, _Row.TABLE]):
            return _Row.TABLE
        if any(z not in _ZEROS.values() for z in given):
            return None
        return nothing if given == [nothing, nothing] else _Row.PLUS_ZERO


_RULES: dict[str, Callable[[_Untouched, Op, list[_Row | None]], _Row | None]] = {
    "convert": _Untouched.cast,
    "multiply": _Untouched.product,
    "divide": _Untouched.product,
    "negate": _Untouched.negative,
    "add": _Untouched.total,
    "subtract": _Untouched.total,
}
