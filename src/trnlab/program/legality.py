# SPDX-License-Identifier: Apache-2.0
"""Instructions that a chip does not refuse, remembered for all routines of the process.

A routine asks once for each form of an instruction. Routines have most of their forms in common: the loops of a model
do the same to tiles of the same few shapes, and the compiler tries a loop out before it records it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.isa.base import Work
from trnlab.program.access import Reference

Form = tuple[object, ...]  # of an instruction, with all that the rules look at
Verdict = tuple[Work, dict[str, Any]]  # its work, and its attributes with those that its operands imply
MOST = 1 << 15  # forms of a chip; about 20 MB
_PLAIN = frozenset((int, float, bool, str, type(None)))


@lru_cache(maxsize=16)
def verdicts(chip: Chip) -> dict[Form, Verdict]:
    """What has been found about the instructions of a chip with these very figures."""
    return {}


def exact(form: Form, values: Iterable[Any]) -> Form | None:
    """A key for a form whose arguments have these values: 1, 1.0 and True are equal and not the same.

    None where a value may hide such a difference within itself.
    """
    kinds = tuple([Reference if isinstance(value, Reference) else value.__class__ for value in values])
    return (form, kinds) if _PLAIN.issuperset(kind for kind in kinds if kind is not Reference) else None


def remember(known: dict[Form, Verdict], key: Form, verdict: Verdict) -> None:
    """Keep a verdict; at the most there are `MOST`."""
    if len(known) >= MOST:
        known.clear()
    known[key] = verdict
