# SPDX-License-Identifier: Apache-2.0
"""The one way to make a routine: kernels, lowerings and the text parser all call this builder.

b = Builder("scale", chip)
x, y = b.param("x", (256, 512), float32), b.param("y", (256, 512), float32)
tiles = b.pool((128, 512), float32, bufs=2, name="t")
for r in range(0, 256, 128):
    t = tiles.next()
    b.dma_copy(dst=t, src=x[r : r + 128])
    b.tensor_scalar(dst=t, data=t, operand0=2.0, op0="multiply")
    b.dma_copy(dst=y[r : r + 128], src=t)
routine = b.build()
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from struct import Struct
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError, Location
from trnlab.isa.base import Engine, Instruction, Work
from trnlab.program.access import AP, REFERENCE, Buffer, Reference, operand_records
from trnlab.program.buffers import BufferBuilder
from trnlab.program.grids import with_grids, written
from trnlab.program.legality import Form, Verdict, exact, remember, verdicts
from trnlab.program.routine import COL, OPEN_ENGINE, OPEN_ORDER, OPEN_PLACE, Attrs, Print, Routine
from trnlab.program.signatures import signature
from trnlab.program.slots import assign_slots
from trnlab.program.spans import Spans

# Ints per instruction while recording: opcode, engine, queue, work, attributes, line, what is left open, and how many
# operands there are up to its end.
COLUMNS = 8
END = COLUMNS - 1
_MATMUL = isa.REGISTRY["nc_matmul"]
_ROW = Struct(f"{COLUMNS}i")  # packing is three times as fast as array.extend
_OPERANDS = tuple(Struct(f"{REFERENCE * operands}q") for operands in range(64))


class Builder(BufferBuilder):
    """Records instructions in program order, checks each one, and places tiles in SBUF and PSUM."""

    def __init__(self, name: str, chip: Chip, *, sbuf_limit: int | None = None, banks: int | None = None) -> None:
        """`sbuf_limit`: bytes per partition this routine may use; all of the chip's usable SBUF by default. `banks`:
        of PSUM, of which it may use the first so many; all by default."""
        super().__init__(name, chip, sbuf_limit, banks)
        self.location: Location | None = None
        self.queue_turn, self.awaited = 0, set[int]()  # awaited: see `kernels.blocks.dma_load`
        self.may_have_more = False  # of SBUF: a kernel that works badly with so little refuses it
        self.follows_blockings = True  # of products, or an estimate chooses them: see `kernels.blocking.choose`
        self._rows, self._operands = array("i"), array("q")  # COLUMNS per instruction, REFERENCE per operand
        self._works: dict[Work, int] = {}
        self.leaves_order = self.leaves_places = False  # to the hardware's compiler, as kernels do
        self.made_at: dict[int, Location | None] = {}  # the lines that made unplaced tiles, where they are known
        self.arrays: set[int] = set()  # tiles of arrays that the kernel declares outside of its loops
        self.spans: Spans | None = None  # the loops of the recording, before any pass
        self._prints: list[Print] = []
        self._after: list[tuple[int, int]] = []
        self.residents: dict[int, Any] = {}  # by the number of its stand-in, what stays in SBUF between calls
        self._attrs: list[Attrs] = []
        self._attr_memo: dict[tuple[Any, ...], int] = {}
        self._locs: dict[Location | None, int] = {}
        self._line_of: dict[int, tuple[Location | None, int]] = {}  # by identity
        self._line_now: tuple[Any, int] = (..., -1)  # the location of the last instruction, and its index
        self._legal: dict[tuple[object, ...], tuple[int, int]] = {}
        self._verdicts = verdicts(chip)
        self._last: tuple[Any, ...] = ()  # by what the last instruction is legal, while it can be redirected
        self._roles: tuple[tuple[int, str], ...] = ()  # of its arguments

    def uses(self) -> tuple[dict[int, tuple[int, int]], int]:
        """First and last instruction that names each buffer (by id), and the number of instructions so far."""
        ids = np.array(self._operands, np.int64).reshape(-1, REFERENCE)[:, 2]
        owner = np.repeat(np.arange(len(self)), np.diff(np.array(self._rows[END::COLUMNS]), prepend=0))
        first, last = np.full(len(self._buffers), len(self)), np.full(len(self._buffers), -1)
        np.minimum.at(first, ids, owner)
        np.maximum.at(last, ids, owner)
        named = np.flatnonzero(last >= 0)
        return dict(zip(named.tolist(), zip(first[named].tolist(), last[named].tolist()))), len(self)

    # -- instructions -------------------------------------------------------------------------------------------
    def __getattr__(self, name: str) -> Callable[..., None]:
        try:
            return partial(self.emit, isa.REGISTRY[name])
        except KeyError:
            raise AttributeError(name) from None

    def emit(
        self, instr: Instruction, *, engine: Engine | None = None, queue: int | None = None, **arguments: Any
    ) -> None:
        """Append one instruction; operands are APs by name, everything else is an attribute.

        Raises ConstraintError (with the current location) when the chip would refuse it.
        """
        self.append(instr, engine, queue, arguments)

    def append(self, instr: Instruction, engine: Engine | None, queue: int | None, arguments: dict[str, Any]) -> None:
        """`emit` for callers that have a dict; an argument that is None counts as left out.

        Instructions that differ only in what `Reference.recorded` leaves out of the rules are checked once.
        """
        left_open = OPEN_ORDER if self.leaves_order else 0
        if engine is None:
            engine, left_open = instr.engines[0], left_open | OPEN_ENGINE
        number, roles = signature(instr, tuple(arguments))
        key: list[Any] = [number, engine]
        rows: list[int] = []
        for role, name in roles:
            value = arguments[name]
            if role >= 0 and isinstance(value, Reference):
                reference, rules = value._recorded or value.recorded()
                rows.append(role)
                rows += reference
                key.append(rules)
            elif value.__class__ is float and value == 0:
                key.append(("0", str(value)))  # 0.0 and -0.0 are equal and not the same
            else:
                key.append(value)
        self._last = form = tuple(key)
        self._roles = roles
        known = self._legal.get(form)
        if known is None:
            known = self._legal[form] = self._judged(form, instr, engine, arguments)
        self._operands.frombytes(_OPERANDS[len(rows) // REFERENCE].pack(*rows))
        self._rows.frombytes(
            _ROW.pack(
                instr.opcode,
                engine,
                -1 if queue is None else queue,
                *known,
                self._line(),
                left_open,
                len(self._operands) // REFERENCE,
            )
        )

    def products(
        self, dst: AP, stationary: Sequence[AP], moving: Sequence[AP], first: int, begun: bool, final: int
    ) -> None:
        """nc_matmul of each two operands, summed up in `dst`: what `emit` does one by one, in half the time.

        The first of them is number `first` of a sum that has `begun` with other operands, or begins with number 0;
        number `final` is its last.
        """
        instr, engine, names = _MATMUL, _MATMUL.engines[0], ("dst", "stationary", "moving", "accumulate", "stop")
        number, self._roles = signature(instr, names)
        place, rules = dst._recorded or dst.recorded()
        start, line, end = (instr.opcode, engine, -1), self._line(), len(self._operands) // REFERENCE
        left_open = OPEN_ENGINE | OPEN_ORDER if self.leaves_order else OPEN_ENGINE
        legal, pack, pack_row = self._legal, _OPERANDS[3].pack, _ROW.pack
        for k, (weights, data) in enumerate(zip(stationary, moving), first):
            of_weights, of_data = weights._recorded or weights.recorded(), data._recorded or data.recorded()
            more, stop = begun or k > 0, k == final
            form = number, engine, rules, of_weights[1], of_data[1], more, stop
            known = legal.get(form)
            if known is None:
                given = dict(zip(names, (dst, weights, data, more, stop)))
                known = legal[form] = self._judged(form, instr, engine, given)
            end += 3
            self._operands.frombytes(pack(0, *place, 1, *of_weights[0], 2, *of_data[0]))
            self._rows.frombytes(pack_row(*start, *known, line, left_open, end))
            self._last = form

    def _judged(
        self, form: Form, instr: Instruction, engine: Engine, arguments: Mapping[str, Any]
    ) -> tuple[int, int]:
        """Indices of the work and the attributes of an instruction that the chip does not refuse."""
        key = exact(form, arguments.values())
        verdict = self._verdicts.get(key) if key is not None else None
        if verdict is None:
            verdict = self._checked(instr, engine, arguments)
            if key is not None:
                remember(self._verdicts, key, verdict)
        work, given = verdict
        return self._works.setdefault(work, len(self._works)), self._attributes(instr, given)

    def _checked(self, instr: Instruction, engine: Engine, arguments: Mapping[str, Any]) -> Verdict:
        """The work and the attributes; raises ConstraintError for what the chip refuses."""
        operands = {
            spec.name: arguments[spec.name].access()
            for spec in instr.operands
            if isinstance(arguments.get(spec.name), Reference)
        }
        given = {name: v for name, v in arguments.items() if v is not None and name not in operands}
        given = {**instr.implied(operands), **given}
        attrs = self._attrs[self._attributes(instr, given)]
        return isa.validate(instr, operands, dict(attrs), engine, self.chip, self.location), given

    def _attributes(self, instr: Instruction, given: dict[str, Any]) -> int:
        """Index of the attributes in the routine's table."""
        key = (instr.opcode, *given.items())
        for value in given.values():
            if value.__class__ is float and value == 0:
                key = (*key, str(value))  # 0.0 and -0.0 are equal and not the same
        known = self._attr_memo.get(key)
        if known is None:
            known = self._attr_memo[key] = len(self._attrs)
            self._attrs.append(tuple(sorted({**instr.attrs, **given}.items())))
        return known

    def _line(self) -> int:
        """Index of the current location. Many instructions share an object, and hashing one is slow."""
        if self._line_now[0] is not self.location:
            known = self._line_of.get(id(self.location))
            if known is None or known[0] is not self.location:
                known = (self.location, self._locs.setdefault(self.location, len(self._locs)))
                self._line_of[id(self.location)] = known
            self._line_now = known
        return self._line_now[1]

    def redirect(self, dst: Reference, changed: Mapping[str, Any]) -> bool:
        """Let the last instruction write to `dst`, its first operand, instead, with other attributes; False, with
        nothing done, where no such instruction was recorded before, so that it has to be checked.

        changed: attributes among those that it was given.
        """
        (number, *place), rules = dst._recorded or dst.recorded()
        if not self._last:
            return False
        form = (*self._last[:2], rules, *self._last[3:])
        for name, value in changed.items():
            at = 2 + next(n for n, (_, known_name) in enumerate(self._roles) if known_name == name)
            form = (*form[:at], value, *form[at + 1 :])
        known = self._legal.get(form)
        if known is None:
            return False
        row, operand = (len(self) - 1) * COLUMNS, self._first(len(self) - 1) * REFERENCE
        self._operands[operand + 1 : operand + REFERENCE] = array("q", (number, *place))
        self._rows[row + 3 : row + 6] = array("i", (*known, self._line()))
        self._last = form
        return True

    def requeue(self, queue: int) -> None:
        """Put the last instruction, a transfer, on another queue."""
        self._rows[(len(self) - 1) * COLUMNS + 2] = queue

    def retract(self) -> None:
        """Take back the last instruction; kernels that assign a result to a tile redirect it there."""
        self._last = ()
        del self._rows[-COLUMNS:]
        del self._operands[self._first(len(self)) * REFERENCE :]

    def _first(self, instruction: int) -> int:
        """Number of the instruction's first operand."""
        return self._rows[(instruction - 1) * COLUMNS + END] if instruction else 0

    def show(self, prefix: str, ap: AP, shape: tuple[int, ...]) -> None:
        """Print what lies there when the routine comes to this point. Takes no time."""
        record = operand_records(np.array([[0, *ap.recorded()[0]]], np.int64))[0]
        self._prints.append(Print(len(self), prefix, tuple(record.tolist()), shape))

    def after(self, producer: int, consumer: int) -> None:
        """Let an instruction start when another, issued before, is done, though they share no memory."""
        self._after.append((producer, consumer))

    def __len__(self) -> int:
        return len(self._rows) // COLUMNS

    def build(self) -> Routine:
        """The finished routine. Raises CapacityError for one that moves what stays in SBUF as if it were in HBM."""
        columns = self._columns(0)
        assert all(b.address >= self._sbuf_peak for b in self._buffers if b.kind == "resident"), self.name
        if len(columns["operands"]) and columns["operands"][:, COL["buffer"]].min() < 0:
            raise CapacityError(
                f"routine {self.name!r} reads a tensor that stays in SBUF in another layout",
                code="TRN501",
                chip=self.chip.name,
                remedy="let the tensor go through HBM",
            )
        columns["buffers"] = tuple(with_grids(self._buffers, columns["operands"], written(columns)))
        slots = assign_slots(columns["buffers"], columns["operands"], self.chip.psum)
        return Routine(
            **columns,
            num_slots=slots.total + len(self._after),  # which the last slots stand for
            hbm_slot=slots.hbm,
            sbuf_cuts=slots.sbuf_cuts,
            prints=tuple(self._prints),
            after=tuple(self._after),
        )

    # -- what passes change, see `passes` -----------------------------------------------------------------------
    @property
    def buffers(self) -> list[Buffer]:
        """All buffers by id; passes append to it."""
        return self._buffers

    @property
    def attributes(self) -> Sequence[Attrs]:
        """The attributes that instructions refer to."""
        return self._attrs

    @property
    def works(self) -> Sequence[Work]:
        """The amounts of work that instructions refer to."""
        return list(self._works)

    def work_index(self, work: Work) -> int:
        """Number of this amount of work, as rows refer to it."""
        return self._works.setdefault(work, len(self._works))

    @property
    def prints(self) -> Sequence[Print]:
        """What is shown when the routine runs."""
        return self._prints

    def recorded(
        self, start: int = 0
    ) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
        """Copies of the rows of the instructions from `start` on (`COLUMNS`) and of their operands (`REFERENCE`)."""
        rows, operands = self._rows[start * COLUMNS :], self._operands[self._first(start) * REFERENCE :]
        return np.array(rows, np.int64).reshape(-1, COLUMNS), np.array(operands, np.int64).reshape(-1, REFERENCE)

    def state(self) -> tuple[Any, ...]:
        """All that passes and placement may change, for `restore`."""
        lists = self._rows[:], self._operands[:], list(self._buffers), list(self._after), list(self._prints)
        return *lists, self._scratch, self._sbuf_peak

    def restore(self, state: tuple[Any, ...]) -> None:
        """What there was at `state`, before or after now."""
        rows, operands, buffers, after, prints, self._scratch, self._sbuf_peak = state
        self._rows, self._operands, self._after, self._prints = rows[:], operands[:], list(after), list(prints)
        self._buffers[:] = buffers

    def attribute_index(self, instr: Instruction, attributes: Mapping[str, Any]) -> int:
        """Number of these attributes of an instruction, as its row refers to them."""
        return self._attributes(instr, dict(attributes))

    @property
    def dependencies(self) -> Sequence[tuple[int, int]]:
        """Pairs (done first, then started) of instructions that share no memory."""
        return self._after

    def replace(
        self,
        rows: np.ndarray[Any, np.dtype[np.int64]],
        references: np.ndarray[Any, np.dtype[np.int64]],
        chosen: np.ndarray[Any, np.dtype[np.int64]],
    ) -> None:
        """Record instead the instructions `chosen`, in that order, of what has the form of `recorded`."""
        ends = rows[:, END]
        counts = np.diff(ends, prepend=0)[chosen]
        begins = (ends - np.diff(ends, prepend=0))[chosen]
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        picked = rows[chosen]
        picked[:, END] = np.cumsum(counts)
        self._rows = array("i", picked.astype(np.int32).tobytes())
        self._operands = array("q", references[np.repeat(begins, counts) + within].tobytes())
        number = {int(old): new for new, old in enumerate(chosen)} if self._after or self._prints else {}
        self._after = [(number[a], number[b]) for a, b in self._after if a in number and b in number]
        self._prints = [replace(p, at=int(np.flatnonzero(chosen < p.at).max(initial=-1)) + 1) for p in self._prints]

    def part(self, start: int) -> Routine:
        """The instructions from number `start` on, for whoever executes while others are still being recorded.

        Its tiles need not have addresses yet, it has no slots, and the last operand columns count bytes.
        """
        return Routine(**self._columns(start))

    def _columns(self, start: int) -> dict[str, Any]:
        """Everything of a routine from instruction `start` on, except the slots."""
        first = self._first(start)
        rows = np.array(self._rows[start * COLUMNS :], np.int32).reshape(-1, COLUMNS).T
        left_open = rows[6].astype(np.int8) | np.int8(OPEN_PLACE if self.leaves_places else 0)
        references = np.array(self._operands[first * REFERENCE :], np.int64).reshape(-1, REFERENCE)
        return {
            "name": self.name,
            "target": self.chip.name,
            "buffers": tuple(self._buffers),
            "params": tuple(self._params),
            "opcode": rows[0].astype(np.int16),
            "engine": rows[1].astype(np.int8),
            "queue": rows[2].astype(np.int8),
            "work": rows[3].copy(),
            "attr": rows[4].copy(),
            "loc": rows[5].copy(),
            "first_operand": np.concatenate([np.zeros(1, np.int32), rows[END] - np.int32(first)]),
            "operands": operand_records(references),
            "works": tuple(self._works),
            "attr_table": tuple(self._attrs),
            "locs": tuple(self._locs),
            "sbuf_bytes": max(self._sbuf_peak, self._resident_top),
            "scratch_bytes": self._scratch,
            "num_psum": self.chip.psum.num_banks,
            "left_open": left_open if (left_open > OPEN_ENGINE).any() else left_open[:0],
        }


def _method(instr: Instruction) -> Callable[..., None]:
    """`Builder.emit` of one instruction."""

    def record(self: Builder, *, engine: Engine | None = None, queue: int | None = None, **arguments: Any) -> None:
        self.append(instr, engine, queue, arguments)

    return record


for _instr in isa.REGISTRY.values():  # found at once, where `__getattr__` is asked after everything else has failed
    if not hasattr(Builder, _instr.name):
        setattr(Builder, _instr.name, _method(_instr))
