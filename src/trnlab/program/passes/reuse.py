# SPDX-License-Identifier: Apache-2.0
"""Reuse: what was computed before from the same operands is not computed again.

A kernel negates the row maximum in its inner loop, or transposes a tile in every iteration that needs it. Loops are
unrolled in a recording, so that moving such work out of a loop is the same as finding it done already. An instruction
counts as done when one with the same attributes has read the same elements, none of which was written since, and its
whole result is still there. Only results in SBUF are kept for longer: what lies in PSUM is found again as its copy.
As in moving invariants out of loops, a result is kept while the instruction of the source that made it makes no
other: of `for i: for j: f(i)` one f(i) is left for each i, but all of `for i: for j: f(j)`, unless `reuse_out_of` is
"all".
Results of transfers are left to `loads`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab import isa
from trnlab.isa.base import Memory
from trnlab.isa.collectives.meeting import Meeting
from trnlab.program.passes.draft import (
    ATTR,
    COVERS,
    OFFSET,
    OPCODE,
    OWNER,
    PATTERN,
    READS,
    ROLE,
    START,
    WRITES,
    Draft,
)

_ENGINE, _LINE = 1, 5  # columns of `Draft.rows`
_LONGEST = 4096  # bytes of a partition: larger results are not kept for a later reader


def reuse_results(draft: Draft) -> None:
    """Bind readers to earlier results that are the same, and delete what nobody reads any more."""
    if draft.b.prints:
        return
    uses = np.bincount(draft.owner, draft.access & WRITES != 0, len(draft.buffers))
    single = {n for n in draft.movable if uses[n] == 1}
    same = _same_results(draft, single)
    if not same:
        return
    names = np.arange(len(draft.buffers))
    names[list(same)] = list(same.values())
    reads = draft.access & READS != 0
    draft.references[reads, OWNER] = names[draft.owner[reads]]
    _delete_unread(draft, {*same}, single)


def _same_results(draft: Draft, single: set[int]) -> dict[int, int]:
    """Tiles in SBUF that hold what an earlier one holds."""
    value: dict[int, int] = {}  # of tiles that are written once: an earlier one of the same value
    known: dict[Any, tuple[int, int, Any]] = {}  # what computed a value: when, its tile, where in the source
    written: dict[int, int] = {}  # when a buffer was last written
    kept: dict[int, int] = {}
    latest: dict[Any, int] = {}  # of each instruction of the source: which of its executions was not a repetition
    outer = draft.policy.reuse_out_of == "all"
    here = _Source(draft)
    repeats = {code: _repeats(instr) for code, instr in isa.BY_OPCODE.items()}
    begins, references, access = draft.first_list, draft.references.tolist(), draft.access.tolist()
    for i, row in enumerate(draft.rows.tolist()):
        operands = range(begins[i], begins[i + 1])
        results = [k for k in operands if access[k] & WRITES]
        if draft.deleted[i]:
            continue
        dst = references[results[0]] if len(results) == 1 else None
        if (
            dst is not None
            and repeats[row[OPCODE]]
            and access[results[0]] == WRITES | COVERS
            and dst[OWNER] in single
        ):
            sources = [references[k] for k in operands if k != results[0]]
            key = _key(draft, row, dst, sources, value)
            source = here(i, row[_LINE], row[OPCODE], dst[PATTERN])
            when, tile, maker = known.get(key, (-1, -1, source))
            there = when >= 0 and (outer or latest[maker] == when)
            if there and all(written.get(value.get(s[OWNER], s[OWNER]), -1) <= when for s in sources):
                value[dst[OWNER]] = tile
                if draft.buffers[tile].memory is Memory.SBUF and draft.buffers[tile].nbytes <= _LONGEST:
                    kept[dst[OWNER]] = tile
            else:
                known[key] = i, dst[OWNER], source
                latest[source] = i
        for k in results:
            written[references[k][OWNER]] = i
    return kept


class _Source:
    """Which instruction of the source each instruction is an execution of: what is unrolled while recording, in an
    iteration of a loop of the compiler, counts as written out.
    """

    def __init__(self, draft: Draft) -> None:
        spans = draft.b.spans
        self.span = np.zeros(len(draft), np.int32) if spans is None else spans.of_instructions(len(draft))
        self.count: dict[Any, int] = {}

    def __call__(self, i: int, *what: int) -> Any:
        key = (int(self.span[i]), *what)
        self.count[key] = turn = self.count.get(key, -1) + 1
        return (*what, turn)


def _repeats(instr: isa.base.Instruction) -> bool:
    """Whether an instruction gives the same result each time: no transfer, register, state, or random numbers."""
    control = isinstance(instr, Meeting) or any(kind.startswith("sequencer") for kind in instr.cost_kinds)
    state = any(spec.state for spec in instr.operands) or "rng" in instr.name
    return not (instr.is_dma or control or state)


def _key(draft: Draft, row: list[int], dst: list[int], sources: list[list[int]], value: dict[int, int]) -> Any:
    """What decides the result of an instruction."""
    place = draft.buffers[dst[OWNER]]
    shape = (place.memory, place.dtype, place.nbytes, place.first_partition, dst[PATTERN])
    given = tuple((s[ROLE], s[PATTERN], value.get(s[OWNER], s[OWNER]), s[START], s[OFFSET]) for s in sources)
    return row[OPCODE], row[_ENGINE], row[ATTR], shape, given


def _delete_unread(draft: Draft, unread: set[int], single: set[int]) -> None:
    """Delete the instructions that made these tiles, and those whose results only they read."""
    of, begins = draft.of_list, draft.first_list
    owner, access = draft.owner.tolist(), draft.access.tolist()
    readers: dict[int, int] = {}
    maker: dict[int, int] = {}
    for k, tile in enumerate(owner):
        if draft.deleted[of[k]]:
            continue
        if access[k] & READS:
            readers[tile] = readers.get(tile, 0) + 1
        if access[k] & WRITES:
            maker[tile] = of[k]
    waiting = list(unread)
    while waiting:
        tile = waiting.pop()
        i = maker.get(tile, -1)
        if i < 0 or draft.deleted[i] or readers.get(tile, 0):
            continue
        draft.deleted[i] = True
        for k in range(begins[i], begins[i + 1]):
            if access[k] & READS:
                readers[owner[k]] -= 1
                if readers[owner[k]] == 0 and owner[k] in single:
                    waiting.append(owner[k])
