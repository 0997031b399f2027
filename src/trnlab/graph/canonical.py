# SPDX-License-Identifier: Apache-2.0
"""What two graphs must share to compile to the same thing, and what differs when they do not.

The canonical form drops value names, output names, the graph's name, locations, dead ops and the order in which
independent ops were made: ops are numbered in the order in which a walk from the outputs needs them. Collectives are
not dead: other ranks wait for them. What stays:
input and output types, bounds of inputs, aliases, ops, attributes, the bytes of constants, and who reads whom.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import numpy as np

from trnlab.graph.collectives import exchanges_own_parts, meets
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.text import number_text
from trnlab.numerics.dtypes import DType

VERSION = 1  # of the canonical form; part of the bytes
MAX_DIFFERENCES = 20
MAX_ALIGNED = 400  # ops; aligning longer lists that differ in length takes seconds


def canonical_bytes(graph: Graph) -> bytes:
    """The canonical form as bytes: equal for two graphs exactly when they mean the same by construction."""
    ops = ordered_ops(graph)
    number: dict[Value, int] = {}
    for value in (*graph.inputs, *(v for op in ops for v in op.results)):
        number[value] = len(number)
    lines = [f"graph v{VERSION}", *(f"input {v.type}" for v in graph.inputs)]
    lines += [f"bounds {i} {low!r} {high!r}" for i, (low, high) in sorted(graph.bounds.items())]
    lines += [f"{op.name} {[number[v] for v in op.operands]} {attrs_key(op)}" for op in ops]
    for i, value in enumerate(graph.outputs):
        lines.append(f"output {number[value]} {graph.aliases.get(i, '-')}")
    return "\n".join(lines).encode()


def canonical_hash(graph: Graph) -> str:
    """SHA-256 of the canonical form, 64 hexadecimal digits."""
    return hashlib.sha256(canonical_bytes(graph)).hexdigest()


def ordered_ops(graph: Graph) -> list[Op]:
    """The ops that outputs and other ranks need, each after what it reads, in the order of a depth-first walk from
    the outputs; where ranks have programs of their own from the collectives first, whose order all keep."""
    done: set[Op] = set()
    ordered: list[Op] = []
    ends = [v.op for v in graph.outputs if v.op is not None]
    meetings = [op for op in graph.ops if meets(op)]
    for end in (*meetings, *ends) if exchanges_own_parts(graph) else (*ends, *meetings):
        stack: list[tuple[Op, Iterator[Value]]] = []
        if end not in done:
            done.add(end)
            stack.append((end, iter(end.operands)))
        while stack:
            op, operands = stack[-1]
            needed = next((v.op for v in operands if v.op is not None and v.op not in done), None)
            if needed is None:
                ordered.append(op)
                stack.pop()
            else:
                done.add(needed)
                stack.append((needed, iter(needed.operands)))
    return ordered


def attrs_key(op: Op, without: str = "") -> str:
    """An op's attributes, but the one of that name, as text: equal exactly when they are, down to the sign of
    zero."""
    if not op.attrs:
        return ""
    return " ".join(f"{key}={_attr_key(op.attrs[key])}" for key in sorted(op.attrs) if key != without)


def _attr_key(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, float):
        return struct.pack("<d", value).hex()
    if isinstance(value, DType):
        return value.name
    return f"{value.name} {value.digest}" if hasattr(value, "digest") else repr(value)


# -- differences --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that changed."""

    part: str  # "input", "output", "constant", "op"
    label: str  # which one, for people
    old: str
    new: str

    def __str__(self) -> str:
        if self.part == "output" and not (self.old and self.new):
            kept = "that is kept now" if self.new else "that is no longer kept"
            return f"{self.label} {kept}: {self.new or self.old}"
        return f"{self.label}: {self.old or 'absent'} -> {self.new or 'absent'}"

    def brief(self, width: int) -> str:
        """As text, of which neither side is longer than `width` characters; ops that begin alike are named."""
        old, new = (x if len(x) <= width else f"{x[: width - 4]} ..." for x in (self.old, self.new))
        if old == new:
            return f"{self.label}: {old.partition('(')[0]} with other types or attributes"
        return str(Difference(self.part, self.label, old, new))


def diff(old: Graph, new: Graph) -> list[Difference]:
    """What changed from `old` to `new`, inputs first; empty exactly when their canonical forms are equal.

    At most MAX_DIFFERENCES are listed.
    """
    if canonical_bytes(old) == canonical_bytes(new):
        return []
    found = list(dict.fromkeys((*_interface(old, new), *_bodies(old, new))))[:MAX_DIFFERENCES]
    return found or [Difference("op", "the graph", "these ops", "the same ops, wired differently")]


