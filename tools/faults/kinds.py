# SPDX-License-Identifier: Apache-2.0
"""Kinds of small faults, each a replacement of a piece of source text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A replacement in one file: characters `start` to `end` of its text become `new`."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """Where and what, on one line."""
        return f"{self.file}:{self.line} {self.kind}: {_short(self.old)} -> {_short(self.new)}"

    def planted(self, text: str) -> str:
        """The source with the fault. Raises ValueError where the text is another one."""
        if text[self.start : self.end] != self.old:
            raise ValueError(f"{self.file} is not the file that the fault was drawn from")
        return text[: self.start] + self.new + text[self.end :]


_Change = tuple[ast.AST, str]  # what is replaced, and by what
_SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Mod: "//"}
_BOUNDS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_EQUALS = {ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}
_EXTREMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


def faults(file: str, text: str) -> Iterator[Fault]:
    """Every fault that could be planted in a file, in the order of its text."""
    tree = ast.parse(text)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines()

    def at(line: int, column: int) -> int:  # columns of `ast` count bytes
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    skipped = {id(node) for root in ast.walk(tree) for node in _says_nothing(root)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        for kind, changes in _KINDS.items():
            for place, new in changes(node):
                start = at(place.lineno, place.col_offset)  # type: ignore[attr-defined]
                end = at(place.end_lineno, place.end_col_offset)  # type: ignore[attr-defined]
                yield Fault(file, place.lineno, kind, start, end, text[start:end], new)  # type: ignore[attr-defined]


def _says_nothing(node: ast.AST) -> Iterator[ast.AST]:
    """What a fault in would change no behaviour: annotations, and what is there for type checkers alone."""
    roots: list[ast.AST | None] = []
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        roots = [node.returns, *(a.annotation for a in ast.walk(node.args) if isinstance(a, ast.arg))]
    elif isinstance(node, ast.AnnAssign):
        roots = [node.annotation]
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        roots = [node]
    for root in roots:
        if root is not None:
            yield from ast.walk(root)


def _wrong_sign(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS and not _of_text(node):
        yield node, f"({ast.unparse(node.left)} {_SIGNS[type(node.op)]} ({ast.unparse(node.right)}))"
    elif (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant)
    ):
        yield node, f"({ast.unparse(node.operand)})"


def _of_text(node: ast.BinOp) -> bool:
    """Whether an operand is seen to be text or a list."""
    return any(
        isinstance(side, (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp))
        or (isinstance(side, ast.Constant) and isinstance(side.value, (str, bytes)))
        for side in (node.left, node.right)
    )


def _off_by_one(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range" and node.args:
        last = node.args[min(1, len(node.args) - 1)]
        yield last, f"({ast.unparse(last)}) - 1"
    elif isinstance(node, ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None:
                yield bound, f"({ast.unparse(bound)}) + 1"


def _wrong_bound(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _BOUNDS:
        new = _BOUNDS[type(node.ops[0])]
        yield node, f"({ast.unparse(node.left)} {new} {ast.unparse(node.comparators[0])})"


def _wrong_case(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _EQUALS:
        new = _EQUALS[type(node.ops[0])]
        yield node, f"({ast.unparse(node.left)} {new} {ast.unparse(node.comparators[0])})"
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield node, "(" + word.join(f"({ast.unparse(value)})" for value in node.values) + ")"


def _guard(node: ast.AST) -> Iterator[_Change]:
    """A condition before a refusal that never holds, and one before an early return that always does."""
    if isinstance(node, ast.If) and not node.orelse:
        if isinstance(node.body[-1], ast.Raise):
            yield node.test, "False"
        elif isinstance(node.body[-1], (ast.Return, ast.Continue)):
            yield node.test, "True"


def _dropped(node: ast.AST) -> Iterator[_Change]:
    """A call for its effect that is not made: a wait, a lock, an entry in a table."""
    if isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield node, "None"


def _wrong_extreme(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _EXTREMES:
        yield node.func, _EXTREMES[node.func.id]


_KINDS: dict[str, Callable[[ast.AST], Iterator[_Change]]] = {
    "wrong sign": _wrong_sign,
    "off by one": _off_by_one,
    "wrong bound": _wrong_bound,
    "wrong case": _wrong_case,
    "guard": _guard,
    "dropped call": _dropped,
    "wrong extreme": _wrong_extreme,
}


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= 60 else one_line[:57] + "..."
