# SPDX-License-Identifier: Apache-2.0
"""Functions of neuronxcc.nki.isa made from the declarations of instructions: over those of nki.isa, returning tiles.

Where the sizes of the one destination follow from the other operands, the function returns it as a tile; otherwise
the kernel passes the destinations and nothing is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter
from math import prod
from typing import Any

from trnlab.isa.base import Dataflow, Instruction, OperandSpec
from trnlab.lang.storage import refuse
from trnlab.lang.tensor import Tensor
from trnlab.nki import declared
from trnlab.nki.neuronxcc.defined import Box, record
from trnlab.nki.neuronxcc.elementwise import column, computed, not_both_psum, result, row_result
from trnlab.nki.neuronxcc.masked import boxed, cut, rows_of
from trnlab.nki.neuronxcc.zeros import settle

_KEYWORD = Parameter.KEYWORD_ONLY


def function(instr: Instruction, issue: Callable[..., Any], module: str) -> Callable[..., Any]:
    """The function of the older dialect, as if `module` had defined it. issue: that of nki.isa."""
    made = result_of(instr)
    signature = _parameters(instr, made)
    passed = ", ".join(f"{p.name!r}: {p.name}" for p in signature if p.name not in ("mask", "dtype", "_"))
    call = _Call(instr, issue, made)
    body = [f"return _call({{{passed}}}, mask, dtype)"]
    return declared.defined(instr, module, signature, body, {"_call": call}, Tensor if made else None)


def result_of(instr: Instruction) -> OperandSpec | None:
    """The destination that the function makes and returns: the only one, if its sizes are those of sources."""
    destinations = [s for s in declared.operands(instr) if s.role == "dst" and not s.optional]
    tiles = [s for s in _sources(instr) if not s.immediate]
    letters = {letter for s in tiles for letter in s.shape if letter}
    if len(destinations) != 1 or destinations[0].rw:
        return None
    known = tiles and all(letter in letters or letter.isdecimal() for letter in destinations[0].shape)
    return destinations[0] if known else None


def _sources(instr: Instruction) -> list[OperandSpec]:
    return [s for s in declared.operands(instr) if s.role == "src" and not s.optional]


def _parameters(instr: Instruction, made: OperandSpec | None) -> list[Parameter]:
    """As in nki.isa, but that options are keywords, and mask and dtype stand in the place of a label."""
    given = [p for p in declared.parameters(instr) if p.name != "name" and (made is None or p.name != made.name)]
    required = [p for p in given if p.default is Parameter.empty]
    options = [p.replace(kind=_KEYWORD) for p in given if p.default is not Parameter.empty]
    options += [Parameter(name, _KEYWORD, default=None, annotation=Any) for name in ("dtype", "mask")]
    return [*required, *options, Parameter("_", Parameter.VAR_KEYWORD, annotation=Any)]


class _Call:
    """What the function does: it is called with its arguments by name, the mask, and the format of the result."""

    def __init__(self, instr: Instruction, issue: Callable[..., Any], made: OperandSpec | None) -> None:
        self.instr, self.issue, self.made = instr, issue, made
        self.operands = {spec.name: spec for spec in declared.operands(instr)}
        self.like = next((s.name for s in _sources(instr) if not s.immediate), "")  # what the result is like

    def __call__(self, arguments: dict[str, Any], mask: Any, dtype: Any) -> Tensor | None:
        given = {name: column(x) if self._is_column(name) else x for name, x in arguments.items()}
        if self.made is None:
            self._whole(given, mask, given[next(iter(self.operands))].shape)
            return None
        return self._computed(self.made, given, mask, dtype)

    def _computed(self, made: OperandSpec, given: dict[str, Any], mask: Any, dtype: Any) -> Tensor:
        """The result, on what the mask leaves as far as the dataflow says what depends on what."""
        like: Tensor = given[self.like]
        shape, fmt = self._shape(given, made), dtype or self._format(like, made)
        source, flow = self.operands[self.like], self.instr.dataflow
        tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}

        def emit(out: Tensor, *parts: Tensor) -> None:
            self._issue(given | {made.name: out} | dict(zip(tensors, parts)))

        def emit_rows(out: Tensor, _: Tensor, box: Box) -> None:
            rows = rows_of(box)
            alike = {name for name in tensors if self.operands[name].shape == source.shape}
            emit(out, *(cut(x, box if name in alike else rows) for name, x in tensors.items()))

        if flow in (Dataflow.POINTWISE, Dataflow.PARTITION) and source.shape == made.shape:
            return computed(shape, fmt, mask, tuple(tensors.values()), emit)
        if flow is Dataflow.PARTITION and source.shape[0] == made.shape[0]:
            return row_result(like, mask, shape, fmt, emit_rows)
        out = result(shape, fmt)
        self._whole(given | {made.name: out}, mask, like.shape)
        return out

    def _is_column(self, name: str) -> bool:
        spec = self.operands.get(name)
        return spec is not None and spec.immediate and spec.is_scalar

    def _shape(self, given: Mapping[str, Any], made: OperandSpec) -> tuple[int, ...]:
        """The shape of the result, from the letters that sources have in common with it."""
        sizes: dict[str, tuple[int, ...]] = {}
        for spec in _sources(self.instr):
            if not spec.immediate:
                first, *rest = given[spec.name].shape
                sizes = {spec.shape[0]: (first,), spec.shape[1]: tuple(rest)} | sizes
        rows, columns = ((int(s),) if s.isdecimal() else sizes[s] for s in made.shape)
        return prod(rows), *columns

    def _format(self, like: Tensor, made: OperandSpec) -> Any:
        """That of the source, or the only one that the result can have."""
        return next(iter(made.dtypes)) if len(made.dtypes) == 1 else like.format

    def _whole(self, given: dict[str, Any], mask: Any, shape: tuple[int, ...]) -> None:
        """Record the instruction on all of its operands. Raises ConstraintError for a mask that leaves something out.

        What an element of the result depends on is then not known, or the kernel itself cuts the destinations.
        """
        if any(edges != (0, shape[axis]) for axis, edges in boxed(mask, shape).items()):
            refuse(
                f"{self.instr.name} takes no mask in trnlab",
                limit="all of its operands, as its declaration does not say which elements depend on which",
                got=mask,
                remedy="slice the operands instead",
                code="TRN411",
            )
        for value in given.values():
            if isinstance(value, Tensor):
                settle(value)
        self._issue(given)
        for name, spec in self.operands.items():
            if spec.role == "dst" and isinstance(given.get(name), Tensor):
                record(given[name], {})

    def _issue(self, given: dict[str, Any]) -> None:
        apart = [name for name in self.instr.not_both_psum if isinstance(given.get(name), Tensor)]
        for name in apart[1:]:
            given[name] = not_both_psum(given[apart[0]], given[name])
        self.issue(**given)
