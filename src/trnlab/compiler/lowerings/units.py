# SPDX-License-Identifier: Apache-2.0
"""Units: groups that are recorded into one routine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trnlab.compiler.fusing.packing import are_siblings
from trnlab.compiler.lowerings.context import Lowering, SbufTurns
from trnlab.compiler.lowerings.dot import lower_siblings
from trnlab.compiler.lowerings.rows import lower_rows
from trnlab.program import Builder


def record(b: Builder, lowerings: Sequence[Lowering], form: Callable[[Lowering], None]) -> None:
    """The groups of a unit: products side by side, loops one after the other."""
    with SbufTurns(b) as turns:
        b.location = lowerings[0].group.ops[0].loc
        if len(lowerings) == 1:
            form(lowerings[0])
        elif are_siblings([low.group for low in lowerings]):
            lower_siblings(lowerings)
        else:
            for low in lowerings:
                b.location = low.group.ops[0].loc
                lower_rows(low, turns)
