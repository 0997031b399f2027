# SPDX-License-Identifier: Apache-2.0
"""A recorded kernel while passes change it: rows of instructions, references of operands, what is done to each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from trnlab import isa
from trnlab.isa.base import Memory
from trnlab.policy import SCHEDULED, Policy
from trnlab.program.access import Buffer, forms
from trnlab.program.builder import END, Builder
from trnlab.program.changes import RecordingSize
from trnlab.program.routine import COL

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
READS, WRITES, COVERS = 1, 2, 4  # bits of `Draft.access`
OPCODE, ENGINE, WORK, ATTR, LEFT_OPEN = 0, 1, 3, 4, 6  # columns of `Draft.rows`
ROLE, PATTERN, OWNER, START, OFFSET = range(5)  # columns of `Draft.references`


class BufferColumns(NamedTuple):
    """What is asked of all buffers. form: equal for those of the same memory, format, shape and first partition."""

    memory: Ints
    nbytes: Ints
    address: Ints
    first_partition: Ints
    partitions: Ints
    form: Ints
    movable: Ints


class Draft:
    """What a builder has recorded, in columns.

    rows: per instruction the columns of `program.builder`, the last of which is where its operands end. references:
    per operand role, pattern, buffer, first partition, offset. access: per operand READS, WRITES, and COVERS where
    all of its buffer is written. movable: tiles whose address the kernel leaves to the compiler. policy: what options
    of passes are set to.
    """

    def __init__(self, b: Builder, movable: Iterable[int], policy: Policy = SCHEDULED) -> None:
        self.b, self.movable, self.policy = b, set(movable), policy
        self.rows, self.references = b.recorded()
        self.deleted = np.zeros(len(self.rows), np.bool_)
        self.order = np.arange(len(self.rows))  # in which the instructions are handed back
        self._looked_at, self._forms = 0, dict[Any, int]()
        self._columns = np.empty((len(BufferColumns._fields), 0), np.int64)  # of the first `_looked_at` buffers
        self.access = self._access(self.rows, self.references)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def buffers(self) -> list[Buffer]:
        """All buffers by id."""
        return self.b.buffers

    @property
    def first(self) -> Ints:
        """Where the operands of each instruction begin, and where the last end."""
        return np.concatenate([np.zeros(1, np.int64), self.rows[:, END]])

    @property
    def of(self) -> Ints:
        """The instruction of each operand."""
        return np.repeat(np.arange(len(self)), np.diff(self.first))

    @cached_property
    def of_list(self) -> list[int]:
        """`of` as a list, for passes that look at single operands."""
        found: list[int] = self.of.tolist()
        return found

    @cached_property
    def first_list(self) -> list[int]:
        """`first` as a list."""
        found: list[int] = self.first.tolist()
        return found

    @property
    def owner(self) -> Ints:
        """The buffer of each operand."""
        return self.references[:, OWNER]

    def columns(self) -> BufferColumns:
        """All buffers by id, to read. A pass only ever adds to them, so that each is looked at once."""
        known, found = self._forms, array("q")
        for b in self.buffers[self._looked_at :]:
            memory = int(b.memory)
            key = (memory, b.dtype.code, b.shape, b.nbytes, b.first_partition)
            form = known.setdefault(key, len(known))
            found.extend((memory, b.nbytes, b.address, b.first_partition, b.partitions, form, b.id in self.movable))
        before, self._looked_at = self._looked_at, len(self.buffers)
        if self._looked_at > self._columns.shape[1]:  # room for as many again
            grown = np.empty((len(BufferColumns._fields), 2 * self._looked_at), np.int64)
            grown[:, :before] = self._columns[:, :before]
            self._columns = grown
        self._columns[:, before : self._looked_at] = np.array(found, np.int64).reshape(-1, len(self._columns)).T
        return BufferColumns(*self._columns[:, : self._looked_at])

    def again(self, origin: int, mark: str) -> int:
        """A new movable tile like `origin`; returns its id."""
        old, number = self.buffers[origin], len(self.buffers)
        self.buffers.append(old.again(number, f"{old.name.partition(chr(39))[0]}'{mark}"))
        self.b.made_at[number] = self.b.made_at.get(origin)
        self.movable.add(number)
        return number

    def put_side_by_side(self, leaders: Ints, counts: Ints, group: Ints, place: Ints) -> None:
        """Make tiles columns of larger ones. leaders, counts: of each group, its first tile and how many they are;
        group, place: of each buffer, which group it is in (-1: none), and where.
        """
        base = len(self.buffers)
        for leader, count in zip(leaders.tolist(), counts.tolist()):
            number, old = self.again(leader, "merged"), self.buffers[leader]
            shape = (old.shape[0], count, *old.shape[1:])
            self.buffers[number] = replace(self.buffers[number], shape=shape, nbytes=count * old.nbytes)
        owner = self.owner.copy()
        moved = group[owner] >= 0
        nbytes = self.columns().nbytes
        self.references[moved, OFFSET] += place[owner[moved]] * nbytes[owner[moved]]
        self.references[moved, OWNER] = base + group[owner[moved]]
        self.access[moved] &= ~COVERS

    def size(self) -> RecordingSize:
        """What there is of it."""
        kept = ~self.deleted
        used = np.bincount(self.owner[np.repeat(kept, np.diff(self.first))], minlength=len(self.buffers)) > 0
        on_chip = self.columns().memory != Memory.HBM
        moved = np.array([w.nbytes if w.kind.startswith("dma.") else 0 for w in self.b.works], np.int64)
        return RecordingSize(int(kept.sum()), int((used & on_chip).sum()), int(moved[self.rows[kept, WORK]].sum()))

    def attributes(self, instruction: int) -> dict[str, Any]:
        """The attributes of an instruction."""
        return dict(self.b.attributes[int(self.rows[instruction, ATTR])])

    def set_attributes(self, instruction: int, changed: Mapping[str, Any]) -> None:
        """Give an instruction other attributes."""
        instr = isa.BY_OPCODE[int(self.rows[instruction, OPCODE])]
        self.rows[instruction, ATTR] = self.b.attribute_index(instr, {**self.attributes(instruction), **changed})

    def commit(self) -> None:
        """Hand everything back to the builder, in the order chosen, without the instructions that were deleted."""
        self.b.replace(self.rows, self.references, self.order[~self.deleted[self.order]])

    def take_in(self) -> None:
        """The instructions that the builder has recorded since the draft was made of it come behind the others."""
        rows, references = self.b.recorded(len(self))
        self.access = np.concatenate([self.access, self._access(rows, references)])
        self.rows, self.references = np.concatenate([self.rows, rows]), np.concatenate([self.references, references])
        self.deleted = np.concatenate([self.deleted, np.zeros(len(rows), np.bool_)])
        self.order = np.concatenate([self.order, np.arange(len(self) - len(rows), len(self))])
        for known in ("of_list", "first_list"):
            self.__dict__.pop(known, None)

    def _access(self, rows: Ints, references: Ints) -> Ints:
        """See the class; of the last instructions of the draft, or of those that come behind them."""
        ends = rows[:, END]
        of = np.repeat(np.arange(len(rows)), np.diff(ends, prepend=ends[-1] - len(references) if len(rows) else 0))
        opcode, attrs = rows[of, OPCODE], rows[of, ATTR]
        access = _roles()[opcode, references[:, ROLE]].astype(np.int64)
        both = access == READS | WRITES
        for code, attr in np.unique(np.stack([opcode[both], attrs[both]], 1), axis=0).tolist():
            if not isa.BY_OPCODE[code].reads_destination(dict(self.b.attributes[attr])):
                access[both & (opcode == code) & (attrs == attr)] = WRITES
        found: Ints = access | np.where((access & WRITES != 0) & self._covers(references), COVERS, 0)
        return found

    def _covers(self, references: Ints) -> Bools:
        """Which operands are all of an on-chip buffer: every partition, and every byte of each exactly once."""
        if not len(references):
            return np.zeros(0, np.bool_)
        buffers, owner, offset = self.columns(), references[:, OWNER], references[:, OFFSET]
        table, row = forms(references[:, PATTERN])
        packed = np.array([is_packed(tuple(d)) for d in table[:, COL["step0"] : COL["count3"] + 1].tolist()])
        on_chip, partitions = table[:, COL["is_hbm"]] == 0, table[:, COL["partitions"]]
        low, high = table[:, COL["first"]][row] + offset, table[:, COL["last"]][row] + offset
        whole = (low == 0) & (high == buffers.nbytes[owner] - 1)
        rows = (references[:, START] == 0) & (partitions[row] == buffers.partitions[owner])
        return np.asarray(whole & rows & (packed & on_chip)[row])


@lru_cache(maxsize=4096)
def is_packed(dims: tuple[int, ...]) -> bool:
    """Whether the pattern (step and count of each dimension) touches adjacent elements, each once."""
    expected = 1
    for step, count in sorted(pair for pair in zip(dims[::2], dims[1::2]) if pair[1] != 1):
        if step != expected:
            return False
        expected *= count
    return True


@lru_cache(maxsize=1)
def _roles() -> np.ndarray[Any, np.dtype[np.int8]]:
    """READS and WRITES of each operand role, by opcode; destinations that may be read count as both."""
    widest = max(len(instr.operands) for instr in isa.BY_OPCODE.values())
    roles = np.zeros((max(isa.BY_OPCODE) + 1, widest), np.int8)
    for code, instr in isa.BY_OPCODE.items():
        for i, spec in enumerate(instr.operands):
            roles[code, i] = READS if spec.role != "dst" else READS | WRITES if spec.rw else WRITES
    return roles
