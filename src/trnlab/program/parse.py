# SPDX-License-Identifier: Apache-2.0
"""Routines and programs from the text that `text` writes; all goes through the builder, so it is checked again.

Errors are ConstraintErrors: TRN420 with the line of the text where it cannot be read, else what the instruction
breaks.
"""

from __future__ import annotations

import ast
import base64
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from trnlab import chips, isa
from trnlab.chips.spec import Chip
from trnlab.errors import ConstraintError, Location
from trnlab.isa.base import Engine, Memory
from trnlab.numerics.dtypes import dtype
from trnlab.program.access import AP, Buffer, whole
from trnlab.program.builder import Builder
from trnlab.program.routine import Call, Program, ProgramTensor, Routine

_STRING = r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
_NUMBERS = r"\[([\d, ]*)\]"
_ROUTINE = re.compile(rf"routine @(?:(\w+)|{_STRING}) for (\S+), sbuf (\d+), scratch (\d+) \{{")
_PROGRAM = re.compile(rf"program @(?:(\w+)|{_STRING}) for (\S+), hbm (\d+)(?:, ranks (\d+) on (\S+))?( waiting)? \{{")
_BUFFER = re.compile(
    rf"(param|scratch|sbuf|psum|resident) (%[\w.]+)(?: {_STRING})?: (\w+){_NUMBERS}"
    r"(?: at (\d+))?(?: partition (\d+))? slot (\d+)"
)
_INSTRUCTION = re.compile(r"([a-z]+)(?:\.(\d+))?: (\w+) ?(.*?)(?: !(\d+))?")
_LOCATION = rf"{_STRING}:(\d+) in {_STRING} {_STRING}"
_LOC = re.compile(rf"loc !(\d+) = {_LOCATION}")
_PATTERN = re.compile(r"(?:rows (\d+) by (-?\d+)|(\d+):(\d+)), @(-?\d+)((?:, -?\d+\*\d+)*)")
_TENSOR = re.compile(rf"tensor %(\d+) {_STRING}: (\w+) (\w+){_NUMBERS}, (\d+) bytes at (-?\d+)")
_CONSTANT = re.compile(rf"constant %(\d+) = (\w+){_NUMBERS} (\S+)")
_CALL = re.compile(
    rf"call (\d+) \(([%\d, ]*)\)(?: from ([\d, ]+))?(?: sbuf (\d+))?(?: for (\w+))?(?: core (\d+))?( beside)?"
    rf"(?: rank (\d+))?(?: {_STRING})?(?: loc {_LOCATION})?"
)


