# SPDX-License-Identifier: Apache-2.0
"""The recorder: what a running kernel writes into. It holds the builder of one routine; it runs nothing.

recorder = Recorder("add", chip)
with recorder.active():
    kernel(recorder.argument("x", (128, 512), "float32"))
routine = recorder.finish()
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from trnlab import isa
from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError, ConstraintError, Location, TrnlabError, UsageError
from trnlab.isa.base import Engine, Memory
from trnlab.lang.addresses import checked
from trnlab.lang.formats import Format, chip_format, format_of
from trnlab.lang.hbm import HbmTensor, HbmTensors
from trnlab.lang.offsets import settled
from trnlab.lang.source import user_line
from trnlab.lang.storage import MemorySpace, Storage, refuse
from trnlab.lang.tensor import Tensor
from trnlab.policy import Policy, chosen
from trnlab.program.access import AP, Buffer
from trnlab.program.builder import Builder
from trnlab.program.routine import Routine
from trnlab.program.spans import Spans
from trnlab.program.strided import row_major

if TYPE_CHECKING:
    from trnlab.lang.allocation import FullError

_active: list[Recorder] = []
# To look a member up takes 200 ns in Python 3.11.
_HBM, _IN_SHARED_HBM, _IN_PRIVATE_HBM = Memory.HBM, MemorySpace.shared_hbm, MemorySpace.private_hbm
_SUMS = ("nc_matmul", "nc_matmul_mx")  # of products, in PSUM
_QUEUES = {Engine.SYNC: 8, Engine.SCALAR: 2, Engine.GPSIMD: 4}  # rings that an engine's transfers take turns on


def current() -> Recorder:
    """The recorder of the kernel that is being recorded. Raises UsageError outside of a kernel."""
    if not _active:
        raise UsageError(
            "kernel operations work only inside a kernel",
            code="TRN110",
            where=user_line(),
            remedy="call it from a function decorated with @nki.jit",
        )
    return _active[-1]


def recording() -> bool:
    """Whether a kernel is being recorded."""
    return bool(_active)


def exchange_active(stack: list[Recorder]) -> list[Recorder]:
    """Let the operations that follow go to the last of other recorders; returns those that were active before."""
    before = list(_active)
    _active[:] = stack
    return before


@dataclass(eq=False, slots=True)
class TileRecord:
    """A tile: its address if the kernel chose one, the line that made it, its storage while tensors use it."""

    buffer: Buffer
    region: MemorySpace
    address: int | None
    line: Location | None
    storage: weakref.ref[Storage]


@dataclass(eq=False)
class Recorder:
    """Records one program (one point of the launch grid) of a kernel."""

    name: str
    chip: Chip
    # grid, program: the launch grid and this program's place in it
    grid: tuple[int, ...] = ()
    program: tuple[int, ...] = ()
    tensor_type: type[Tensor] = Tensor
    builder: Builder = field(init=False)
    rank: int = 0  # which rank this is
    cores: int = 1  # how many cores it has
    # the tensors of the rank, which the recorders of its cores have in common
    memory: HbmTensors = field(default_factory=HbmTensors)
    static_dma: bool = False  # transfers that do not say otherwise find their descriptors in a ring
    hbm: list[Tensor] = field(default_factory=list)  # in the order of the routine's parameters
    numbers: list[int] = field(default_factory=list)  # for each parameter, its number there
    # initial contents of HBM tensors that the kernel brings along (constants), by position in the routine's
    # parameters
    arrays: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    # whoever executes what has been recorded so far and says what a tensor holds then; lang itself runs nothing
    reader: Callable[[Tensor], np.ndarray[Any, Any]] | None = None
    depends: bool = False  # the recorded instructions depend on data, because the reader was asked
    dynamic: bool = False  # some view has an address that is chosen at run time
    watched: bool = False  # values were shown, so that each call must record anew
    ordered: int = 0  # inside of how many blocks that forbid reordering
    loops: list[int] = field(default_factory=list)  # inside of which loops on the device
    labels: dict[str, int] = field(default_factory=dict)  # the instructions that the kernel named, by number
    policy: Policy = field(default_factory=chosen)  # what the hardware's compiler is to make of it
    spans: Spans = field(default_factory=Spans)
    accumulating: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    remarks: dict[Any, ConstraintError] = field(default_factory=dict)  # what it is warned of, by line and text
    _shared: list[Tensor] = field(default_factory=list)
    _shared_turn: int = 0
    tiles: list[TileRecord] = field(default_factory=list)
    _turn: dict[Engine, int] = field(default_factory=dict)
    _memo: dict[Any, Any] = field(default_factory=dict)
    _last: tuple[str, Engine | None, dict[str, Any]] | None = None
    written: Routine | None = None

    def __post_init__(self) -> None:
        self.builder = Builder(self.name, self.chip)
        self.builder.leaves_order = True

    @contextmanager
    def active(self) -> Iterator[Recorder]:
        """Operations of the kernel language go to this recorder."""
        _active.append(self)
        try:
            yield self
        finally:
            _active.pop()

    def enter(self, program: tuple[int, ...]) -> None:
        """Record the next program of the grid; its shared_hbm tensors are those of the first, in order."""
        self.program, self._shared_turn = program, 0
        self._memo.clear()
        first = not self.spans.loops
        grid = self.spans.loop("grid", 0) if first else 0
        if not first:
            self.spans.end(0, len(self.builder))
        self.spans.begin(grid, len(self.spans.spans), len(self.builder))

    def independent(self, values: Iterable[int]) -> Iterator[int]:
        """The values of a loop whose iterations are declared independent; notes which instructions each one makes."""
        loop = self.spans.loop("loop", len(self.tiles) + len(self.hbm), user_line())
        for iteration, value in enumerate(values):
            span = self.spans.begin(loop, iteration, len(self.builder))
            try:
                yield value
            finally:
                self.spans.end(span, len(self.builder))

    # -- memory -------------------------------------------------------------------------------------------------
    def argument(self, name: str, shape: tuple[int, ...], kind: Any) -> Tensor:
        """An HBM tensor that the caller passes in; kernels of the vendor expect its buffer to be nl.hbm."""
        return self._hbm(name, tuple(shape), format_of(kind), _IN_PRIVATE_HBM, ("argument", name))

    def tensor(
        self, shape: Any, kind: Any, region: MemorySpace, *, name: str = "", address: tuple[int, int] | None = None
    ) -> Tensor:
        """Fresh memory, not initialised. address: (partition, byte within the partition), on chip only.

        Raises ConstraintError for a shape that no tile can have, and what `lang.addresses` raises.
        """
        fmt = format_of(kind)
        sizes = tuple(map(int, shape)) if isinstance(shape, (tuple, list)) else (int(shape),)
        name = name or f"{region.title}{len(self.tiles) + len(self.hbm)}"
        if address is not None and region.memory is _HBM:
            checked(address, sizes, fmt, region, self.chip, 0)
        if region is _IN_SHARED_HBM:
            return self._shared_tensor(name, sizes, fmt)
        if region is _IN_PRIVATE_HBM:
            return self._hbm(name, sizes, fmt, region)
        sizes = (1, 1) if sizes == (1,) else sizes
        self._check_tile(sizes, region)
        partition, start = 0, None
        if address is not None:
            partition, start = checked(address, sizes, fmt, region, self.chip, self.builder.sbuf_limit)
        buffer = self.builder.unplaced_buffer(sizes, chip_format(fmt), region.memory, name, partition)
        storage = Storage(self, buffer, region, sizes, fmt)
        self.builder.made_at[buffer.id] = line = user_line()
        self.tiles.append(TileRecord(buffer, region, start, line, weakref.ref(storage)))
        return self.tensor_type(storage, sizes, row_major(sizes), name=name)

    def constant(self, array: np.ndarray[Any, Any], kind: Any, name: str = "constant") -> Tensor:
        """An HBM tensor with known contents."""
        tensor = self._hbm(name, array.shape, format_of(kind), _IN_SHARED_HBM)
        self.contain(tensor, array)
        return tensor

    def contain(self, tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
        """Let an HBM tensor hold an array when the kernel starts."""
        position = next(i for i, known in enumerate(self.hbm) if known.storage is tensor.storage)
        self.arrays[position] = np.ascontiguousarray(array)

    def once(self, key: Any, make: Any) -> Any:
        """make() the first time, the same object later: constants that many operations share."""
        known = self._memo
        if key not in known:
            known[key] = make()
        return known[key]

    def _shared_tensor(self, name: str, shape: tuple[int, ...], fmt: Format) -> Tensor:
        turn, self._shared_turn = self._shared_turn, self._shared_turn + 1
        if turn == len(self._shared):
            self._shared.append(self._hbm(name, shape, fmt, _IN_SHARED_HBM, ("shared", turn)))
        tensor = self._shared[turn]
        self._same_as_others(tensor.shape, tensor.format, shape, fmt)
        return tensor

    @staticmethod
    def _same_as_others(known: tuple[int, ...], known_fmt: Format, shape: tuple[int, ...], fmt: Format) -> None:
        if (known, known_fmt) != (shape, fmt):
            refuse(
                "programs of one grid must make the same shared_hbm tensors in the same order",
                limit=f"{known_fmt} {list(known)}",
                got=f"{fmt} {list(shape)}",
                remedy="make shared tensors outside of conditions on nl.program_id",
            )

    def _hbm(
        self, name: str, shape: tuple[int, ...], fmt: Format, region: MemorySpace, key: Hashable = None
    ) -> Tensor:
        number = self.memory.add(HbmTensor(name, shape, fmt), key)
        self._same_as_others(self.memory.places[number].shape, self.memory.places[number].format, shape, fmt)
        self.numbers.append(number)
        buffer = self.builder.param(name, shape, chip_format(fmt)).buffer
        storage = Storage(self, buffer, region, shape, fmt, common=key is not None)
        tensor = self.tensor_type(storage, shape, row_major(shape), name=name)
        self.hbm.append(tensor)
        return tensor

    def _check_tile(self, shape: tuple[int, ...], region: MemorySpace) -> None:
        if len(shape) < 2:
            refuse(
                "a tile has a partition and at least one free dimension",
                limit="2 dimensions",
                got=list(shape),
                remedy="use shape (1, n) or (n, 1)",
            )
        if shape[0] > self.chip.num_partitions:
            refuse(
                f"a tile in {region.value.upper()} has too many partitions",
                limit=self.chip.num_partitions,
                got=list(shape),
                remedy="put at most nl.tile_size.pmax rows in a tile and loop over the rest",
                code="TRN404",
            )

    def lines_of_tiles(self) -> dict[int, Location]:
        """Where the kernel made each piece of on-chip memory, by the number of its buffer."""
        return {made.buffer.id: made.line for made in self.tiles if made.line is not None}

    def remark(self, what: str, *, limit: object, got: object, remedy: str) -> None:
        """Warn, at the user's line, of what the vendor's documentation does not allow and is done all the same."""
        where = user_line()
        self.remarks.setdefault(
            (where, what),
            ConstraintError(
                what, code="TRN417", where=where, limit=limit, got=got, chip=self.chip.name, remedy=remedy
            ),
        )

    # -- values -------------------------------------------------------------------------------------------------
    def watching(self) -> bool:
        """Whether values can be shown to the user now: the kernel is being recorded, with its arrays."""
        now = bool(_active) and _active[-1] is self and self.reader is not None
        self.watched = self.watched or now
        return now

    def read(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """What a tensor holds at this point of the kernel, in its shape.

        Raises UsageError where the kernel is recorded without its arrays.
        """
        if self.reader is None:
            raise UsageError(
                f"kernel {self.name!r} needs a value that is known only at run time",
                code="TRN113",
                where=user_line(),
                got=tensor,
                limit="shapes and constants",
                remedy="call it with arrays; as a part of a compiled model it cannot depend on data",
            )
        self.depends, self._last = True, None
        return self.reader(tensor)

    def show(self, prefix: str, tensor: Tensor) -> None:
        """Print what a tensor holds when the kernel runs and comes to this point."""
        self._last = None
        found = settled(self, isa.REGISTRY["dma_copy"], None, {"src": tensor})
        assert found is not None
        self.builder.show(prefix, found["src"].access(keep_dims=True), tensor.shape)

    # -- instructions -------------------------------------------------------------------------------------------
    def emit(self, name: str, *, engine: Engine | None = None, **arguments: Any) -> None:
        """Append an instruction; tensors among the arguments become access patterns. None arguments are left out.

        Raises what `Builder.emit` raises, at the user's line.
        """
        self.record(name, engine, arguments)

    def record(self, name: str, engine: Engine | None, arguments: dict[str, Any]) -> None:
        """`emit` for callers that have a dict."""
        instr = isa.REGISTRY.get(name)
        where = user_line()
        if instr is None:
            refuse(
                f"instruction {name!r} is none that trnlab has",
                limit=", ".join(isa.REGISTRY),
                got=name,
                remedy="compose it from these",
                code="TRN414",
            )
        if self.dynamic:
            found = settled(self, instr, engine, arguments)
            if found is None:
                return
            arguments = found
        self.builder.location = where
        queue = self._queue(engine or instr.engines[0]) if instr.is_dma else None
        given = arguments
        if self.static_dma and "dge_mode" in instr.attrs and arguments.get("index") is None:
            given = {"dge_mode": "none", **{k: v for k, v in arguments.items() if v is not None}}
        try:
            self.builder.append(instr, engine, queue, given)
        except TrnlabError as error:
            error.where = error.where or where
            error.chip = error.chip or self.chip.name
            raise
        self._last = (name, engine, arguments)

    def wrote(self, value: Tensor) -> bool:
        """Whether the last instruction wrote to this very view, to which the recorder then refers."""
        return self._last is not None and self._last[2].get("dst") is value

    def last_writer_of(self, value: Tensor) -> tuple[str, dict[str, Any]]:
        """Name and arguments of the last instruction, if it wrote all of `value`; else an empty name."""
        dst = self._last[2].get("dst") if self._last is not None else None
        if self._last is None or not isinstance(dst, Tensor) or dst.storage is not value.storage:
            return "", {}
        return (self._last[0], self._last[2]) if dst is value or dst.size == value.size else ("", {})

    def last_sums(self) -> bool:
        """Whether the last instruction sums products, and may as well add them to what is elsewhere."""
        if self._last is None:
            return False
        name, engine, arguments = self._last
        return name in _SUMS and engine is None and arguments.get("accumulate") is False

    def redirect(self, value: Tensor, dst: Tensor, **changed: bool) -> bool:
        """Let the last instruction write to `dst` what it wrote to `value`, if that is all that it wrote; False, with
        nothing done, where that takes more than to change its destination, and the attributes `changed`.
        """
        if self._last is None or self.dynamic:
            return False
        name, engine, arguments = self._last
        old = arguments.get("dst")
        if not isinstance(old, Tensor) or old.storage is not value.storage:
            return False
        instr = isa.REGISTRY[name]
        if (old is not value and old.size != value.size) or not _is_redirectable(instr):
            return False
        # What it leaves of `value` is part of it.
        if instr.operands[0].rw and instr.reads_destination({**instr.attrs, **arguments}):
            return False
        self.builder.location = user_line()
        if not self.builder.redirect(dst, changed):
            return False
        if instr.is_dma:  # its turn comes again, as if it were taken back
            self.builder.requeue(self._queue(engine or instr.engines[0]))
        self._last = (name, engine, {**arguments, "dst": dst, **changed})
        return True

    def take_back(self, value: Tensor) -> tuple[str, Engine | None, dict[str, Any]] | None:
        """Retract the last instruction if `value` is all that it wrote; returns its name, engine and arguments."""
        if self._last is None:
            return None
        dst = self._last[2].get("dst")
        if not isinstance(dst, Tensor) or dst.storage is not value.storage or dst.size != value.size:
            return None
        taken, self._last = self._last, None
        self.builder.retract()
        return taken

    def _queue(self, engine: Engine) -> int:
        turn = self._turn[engine] = self._turn.get(engine, -1) + 1
        return turn % _QUEUES.get(engine, 1)

    def order(self, schedule: Sequence[tuple[str, str]]) -> None:
        """Dependencies between named instructions, (later, earlier). Raises UsageError for names that do not fit."""
        for later, earlier in schedule:
            unknown = [name for name in (later, earlier) if name not in self.labels]
            if unknown or self.labels[earlier] >= self.labels[later]:
                raise UsageError(
                    f"kernel {self.name!r}: the schedule does not fit its instructions",
                    code="TRN111",
                    limit="(later, earlier) of " + (", ".join(self.labels) or "instructions that have a name"),
                    got=(later, earlier),
                    remedy="name instructions with name=, the later one first",
                )
            self.builder.after(self.labels[earlier], self.labels[later])

    # -- the end ------------------------------------------------------------------------------------------------
    def finish(self) -> Routine:
        """Run the passes of the hardware's compiler, place the tiles and build the routine.

        What the kernel says, before any pass, is then in `written`, for those who check it. Raises CapacityError for
        what does not fit in SBUF or PSUM.
        """
        from trnlab.lang.allocation import (
            FullError,
            finished,
        )  # the passes, which nobody needs who only names a kernel

        self.spans.end(0, len(self.builder))
        given = {made.buffer.id: made.address for made in self.tiles if made.address is not None}
        self.builder.settle(given)
        self.builder.spans = self.spans
        self.written = self.builder.part(0)
        self.builder.leaves_places = all(
            made.address is None for made in self.tiles if made.region is MemorySpace.psum
        )
        try:
            return finished(self.builder, given, self.policy)
        except FullError as full:
            raise self._too_much(full) from None

    def _too_much(self, full: FullError) -> CapacityError:
        wanted, alive = full.error.demand, sorted(full.error.alive, key=lambda d: -d.size)
        shape = self.builder.buffers[wanted.id].shape
        listed = ", ".join(f"{d.name} {d.size} B" for d in alive[:6])
        more = f" and {len(alive) - 6} more" if len(alive) > 6 else ""
        return CapacityError(
            f"tile {wanted.name!r} {list(shape)} does not fit in {full.memory.name}",
            code="TRN501" if full.memory is Memory.SBUF else "TRN502",
            where=self.builder.made_at.get(wanted.id),
            limit=f"{full.limit} bytes per partition",
            got=f"{wanted.size} bytes while {sum(d.size for d in alive)} are in use: {listed}{more}",
            chip=self.chip.name,
            remedy=_room(full),
        )


def _room(full: FullError) -> str:
    """The way out for a tile that does not fit."""
    if full.error.demand.size > full.limit:
        return "no partition has that much: loop over its columns in smaller tiles"
    if full.off:
        switched = ",".join(f"{name}=on" for name in full.off)
        return f"let the compiler make room, which is switched off: --schedule {switched}"
    if full.memory is Memory.PSUM:
        return "copy each sum to SBUF soon after its last matmul, or make sums smaller"
    return "make tiles smaller, use each soon after it is filled, or keep fewer of them at a time"


@cache
def _is_redirectable(instr: isa.Instruction) -> bool:
    """Whether its first operand is all that it writes, and nothing more than its place changes with it."""
    return (instr.name in _SUMS or not instr.accumulates) and instr.operands[0].name == "dst"


def elements(ap: AP) -> int:
    """Number of elements of an access pattern."""
    return prod(ap.shape)
