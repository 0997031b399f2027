# SPDX-License-Identifier: Apache-2.0
"""Tensors that are computed again where they are read, instead of stored and loaded.

A norm stores its rows for the next layer, and what it made of them for the backward pass: less their mean, times
another number of each row, which is one instruction. Where one stored tensor and numbers of rows give another by
little arithmetic, whoever reads the other one reads the first. No bit changes: the same ops compute it. What varies
along columns is no such number: VectorE needs two cycles an element for it, as long as the transfer takes.
"""

from __future__ import annotations

from typing import NamedTuple

from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind, ValueClass
from trnlab.graph.ir import Op, Value
from trnlab.kernels.blocks import P
from trnlab.numerics.dtypes import float32

CHEAP = frozenset(("add", "subtract", "multiply", "negate"))
MOST_OPS = 2  # that lead from the one tensor to the other
LEAST = 1 << 18  # elements that are worth it


class _Recipe(NamedTuple):
    """Ops that make a value from one full tensor in memory, and the numbers of rows that have to be there, too."""

    ops: tuple[Op, ...]
    source: Value
    rows: tuple[Value, ...]


def rematerialize(part: Partition, outputs: set[Value]) -> None:
    """Have readers compute what takes little of what is stored in any case. outputs: what the user sees."""
    readers = _readers(part)
    kept: set[Value] = set()  # what others are computed from
    for group in [g for g in part.groups if g.ops and g.kind in (GroupKind.ROWS, GroupKind.DOT)]:
        for op in group.ops:
            value = op.results[0]
            if value in outputs or value in kept or not readers.get(value) or group.cols is None:
                continue
            recipe = _recipe(part, group, value, readers, outputs)
            if recipe is None or not all(_may_compute(part, group, r, value, recipe) for r in readers[value]):
                continue
            for reader in readers.pop(value):
                _compute_again(part, group, reader, recipe)
                for op in recipe.ops:
                    readers.get(op.result, set()).discard(reader)
                for source in (recipe.source, *recipe.rows):
                    readers.setdefault(source, set()).add(reader)
            kept |= {recipe.source, *recipe.rows}


def _readers(part: Partition) -> dict[Value, set[FusionGroup]]:
    """For each value that a group makes, the other groups that read it."""
    found: dict[Value, set[FusionGroup]] = {}
    for group in part.groups:
        for op in group.ops:
            for root in map(part.root, op.operands):
                if part.owner.get(root, group) is not group:
                    found.setdefault(root, set()).add(group)
    return found


def _recipe(
    part: Partition,
    group: FusionGroup,
    value: Value,
    readers: dict[Value, set[FusionGroup]],
    outputs: set[Value],
) -> _Recipe | None:
    """How to make a full value of a group from another one that it stores in any case."""
    ops: list[Op] = []
    sources: dict[Value, None] = {}
    rows: dict[Value, None] = {}

    def goes(value: Value) -> bool:
        op = value.op
        if op is None or op.name not in CHEAP or value.dtype is not float32 or op in ops or len(ops) == MOST_OPS:
            return False
        ops.append(op)
        return all(leads(v) for v in op.operands)

    def leads(operand: Value) -> bool:
        root = part.root(operand)
        if part.owner.get(root) is not group:
            return group.outer.get(operand) is ValueClass.SCALAR or part.splat(operand) is not None
        cls = group.classes[root]
        if cls is ValueClass.ROW and root.type.size * (group.cols or 1) == group.size and root.dtype is float32:
            rows[root] = None
            return True
        if cls is not ValueClass.FULL or not part.strided(operand).is_contiguous:
            return False
        if readers.get(root) or root in outputs:
            sources[root] = None
            return True
        return operand is root and goes(root)

    full = group.classes[value] is ValueClass.FULL and value.type.size == group.size >= LEAST
    if not full or not goes(value) or len(sources) != 1:
        return None
    (source,) = sources
    return _Recipe(tuple(reversed(ops)), source, tuple(rows)) if source.dtype is float32 else None


def _may_compute(part: Partition, group: FusionGroup, reader: FusionGroup, value: Value, recipe: _Recipe) -> bool:
    """Whether a reader's loop goes through the same rows, reads the value in its order, and meets what the recipe
    reads as the loop that made it does."""
    if reader.kind not in (GroupKind.ROWS, GroupKind.DOT) or (reader.size, reader.cols) != (group.size, group.cols):
        return False
    anchor = reader.ops[:1] if reader.kind is GroupKind.DOT else []
    reads = [op for op in reader.ops if any(part.root(v) is value for v in op.operands)]
    if reader.update or any(op in anchor for op in reads) or not part.read_in_step(reader, value):
        return False
    cols = group.cols or 1
    if cols < P or not part.has_rows(recipe.source, group.size // cols, cols):
        return False
    return all(cls is not None for cls in _outer(part, group, recipe).values())


def _outer(part: Partition, group: FusionGroup, recipe: _Recipe) -> dict[Value, ValueClass | None]:
    """How a loop of the same rows and columns meets what a recipe reads from memory."""
    found: dict[Value, ValueClass | None] = {}
    made = {op.result for op in recipe.ops}
    for op in recipe.ops:
        for operand in op.operands:
            root = part.root(operand)
            if root in made:
                continue
            want = (
                group.classes[root] if part.owner.get(root) is group else group.outer.get(operand, ValueClass.SCALAR)
            )
            cols, cls = part.outer_class(operand, group.cols)
            found[operand] = cls if cls is want and cols == group.cols else None
    return found


def _compute_again(part: Partition, owner: FusionGroup, reader: FusionGroup, recipe: _Recipe) -> None:
    """Put the ops of a recipe into a loop, before the first that reads what they make."""
    made = {op.result for op in recipe.ops}
    ops = [op for op in reader.ops if op not in recipe.ops]  # some of which it computes already, for another value
    first = next(i for i, op in enumerate(ops) if any(part.root(v) in made for v in op.operands))
    reader.ops = [*ops[:first], *recipe.ops, *ops[first:]]
    reader.classes.update({value: owner.classes[value] for value in made})
    outer = {v: cls for v, cls in _outer(part, owner, recipe).items() if cls is not None}
    reader.outer = {v: c for v, c in reader.outer.items() if part.root(v) not in made} | outer
    reader.loads = reader.loads - made | {recipe.source}