class _Lines:
    """The lines of a text that hold something, with where they are."""

    def __init__(self, source: str, name: str) -> None:
        self.name = name
        self.lines = [(i, line.strip()) for i, line in enumerate(source.split("\n"), 1) if line.strip()]
        self.at = 0

    @property
    def line(self) -> str:
        return self.lines[self.at][1] if self.at < len(self.lines) else ""

    @property
    def place(self) -> Location:
        number = self.lines[min(self.at, len(self.lines) - 1)][0] if self.lines else 1
        return Location(self.name, number, text=self.line[:120])

    def fail(self, wanted: str) -> NoReturn:
        raise ConstraintError("cannot read the program", code="TRN420", where=self.place, limit=wanted, got=self.line)

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The line as the pattern, and on to the next; None when it is something else."""
        found = pattern.fullmatch(self.line)
        self.at += found is not None
        return found

    def need(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        """The line as the pattern, which it must be."""
        return self.match(pattern) or self.fail(wanted)

    def end(self) -> bool:
        """Whether the block ends here."""
        if self.line != "}":
            return False
        self.at += 1
        return True


def parse_routine(source: str, *, chip: Chip | None = None, name: str = "<text>") -> Routine:
    """The routine that `source` describes. chip: the one it is for, by default the one that the text names."""
    lines = _Lines(source, name)
    with _sound(lines):
        return _routine(lines, chip)


def parse_program(source: str, *, chip: Chip | None = None, name: str = "<text>") -> Program:
    """The program that `source` describes."""
    lines = _Lines(source, name)
    with _sound(lines):
        return _program(lines, chip)


@contextmanager
def _sound(lines: _Lines) -> Iterator[None]:
    """Turns what numbers beyond all measure and names of nothing lead to into an error of the line."""
    try:
        yield
    except (
        KeyError,
        IndexError,
        SyntaxError,
        TypeError,
        ValueError,
        OverflowError,
        ZeroDivisionError,
        MemoryError,
        RecursionError,
        struct.error,
    ) as error:
        lines.fail(f"names and numbers that fit each other ({type(error).__name__}: {error})")


def _program(lines: _Lines, chip: Chip | None) -> Program:
    head = lines.need(_PROGRAM, "program @name for chip, hbm bytes {").groups()
    plain, quoted, target, hbm, ranks, cluster, waits = head
    tensors, constants = list(_tensors(lines)), dict(_constants(lines))
    inputs, outputs = (_ids(lines.need(re.compile(f"{word} ?(.*)"), word)[1]) for word in ("inputs", "outputs"))
    routines, calls = [], []
    while lines.line.startswith("routine"):
        routines.append(_routine(lines, chip))
    while not lines.end():
        found = lines.need(_CALL, "call number (tensors)").groups()
        routine, args, begins, base, purpose, core, beside, rank, label, *loc = found
        where = _location(*loc) if loc[0] else None
        calls.append(
            Call(
                int(routine),
                _ids(args),
                int(base or 0),
                _text(label),
                where,
                _ids(begins or ""),
                purpose or "",
                int(core or 0),
                beside is not None,
                int(rank or 0),
            )
        )
    return Program(
        plain or _text(quoted),
        target,
        tuple(routines),
        tuple(tensors),
        tuple(calls),
        inputs,
        outputs,
        constants,
        hbm_bytes=int(hbm),
        cluster=cluster or "",
        ranks=int(ranks or 1),
        waits=waits is not None,
    )


def _tensors(lines: _Lines) -> Iterator[ProgramTensor]:
    while found := lines.match(_TENSOR):
        number, name, kind, fmt, shape, nbytes, address = found.groups()
        yield ProgramTensor(int(number), _text(name), _shape(shape), dtype(fmt), int(nbytes), kind, int(address))


def _constants(lines: _Lines) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    while found := lines.match(_CONSTANT):
        number, fmt, shape, data = found.groups()
        kind = np.dtype(getattr(ml_dtypes, fmt, None) or fmt)
        raw = b"" if data == "-" else base64.b64decode(data)
        yield int(number), np.frombuffer(raw, kind).reshape(_shape(shape)).copy()


def _routine(lines: _Lines, chip: Chip | None) -> Routine:
    head = lines.need(_ROUTINE, "routine @name for chip, sbuf bytes, scratch bytes {")
    plain, quoted, target, sbuf, scratch = head.groups()
    builder = Builder(plain or _text(quoted), chip or chips.get(target))
    buffers: dict[str, AP] = {}
    while found := lines.match(_BUFFER):
        buffer = _buffer(found, len(buffers))
        builder.place(buffer)
        buffers[found[2]] = whole(buffer)
    first = lines.at
    while not lines.end():  # the places in the source come last, and are needed first
        lines.at += 1
        if lines.at >= len(lines.lines):
            lines.fail("}")
    places, last = _places(lines, first), lines.at
    lines.at = first
    while lines.at < last - 1 and not lines.line.startswith("loc "):
        _instruction(lines, builder, buffers, places)
    lines.at = last
    return replace(builder.build(), sbuf_bytes=int(sbuf), scratch_bytes=int(scratch))


def _places(lines: _Lines, first: int) -> dict[str, Location]:
    found = (_LOC.fullmatch(line) for _, line in lines.lines[first : lines.at])
    return {m[1]: _location(*m.groups()[1:]) for m in found if m}


def _buffer(found: re.Match[str], number: int) -> Buffer:
    kind, printed, name, fmt, shape_text, address, partition, slot = found.groups()
    shape, form = _shape(shape_text), dtype(fmt)
    on_chip, memory = kind in ("sbuf", "psum", "resident"), "SBUF" if kind == "resident" else kind.upper()
    return Buffer(
        number,
        _text(name) if name else printed[1:],
        Memory[memory] if on_chip else Memory.HBM,
        shape,
        form,
        (prod(shape[1:]) if on_chip else max(prod(shape), 1)) * form.itemsize,
        first_partition=int(partition or 0),
        partitions=shape[0] if on_chip else 1,
        address=int(address or 0),
        slot_bytes=int(slot),
        kind="tile" if kind in ("sbuf", "psum") else kind,
    )


def _instruction(lines: _Lines, builder: Builder, buffers: dict[str, AP], places: dict[str, Location]) -> None:
    found = _INSTRUCTION.fullmatch(lines.line) or lines.fail("engine: instruction operands")
    engine, queue, name, arguments, mark = found.groups()
    if name not in isa.REGISTRY or engine.upper() not in Engine.__members__:
        lines.fail("an engine and an instruction of trnlab.isa")
    builder.location = places.get(mark) if mark else None
    values: dict[str, Any] = {}
    for argument in _split(arguments):
        key, _, text = argument.partition("=")
        values[key] = _operand(lines, text, buffers) if text.startswith("%") else _value(lines, text)
    builder.emit(
        isa.REGISTRY[name], engine=Engine[engine.upper()], queue=None if queue is None else int(queue), **values
    )
    lines.at += 1


def _operand(lines: _Lines, text: str, buffers: dict[str, AP]) -> AP:
    found = re.fullmatch(r"(%[\w.]+)(?:\[(.*)\])?(?: as (\w+))?", text)
    if found is None or found[1] not in buffers:
        lines.fail("an operand: a declared buffer and its access pattern")
    full = buffers[found[1]]
    pattern = _PATTERN.fullmatch(found[2]) if found[2] else None
    if found[2] and pattern is None:
        lines.fail("an access pattern: [rows, @offset, step*count, ...]")
    if pattern is not None:
        rows, by, low, high, offset, dims = pattern.groups()
        start, count = (0, int(rows)) if rows else (int(low), int(high) - int(low))
        pairs = [tuple(int(n) for n in dim.split("*")) for dim in dims.split(", ")[1:]]
        full = replace(
            full,
            start_partition=start,
            partitions=count,
            partition_step=int(by or 0),
            offset=int(offset),
            dims=tuple((step, number) for step, number in pairs),
        )
    return full if found[3] is None else full.cast(found[3])


def _split(text: str) -> list[str]:
    """The arguments, cut at commas that are outside of brackets and quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote and text[i - 1] != "\\" else quote
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []


def _value(lines: _Lines, text: str) -> Any:
    try:
        return _constant(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError):
        lines.fail("a number, a string, True, False, None or a tuple of these")


def _constant(node: ast.expr) -> Any:
    """A literal; inf and nan are numbers too. Raises ValueError for anything else."""
    if isinstance(node, ast.Tuple):
        return tuple(_constant(item) for item in node.elts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_constant(node.operand)
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    return ast.literal_eval(node)


def _location(file: str, line: str, function: str, text: str) -> Location:
    return Location(_text(file), int(line), _text(function), _text(text))


def _text(literal: str | None) -> str:
    return str(ast.literal_eval(literal)) if literal else ""


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",")) if text.strip() else ()


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))
