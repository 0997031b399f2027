# SPDX-License-Identifier: Apache-2.0
"""Calls, branches and loops.

A branch whose index is known is the only one that is read. Otherwise all are, and their results are selected: nothing
here has side effects. A short loop whose condition is known goes round while it is read; a longer one whose rounds
are alike is an op of the graph, see `rolled`. One that only data can end, or that would make the graph too long,
runs round by round, see `program`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnlab.frontends.stablehlo import mlir
from trnlab.frontends.stablehlo.entries import TracedValue
from trnlab.frontends.stablehlo.registry import LOWERINGS, OpSite, lowers
from trnlab.frontends.stablehlo.rolled import NotRolledError, roll
from trnlab.numerics.dtypes import bool_, int32
from trnlab.runtime.notices import say

_LONG = "TRN238"
SHORT = 1000  # ops of a loop that is unrolled although its rounds are alike


@lowers("func.call", "call")
def call(site: OpSite) -> list[TracedValue]:
    """Another function of the module, here."""
    found: list[TracedValue] = site.t.call(site.t.functions[mlir.text(site.raw, "callee")], site.operands)
    return found


@lowers("stablehlo.composite")
def composite(site: OpSite) -> list[TracedValue]:
    """What is registered under its name, if that is one of ours; of others, what they stand for."""
    name = mlir.text(site.raw, "name")
    if name.startswith("trnlab."):
        return [LOWERINGS[name](site)]
    found: list[TracedValue] = site.t.call(site.t.functions[mlir.text(site.raw, "decomposition")], site.operands)
    return found


@lowers("stablehlo.if")
def if_(site: OpSite) -> list[TracedValue]:
    """The first region where the condition holds."""
    (condition,) = site.operands
    if condition.known is not None:
        return site.region(0 if bool(condition.known) else 1)
    return _selected(site, [condition], [0, 1])


@lowers("stablehlo.case")
def case(site: OpSite) -> list[TracedValue]:
    """The region of this number; the last where there is none."""
    (index,) = site.operands
    last = len(site.raw.regions) - 1
    if index.known is not None:
        number = int(index.known)
        return site.region(number if 0 <= number <= last else last)
    numbers = [site.t.number(n, int32) for n in range(last)]
    return _selected(
        site, [site.op("compare", index, n, comparison_direction="EQ") for n in numbers], list(range(last + 1))
    )


def _selected(site: OpSite, conditions: Sequence[TracedValue], regions: Sequence[int]) -> list[TracedValue]:
    """The results of the first region whose condition holds, else those of the last."""
    none = site.t.number(True, bool_)
    for condition in conditions:
        none = site.op("and", none, site.op("not", condition))
    found = []
    for number, condition in zip(regions, [*conditions, none]):
        site.t.guards.append(condition)
        found.append(site.region(number))
        site.t.guards.pop()
    results = found[-1]
    for condition, branch in reversed(list(zip(conditions, found))):
        results = [_pick(site, condition, x, y) for x, y in zip(branch, results)]
    return results


def _pick(site: OpSite, condition: TracedValue, x: TracedValue, y: TracedValue) -> TracedValue:
    if x is y:
        return x
    if x.error is not None or y.error is not None:
        return x if x.error is not None else y
    return site.op("select", site.t.broadcast(condition, x.shape), x, y)


@lowers("stablehlo.while")
def while_(site: OpSite) -> list[TracedValue]:
    """Round and round as long as that is known, and short; else one op; the rest round by round when it runs."""
    t = site.t
    found = _unrolled(site, min(SHORT, t.most_ops)) or roll(site) or _unrolled(site, t.most_ops)
    if found is not None:
        return found
    where = f" at {t.place[0]}" if t.place[0] else ""
    say(
        f"{_LONG}: the loop{where} would be more than {t.most_ops:,} ops if unrolled, and its rounds are not alike: "
        "it runs round by round, and the host asks its condition each time"
    )
    return _run_by_host(site, site.operands)


def _unrolled(site: OpSite, most: int) -> list[TracedValue] | None:
    """All rounds one after the other; None where that would be more than so many ops. What only data can end runs
    by the host from there on."""
    t, state = site.t, list(site.operands)
    begin, written, cut = t.segment.mark(), len(t.b.graph.ops), False
    while True:
        before, segment = t.segment.mark(), t.segment
        (more,) = site.region(0, *state)
        if more.known is None:
            t.segment.back_to(before)
            return _run_by_host(site, state)
        if not bool(more.known):
            return state
        state = site.region(1, *state)
        cut = cut or t.segment is not segment  # a loop within runs by the host: there is no way back
        if not cut and len(t.b.graph.ops) - written > most:
            t.segment.back_to(begin)
            return None


def _run_by_host(site: OpSite, state: Sequence[TracedValue]) -> list[TracedValue]:
    """The loop as programs of their own: its condition, and its body. In a branch that does not count, no round."""
    t = site.t
    if t.in_round:
        raise NotRolledError
    types = [e.type for e in state]
    guard = t.guards[0] if t.guards else None
    for other in t.guards[1:]:
        guard = t.op("and", guard, other)
    condition, body = t.inner("condition"), t.inner("body")
    seen = [condition.argument(kind, f"s{i}") for i, kind in enumerate(types)]
    (more,) = condition.block(site.raw.regions[0].blocks[0], seen, site.around)
    if guard is not None:
        more = condition.op("and", more, guard)
    carried = [body.argument(kind, f"s{i}") for i, kind in enumerate(types)]
    results = body.block(site.raw.regions[1].blocks[0], carried, site.around)
    found: list[TracedValue] = t.loop(condition, body, state, ([more], results))
    return found


def simple_body(site: OpSite, number: int = 0) -> str | None:
    """The one op that a region of two scalars is: its name; "assign" where it returns the second; else None."""
    block = site.raw.regions[number].blocks[0]
    ops, arguments = list(block.operations), list(block.arguments)
    if len(arguments) != 2:
        return None
    returned = list(ops[-1].operands)
    if len(ops) == 1:
        return "assign" if returned == [arguments[1]] else None
    if len(ops) != 2 or returned != list(ops[0].results) or set(ops[0].operands) != set(arguments):
        return None
    name = str(ops[0].operation.name).removeprefix("stablehlo.")
    of_bools = mlir.type_of(arguments[0].type).dtype is bool_
    return {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}.get(name, name) if of_bools else name


def starting(site: OpSite, entry: TracedValue) -> Any:
    """The number that a reduction starts from; None where it is computed."""
    return None if entry.known is None else np.asarray(entry.known).reshape(-1)[0]
