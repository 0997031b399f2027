# SPDX-License-Identifier: Apache-2.0
"""Registers, and loops whose bounds and conditions lie in them.

A loop of the device is recorded as often as it runs: where its bound or condition depends on data, the recorder's
`reader` says what the instructions recorded so far would have made of it. What came from the kernel's text (an
immediate, the variable of a counted loop) is known without that.

Sources: class VirtualRegister, register_alloc and its neighbours in nki.isa; dynamic_range, fori_loop and while_loop
in nki.language; deep-dives/nki-dynamic-loops.rst; get-started/nki-language-guide.rst (dynamic control flow).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from trnlab.lang.formats import FORMATS, Format
from trnlab.lang.recorder import Recorder, current
from trnlab.lang.recording import Recording
from trnlab.lang.source import user_line
from trnlab.lang.storage import MemorySpace, refuse
from trnlab.lang.tensor import Tensor

MAX_TRIPS = 100_000  # of a loop with bounds
MAX_ROUNDS = 10_000  # of a loop with a condition, which is executed as it is recorded


class VirtualRegister:
    """A 32-bit number that a sequencer holds. `known`: its value where the kernel's own text says it.

    Its truth, as in `while register:`, and its use as an index are those of the value when the kernel runs.
    """

    __slots__ = ("_format", "frozen", "known", "tile")

    def __init__(self, tile: Tensor, known: int | None = None, frozen: bool = False) -> None:
        self.tile, self.known, self.frozen = tile, known, frozen
        self._format = FORMATS["int32"]

    @property
    def operand(self) -> Tensor:
        """What instructions on registers read and write."""
        return self.tile.view(self._format)

    def number(self) -> int | float:
        """Its value at this point of the program."""
        if self.known is not None:
            return self.known
        value = self.tile.storage.recorder.read(self.operand).reshape(-1)[0]
        return float(value) if self._format == "float32" else int(value)

    def write(self, instruction: str, source: Any, known: int | None = None, fmt: Format | None = None) -> None:
        """Set it with an instruction on registers. Raises ConstraintError for the variable of a loop."""
        if self.frozen:
            refuse(
                "the variable of a loop cannot be written",
                limit="registers from nisa.register_alloc",
                got=self,
                remedy="copy it into a register of your own with nisa.register_move",
                code="TRN450",
            )
        self._format = fmt or self._format
        current().emit(instruction, dst=self.operand, **source)
        self.known = known

    def __bool__(self) -> bool:
        _rounds(self.tile.storage.recorder).count()
        return bool(self.number())

    def __index__(self) -> int:
        return int(self.number())

    __int__ = __index__

    def __repr__(self) -> str:
        return f"<VirtualRegister {self.tile.name} {'' if self.known is None else self.known}>"

    def __str__(self) -> str:
        return str(self.number()) if self.tile.storage.recorder.watching() else repr(self)

    def _arithmetic(self, *_: Any) -> NoReturn:
        refuse(
            "a register cannot be computed with in Python",
            limit="a loop bound, a condition or an offset",
            got=self,
            remedy="compute in a [1, 1] tile with nisa.tensor_scalar, then nisa.register_load",
            code="TRN450",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _arithmetic
    __mod__ = __rmod__ = __truediv__ = __rtruediv__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = _arithmetic
    __lshift__ = __rshift__ = __and__ = __or__ = _arithmetic

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, float)):
            self._arithmetic()
        return self is other

    __hash__ = object.__hash__


def allocate(value: Any = None) -> VirtualRegister:
    """A new register: uninitialised, with a number, or with the one element of a tensor."""
    tile = current().tensor((1, 1), "int32", MemorySpace.sbuf, name="register")
    register = VirtualRegister(tile)
    if isinstance(value, Tensor):
        current().emit("register_alloc", dst=tile)
        load(register, value)
    elif value is None:
        current().emit("register_alloc", dst=tile)
    else:
        current().emit("register_alloc", dst=tile, x=_whole(value))
        register.known = int(value)
    return register


def move(dst: VirtualRegister, src: Any) -> None:
    """dst = src, a number or another register."""
    if isinstance(src, VirtualRegister):
        _register(dst).write("register_move", {"src": src.operand}, src.known, src._format)
    else:
        _register(dst).write("register_move", {"src": _whole(src)}, int(src), FORMATS["int32"])


def load(dst: VirtualRegister, src: Tensor) -> None:
    """dst = the one element of src, in HBM or SBUF."""
    fmt = FORMATS["float32" if src.format == "float32" else "uint32" if src.format == "uint32" else "int32"]
    _register(dst).write("register_load", {"src": one(src)}, fmt=fmt)


def store(dst: Tensor, src: VirtualRegister) -> None:
    """The one element of dst, in HBM or SBUF, = src."""
    current().emit("register_store", dst=one(dst), src=_register(src).operand)


def one(tensor: Tensor) -> Tensor:
    """A tensor of one element as [1, 1]. Raises ConstraintError for any other."""
    if tensor.size != 1:
        refuse(
            "a register holds one element",
            limit="a tensor of shape [1] or [1, 1]",
            got=list(tensor.shape),
            remedy="slice out one element",
            code="TRN409",
        )
    return tensor._like((1, 1), (1, 1))


def _register(value: Any) -> VirtualRegister:
    if not isinstance(value, VirtualRegister):
        refuse(
            "not a register",
            limit="what nisa.register_alloc returned",
            got=value,
            remedy="allocate one with nisa.register_alloc()",
            code="TRN450",
        )
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        refuse(
            "a register is set to a whole number",
            limit="an int, a register or a [1, 1] tensor",
            got=value,
            remedy="load other numbers from a tensor with nisa.register_load",
            code="TRN411",
        )
    return int(value)


# -- loops ------------------------------------------------------------------------------------------------------
def counted(start: Any, stop: Any, step: Any) -> Iterator[VirtualRegister]:
    """The variable of a loop with bounds, once per iteration; bounds are numbers or registers.

    Raises ConstraintError for a step that is not a positive number, and for more than `MAX_TRIPS` iterations.
    """
    if isinstance(step, VirtualRegister) or not hasattr(step, "__index__") or int(step) < 1:
        refuse(
            "the step of a loop on the device is a positive number that is known",
            limit="1, 2, 3, ...",
            got=step,
            remedy="pass an int",
            code="TRN411",
        )
    recorder = _looping()
    trips = range(_bound(start), _bound(stop), int(step))
    if len(trips) > MAX_TRIPS:
        refuse(
            "a loop with more iterations than trnlab records",
            limit=MAX_TRIPS,
            got=len(trips),
            remedy="check what the register holds; make the step larger",
            code="TRN451",
        )
    tile = recorder.tensor((1, 1), "int32", MemorySpace.sbuf, name="loop variable")
    with _inside(recorder):
        for value in trips:
            if value == trips[0]:
                recorder.emit("register_alloc", dst=tile, x=value)
            else:
                recorder.emit("register_move", dst=tile, src=value)
            yield VirtualRegister(tile, value, frozen=True)


@contextmanager
def _inside(recorder: Recorder) -> Iterator[None]:
    """The body of a loop on the device."""
    recorder.loops.append(len(recorder.builder))
    try:
        yield
    finally:
        recorder.loops.pop()


def _bound(value: Any) -> int:
    if isinstance(value, Tensor):
        refuse(
            "a loop bound is a number or a register",
            limit="int or VirtualRegister",
            got=value,
            remedy="load the element with nisa.register_load",
            code="TRN411",
        )
    return int(value)


def for_each(lower: Any, upper: Any, body: Callable[[VirtualRegister], Any], step: Any = 1) -> None:
    """body(i) for each i from lower on and below upper."""
    for i in counted(lower, upper, step):
        if body(i) is not None:
            refuse(
                "the body of a counted loop returns nothing",
                limit=None,
                got="a value",
                remedy="keep what the next iteration needs in a tile",
                code="TRN411",
            )


def repeat(init: VirtualRegister, body: Callable[[VirtualRegister], Any]) -> None:
    """r = init; while r: r = body(r). The registers are passed by value."""
    recorder = _looping()
    condition = allocate()
    move(condition, init)
    for _ in range(MAX_ROUNDS):
        if not condition.number():
            return
        with _inside(recorder):
            following = body(condition)
        if not isinstance(following, VirtualRegister):
            refuse(
                "the body of a while loop returns the next condition",
                limit="a register",
                got=following,
                remedy="return the register that was loaded last",
                code="TRN411",
            )
        if following is not condition:
            move(condition, following)
    _rounds(recorder).too_many()


def _looping() -> Recorder:
    recorder = current()
    if recorder.ordered:
        refuse(
            "a loop on the device inside of nl.no_reorder()",
            limit="Python ranges",
            got="a dynamic loop",
            remedy="put no_reorder inside of the loop's body",
            code="TRN411",
        )
    return recorder


class BranchCounts:
    """How often each line of the kernel asked a register whether to go on."""

    def __init__(self) -> None:
        self._asked: dict[Any, int] = {}

    def count(self) -> None:
        """One more time. Raises ConstraintError where it has been too often."""
        where = user_line()
        self._asked[where] = self._asked.get(where, 0) + 1
        if self._asked[where] > MAX_ROUNDS:
            self.too_many()

    def too_many(self) -> NoReturn:
        """Raises ConstraintError."""
        refuse(
            "a loop of more rounds than trnlab runs",
            limit=f"{MAX_ROUNDS} rounds",
            got="the condition is still not zero",
            remedy="update the register of the condition in the body with nisa.register_load",
            code="TRN451",
        )


def _rounds(recorder: Recording) -> BranchCounts:
    rounds = recorder.once("rounds", BranchCounts)
    assert isinstance(rounds, BranchCounts)
    return rounds
