# SPDX-License-Identifier: Apache-2.0
"""Choices over a whole program between lowerings that compete: all are right, and time decides.

Each is an option of `compile`, whose first value is the rule. `runtime.searched` tries the others where it is asked
to.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.stacks import (
    APART,
    ESTIMATED,
    FOLLOWED,
    INTERLEAVED,
    JOINED,
    KERNEL,
    LOOPS,
    OPERATORS,
    RECORDED,
    SCHEDULED,
    SOFTMAX,
    SPREAD,
    TURNED,
)


@dataclass(frozen=True)
class LoweringChoice:
    """An option of `compile`, what it decides, and its values, the rule's first."""

    name: str
    about: str
    values: tuple[str, ...]


CHOICES = (
    LoweringChoice("residence", "tensors stay in SBUF between calls, or go through HBM", ("stay", "leave")),
    LoweringChoice("sbuf", "calls lie one behind the other in SBUF, or take turns at its halves", ("ring", "halves")),
    LoweringChoice("few_rows", "products of few rows turn nothing, or their rows on the PE array", (SPREAD, TURNED)),
    LoweringChoice(
        "siblings", "products of the same rows are one call where that pays, or one each", (JOINED, APART)
    ),
    LoweringChoice(
        "rows",
        "loops over whole rows are computed with the product before them, or by calls of their own",
        (JOINED, APART),
    ),
    LoweringChoice(
        "interleaving",
        "attention and products that nobody waits for are interleaved in one call where that pays, or one each",
        (INTERLEAVED, APART),
    ),
    LoweringChoice(
        "order",
        "instructions of a call in an order that a list scheduler finds, and attention with as much of SBUF as it "
        "works well with; or as recorded, with what there is",
        (SCHEDULED, RECORDED),
    ),
    LoweringChoice("blockings", "blockings of products are gone through, or estimated", (FOLLOWED, ESTIMATED)),
    LoweringChoice(
        "convolutions", "convolutions compute what follows them, or loops over rows do", ("with", "without")
    ),
    LoweringChoice(
        "attention",
        "a kernel of attention, or a loop that keeps the scores of some rows on chip",
        (KERNEL, SOFTMAX),
    ),
    LoweringChoice(
        "fusion", "one loop computes all that it can, or operators with their neighbours", (LOOPS, OPERATORS)
    ),
)
RULES = {choice.name: choice.values[0] for choice in CHOICES}
# What --optimize 0 compiles: nothing is placed between calls.
QUICK = {"residence": "leave", "sbuf": "halves", "interleaving": APART, "order": RECORDED}
