# SPDX-License-Identifier: Apache-2.0
"""A rule of selection, what it declares, and how one is found for an op."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from trnlab.compiler.analysis.ranges import Ranges
from trnlab.graph.ir import Op, Value
from trnlab.numerics.dtypes import ALL, DType, bool_, int8, int16, int32, uint8, uint16, uint32

Formats = frozenset[DType]
Condition = Callable[[Op, Ranges], bool]

FLOATS: Formats = frozenset(d for d in ALL if d.is_float)
WORDS: Formats = frozenset({int32, uint32})
SHORT: Formats = frozenset({int16, uint16, int8, uint8})
INTEGERS: Formats = WORDS | SHORT
BOOLS: Formats = frozenset({bool_})
EVERY: Formats = FLOATS | INTEGERS | BOOLS


@dataclass(frozen=True, slots=True, eq=False)
class SelectionRule:
    """Instructions for one op, which mean what the op means for everything that the rule declares."""

    # records them, given an `Emitter`; None where a kernel computes the op, or where nothing is computed
    emit: Callable[[Any, Op], None] | None
    formats: Formats  # of the operands that hold data (see `data_of`)
    results: Formats = EVERY  # of the result, where the op does not give it
    when: Condition | None = None  # what else must hold of the op and of its operands' ranges

    def covers(self, op: Op, known: Ranges) -> bool:
        """Whether the op lies within what is declared."""
        data, result = data_of(op).dtype, op.result.dtype
        declared = data in self.formats and result in self.results
        return declared and (self.when is None or self.when(op, known))


def data_of(op: Op) -> Value:
    """The operand whose format decides."""
    if op.name == "scatter":
        return op.operands[2]
    return op.operands[1] if op.name == "select" else op.operands[0]


def first_that_covers(rules: Iterable[SelectionRule], op: Op, known: Ranges) -> SelectionRule | None:
    """The first rule, in order, that declares the op."""
    return next((rule for rule in rules if rule.covers(op, known)), None)