def _interface(old: Graph, new: Graph) -> Iterator[Difference]:
    """Differences of inputs, outputs and aliases."""
    for i, (a, b) in enumerate(zip_longest(old.inputs, new.inputs)):
        value = b or a
        assert value is not None
        yield from _types("input", f"input {i}" + (f" {value.name!r}" if value.name else ""), a, b)
    if len(old.outputs) != len(new.outputs):
        yield from _kept(old, new)
        return
    for i, (a, b) in enumerate(zip(old.outputs, new.outputs)):
        yield from _types("output", _result(i, new), a, b)
    for i in sorted({*old.aliases, *new.aliases}):
        pair = [f"overwrites input {g.aliases[i]}" if i in g.aliases else "a tensor of its own" for g in (old, new)]
        if pair[0] != pair[1]:
            yield Difference("output", _result(i, new), *pair)


def _result(i: int, graph: Graph) -> str:
    """An output by the user's line that computes it; by its name, which may be nobody's, where no line is known."""
    op = graph.outputs[i].op
    if op is not None and op.loc is not None:
        return f"a result of {op.loc.file}:{op.loc.line}"
    name = graph.output_names[i] if i < len(graph.output_names) else ""
    return f"output {name!r}" if name else "an output"


def _kept(old: Graph, new: Graph) -> Iterator[Difference]:
    """Results of which one graph has more than the other; those of one line and type are taken to be the same."""
    before, after = (
        Counter((_result(i, g), f"{v.dtype.name}{list(v.shape)}") for i, v in enumerate(g.outputs))
        for g in (old, new)
    )
    yield from (Difference("output", label, "", kind) for label, kind in (after - before).elements())
    yield from (Difference("output", label, kind, "") for label, kind in (before - after).elements())


def _types(part: str, label: str, old: Value | None, new: Value | None) -> Iterator[Difference]:
    if old is None or new is None:
        yield Difference(part, label, str(old.type) if old else "", str(new.type) if new else "")
        return
    if old.shape != new.shape:
        yield Difference(part, f"{label} shape", str(old.shape), str(new.shape))
    if old.dtype is not new.dtype:
        yield Difference(part, f"{label} dtype", old.dtype.name, new.dtype.name)


def _bodies(old: Graph, new: Graph) -> Iterator[Difference]:
    """Ops aligned by what they are, not by how they are numbered; long stretches that differ are only counted."""
    before, after = ordered_ops(old), ordered_ops(new)
    same_types = [v.type for v in old.inputs] == [v.type for v in new.inputs]
    old_keys, new_keys = ([_description(op, with_types=same_types) for op in ops] for ops in (before, after))
    if len(before) == len(after):
        yield from (_changed_op(x, y) for x, y, a, b in zip(before, after, old_keys, new_keys) if a != b)
        return
    shared = next((i for i, (a, b) in enumerate(zip(old_keys, new_keys)) if a != b), min(len(before), len(after)))
    before, after, old_keys, new_keys = before[shared:], after[shared:], old_keys[shared:], new_keys[shared:]
    if max(len(before), len(after)) > MAX_ALIGNED:
        yield from _counts(before, after)
        return
    for tag, a, a_end, b, b_end in SequenceMatcher(None, old_keys, new_keys, autojunk=False).get_opcodes():
        if tag != "equal":
            yield from (_changed_op(x, y) for x, y in zip_longest(before[a:a_end], after[b:b_end]))


def _counts(old: list[Op], new: list[Op]) -> Iterator[Difference]:
    """How many ops of each name."""
    before, after = Counter(op.name for op in old), Counter(op.name for op in new)
    for name in sorted({*before, *after}):
        if before[name] != after[name]:
            yield Difference("op", f"number of {name}", str(before[name]), str(after[name]))


def _changed_op(old: Op | None, new: Op | None) -> Difference:
    shown = new or old
    assert shown is not None
    if old and new and old.name == new.name == "constant":
        return Difference("constant", f"constant{_place(shown)}", _value(old), _value(new))
    pair = [_description(op, with_types=True) if op else "" for op in (old, new)]
    return Difference("op", f"op{_place(shown)}", *pair)


def _place(op: Op) -> str:
    return f" at {op.loc.file}:{op.loc.line}" if op.loc else ""


def _description(op: Op, *, with_types: bool) -> str:
    """An op for people, without names. Types are left out where inputs differ: every type downstream would, too."""
    if op.name == "constant":
        return f"constant {_value(op) if with_types else _value(op).split(' : ')[0]}"
    types = ", ".join(str(v.type) for v in op.operands)
    shown = {k: v.name if isinstance(v, DType) else v for k, v in sorted(op.attrs.items())}
    if not with_types:
        return f"{op.name} {sorted(shown.get('dimensions', ()))} {shown.get('kind', '')}"
    attrs = ", ".join(f"{k} = {v}" for k, v in shown.items())
    return f"{op.name}({types})" + (f" {{{attrs}}}" if attrs else "")


def _value(op: Op) -> str:
    value = op.attrs["value"]
    if isinstance(value, np.ndarray):
        return f"array {hashlib.sha256(value.tobytes()).hexdigest()[:12]} : {op.result.type}"
    return f"{number_text(value, op.result.dtype)} : {op.result.type}"
