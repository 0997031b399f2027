# SPDX-License-Identifier: Apache-2.0
"""Fusion: which ops become one routine.

Ops are taken in order and join the group that computes one of their operands whenever its loop can compute them too.
Afterwards, when all readers are known, epilogues move to where they cost least, and loops that read the same merge.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from math import prod

from trnlab.compiler.groups import Class, Group, Kind, join
from trnlab.compiler.recompute import levels_of, placed_late
from trnlab.compiler.roles import find_updates
from trnlab.compiler.selection import Rule
from trnlab.compiler.strided import VIEW_OPS, Strided, identity, is_filled, split_rows
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS, WINDOW

# Full tensors that the epilogue of a matmul may read: more, and the PE array would wait for them.
MAX_EPILOGUE_LOADS = 2
# Elements of a group that is merged with a later one only if that makes nobody wait: there is little to save.
SMALL = 4096
PSUM_BANKS, BANK_COLS = 8, 512  # sums over rows stay in PSUM for the whole loop


class Partition:
    """Groups of a graph under construction."""

    def __init__(
        self, graph: Graph, looks: dict[Value, Strided], copies: set[Value], rules: Mapping[Op, Rule]
    ) -> None:
        self.graph, self.looks, self.copies, self.rules = graph, looks, copies, rules
        self.groups: list[Group] = []
        self.owner: dict[Value, Group] = {}
        self.readers: dict[Value, list[Group]] = {}  # groups that load a full value from outside, by its root
        self._ancestors: list[int] = []  # bit g set: group g must run before
        self._updates = find_updates(graph)
        self._late, self._levels = placed_late(graph), levels_of(graph)
        self._position = {op: i for i, op in enumerate(graph.ops)}

    def form(self) -> None:
        """Put every op into a group."""
        for op in self.graph.ops:
            if op.name in VIEW_OPS:
                if op.result in self.copies:
                    self._new(Kind.MOVE, op)
            elif op.name in ("constant", "iota"):
                continue
            elif op.name in ("concatenate", "pad"):
                self._new(Kind.MOVE, op)
            elif op.name == "dot_general":
                self._new(Kind.DOT, op, cols=_dot_cols(op))
            elif op.name == "scatter":
                self._new(Kind.SCATTER, op)
            elif op.name == "custom_call":
                self._new(Kind.CALL, op)
            elif OPS[op.name].kind == "attention":
                self._new(Kind.ATTENTION, op)
            elif op.name == "convolution":
                self._new(Kind.CONVOLUTION, op)
            elif OPS[op.name].kind == WINDOW:
                self._new(Kind.POOL, op)
            else:
                self._place(op)
        self._sink_epilogues()
        self._merge_siblings()

    def ordered(self) -> list[Group]:
        """All groups, in an order that respects their dependencies and otherwise follows the program."""
        ordered = self._ordered()
        for group in ordered:
            self._find_same(group)
        return ordered

    # -- placing one op -----------------------------------------------------------------------------------------
    def _place(self, op: Op) -> None:
        for group in self._candidates(op):
            if self._admits(group, op):
                self._add(group, op)
                self._absorb(group, op)
                return
        size, cols = op.result.type.size, None
        if op.name == "reduce":
            size, cols = op.operands[0].type.size, _reduced_cols(op)
        group = self._new(Kind.ROWS, None, size=size, cols=cols)
        group.update = op in self._updates
        admitted = self._admits(group, op)
        assert admitted, f"{op.name} does not fit a group of its own"
        self._add(group, op)

    def _candidates(self, op: Op) -> list[Group]:
        """Groups that compute an operand, latest first; then loops over rows that read one anyway."""
        roots = [self.root(v) for v in op.operands]
        owners = {self.owner[v] for v in roots if v in self.owner and self.owner[v].kind in (Kind.ROWS, Kind.DOT)}
        beside = {g for v in roots if v.type.size > 1 for g in self.readers.get(v, ()) if g.ops} - owners
        found = [*sorted(owners, key=lambda g: -g.id), *sorted(beside, key=lambda g: -g.id)]
        if op in self._late:
            found = [g for g in found if max(self._late.get(o, self._levels[o]) for o in g.ops) >= self._late[op]]
        return [g for g in found if g.update == (op in self._updates)]

    def _admits(self, group: Group, op: Op) -> bool:
        """Whether `group` can compute `op` too; fixes the group's columns and the result's class when it can."""
        if any(self._depends(self.owner.get(self.root(v)), group) for v in op.operands):
            return False
        if op.name in ("trn.rng_uniform", "trn.rng_philox"):
            verdict = self._admit_random(group, op)
        elif op.name == "reduce":
            verdict = self._admit_reduce(group, op)
        elif op.name == "gather":
            verdict = self._admit_gather(group, op)
        else:
            verdict = self._admit_elementwise(group, op)
        if verdict is None:
            return False
        group.cols, group.classes[op.result] = verdict
        return True

    def _admit_elementwise(self, group: Group, op: Op) -> tuple[int | None, Class] | None:
        cols = group.cols
        size = op.result.type.size
        if OPS[op.name].kind != ELEMENTWISE:
            return None
        inner: list[Class] = []
        outer: list[Value] = []
        for value in op.operands:
            if self.inside(value, group):
                seen = self.class_of(value, group, cols)
                if seen is None or seen[1] is Class.FINAL:
                    return None
                cols = seen[0]
                inner.append(seen[1])
            else:
                outer.append(value)
        if size != group.size:
            narrow = inner and all(c in (Class.ROW, Class.SCALAR) for c in inner)
            if not (narrow and cols is not None and size * cols == group.size):
                return None
            found = {v: Class.SCALAR if self.is_scalar(v) else Class.ROW for v in outer}
            group.outer = {**found, **group.outer}
            return cols, join(*inner, *found.values())
        loads = set()
        found = {}
        for value in outer:
            cols, cls = (cols, group.outer[value]) if value in group.outer else self.outer_class(value, cols)
            inner.append(cls)
            found[value] = cls
            if cls is Class.FULL:
                if group.ops and cols is not None and not self.has_rows(value, group.size // cols, cols):
                    return None
                loads.add(self.root(value))
        if group.kind is Kind.DOT and len(group.loads | loads) > MAX_EPILOGUE_LOADS:
            return None
        group.loads |= loads
        group.outer.update(found)
        return cols, join(*inner)

    def _admit_reduce(self, group: Group, op: Op) -> tuple[int | None, Class] | None:
        value, dims = op.operands[0], op.attrs["dimensions"]
        cols = _reduced_cols(op)
        if group.kind is not Kind.ROWS or value.type.size != group.size or group.cols not in (None, cols):
            return None
        if self.inside(value, group):
            seen = self.class_of(value, group, cols)
            if seen is None or seen[1] is not Class.FULL:
                return None
        else:
            group.outer.setdefault(value, Class.FULL)
        sums = sum(c is Class.FINAL for c in group.classes.values())
        if _is_trailing(dims, value.type.rank):
            return (cols, Class.ROW) if _fits_psum(sums, cols) else None
        has_rows = any(c is Class.ROW for c in group.classes.values())
        if op.attrs["kind"] != "add" or (has_rows and not _fits_psum(sums + 1, cols)) or sums + 1 > PSUM_BANKS:
            return None
        return cols, Class.FINAL

    def _admit_random(self, group: Group, op: Op) -> tuple[int | None, Class] | None:
        (seed,) = op.operands
        if self.inside(seed, group) or op.result.type.size != group.size or group.kind is not Kind.ROWS:
            return None
        group.outer[seed] = Class.SCALAR
        return group.cols, Class.FULL

    def _admit_gather(self, group: Group, op: Op) -> tuple[int | None, Class] | None:
        table, ids = op.operands
        cols = prod(op.attrs["slice_sizes"]) or 1
        if self.inside(table, group) or self.inside(ids, group) or group.kind is not Kind.ROWS:
            return None
        if op.result.type.size != group.size or group.cols not in (None, cols):
            return None
        group.outer[ids] = Class.ROW
        return cols, Class.FULL

    # -- second thoughts, once all readers are known ------------------------------------------------------------
    def _sink_epilogues(self) -> None:
        """Move what a matmul's epilogue computes for one loop over rows alone into that loop: it is not stored
        then."""
        readers = self.graph.users()
        outputs = {self.root(v) for v in self.graph.outputs}
        for group in self.groups:
            for op in reversed(group.ops[1:] if group.kind is Kind.DOT else ()):
                if op.result in outputs:
                    continue
                users = self.readers_of(op.result, readers)
                user = users.pop() if len(users) == 1 else None
                if user is None or user is group or user.kind is not Kind.ROWS:
                    continue
                if self.read_in_step(user, op.result) and self._admits(user, op):
                    group.ops.remove(op)
                    del group.classes[op.result]
                    user.outer = {v: c for v, c in user.outer.items() if self.root(v) is not op.result}
                    self._add(user, op)
                    user.ops.sort(key=self._position.__getitem__)

    def read_in_step(self, user: Group, value: Value) -> bool:
        """Whether a group reads the elements of a value in their order in memory."""
        looks = [(op, v) for op in user.ops for v in op.operands if self.root(v) is value]
        return all(op.name != "gather" and self.strided(v).is_contiguous for op, v in looks)

    def readers_of(self, value: Value, users: dict[Value, list[Op]]) -> set[Group | None]:
        """The groups that read a value, views looked through."""
        return {self.owner.get(r.result) for r in self._computing_readers(value, users)}

    def _computing_readers(self, value: Value, readers: dict[Value, list[Op]]) -> list[Op]:
        """The ops that read a value, views looked through."""
        found = []
        for op in readers.get(value, ()):
            is_view = op.name in VIEW_OPS and op.result not in self.copies
            found += self._computing_readers(op.result, readers) if is_view else [op]
        return found

    def _merge_siblings(self) -> None:
        """Loops over rows that read the same tensor read it once."""
        for value in list(self.readers):
            beside = list(dict.fromkeys(g for g in self.readers[value] if g.ops))
            for i, group in enumerate(beside):
                for other in beside[i + 1 :]:
                    if group.ops and other.ops and self._mergeable(group, other):
                        self.merge(group, other)

    def _find_same(self, group: Group) -> None:
        """Full values from outside that are the same elements in the same order, in other shapes: loaded once."""
        first: dict[tuple[Value, int, tuple[tuple[int, int], ...]], Value] = {}
        for op in group.ops:
            for value in op.operands:
                if group.outer.get(value) is Class.FULL and op.name != "gather":
                    seen = self.strided(value)
                    group.same[value] = first.setdefault((seen.root, seen.offset, seen.collapsed()), value)

    # -- joining two groups -------------------------------------------------------------------------------------
    def _absorb(self, group: Group, op: Op) -> None:
        """Take in the other groups of rows that compute operands of `op`, which has just joined `group`."""
        if group.kind is not Kind.ROWS or op in self._late:
            return
        for value in op.operands:
            other = self.owner.get(self.root(value))
            if other is not None and other is not group and self._mergeable(other, group):
                self.merge(other, group)

    def _mergeable(self, a: Group, b: Group) -> bool:
        if a.kind is not Kind.ROWS or a.size != b.size or a.update != b.update:
            return False
        if a.size <= SMALL and self._waits_for_more(b, a):
            return False
        if a.cols is not None and b.cols is not None and a.cols != b.cols:
            return False
        sums = sum(c is Class.FINAL for g in (a, b) for c in g.classes.values())
        if sums and not _fits_psum(sums, a.cols or b.cols or 0):
            return False
        if any(v in a.outer and a.outer[v] is not cls for v, cls in b.outer.items()):
            return False
        if any(self._reads_final(x, y) for x, y in ((a, b), (b, a))):
            return False
        return not any(
            self.runs_before(x.id, g) and self.runs_before(g.id, y) for g in self.groups for x, y in ((a, b), (b, a))
        )

    def _waits_for_more(self, late: Group, early: Group) -> bool:
        """Whether `late` must wait for groups that `early` need not wait for."""
        return bool(self._ancestors[late.id] & ~self._ancestors[early.id] & ~(1 << early.id))

    def _reads_final(self, reader: Group, writer: Group) -> bool:
        """Whether `reader` needs something of `writer` that its loop could not have while it runs."""
        for op in reader.ops:
            for value in op.operands:
                if self.inside(value, writer):
                    seen = self.class_of(value, writer, writer.cols)
                    from_memory = op.name == "gather"  # rows of a table that is complete
                    if seen is None or seen[1] is Class.FINAL or from_memory:
                        return True
        return False

    def merge(self, gone: Group, into: Group) -> None:
        """Let one group compute what another did."""
        inner = {v for v in into.outer if self.owner.get(self.root(v)) is gone}
        anchor = into.ops[: into.kind is not Kind.ROWS]  # stays the first, whatever comes before it in the graph
        into.ops = [*anchor, *sorted([*gone.ops, *into.ops[len(anchor) :]], key=self._position.__getitem__)]
        into.cols = into.cols or gone.cols
        into.classes.update(gone.classes)
        into.outer = {v: c for v, c in {**gone.outer, **into.outer}.items() if v not in inner}
        into.loads |= gone.loads
        for value in gone.classes:
            self.owner[value] = into
        for value, cls in gone.outer.items():
            if cls is Class.FULL:
                self.readers.setdefault(self.root(value), []).append(into)
        gone.ops, gone.classes, gone.outer = [], {}, {}  # what has no ops is no group any more
        old, new = 1 << gone.id, 1 << into.id
        before = (self._ancestors[into.id] | self._ancestors[gone.id]) & ~old & ~new
        self._ancestors[into.id] = before
        for i, bits in enumerate(self._ancestors):
            if i != into.id and bits & (old | new):
                self._ancestors[i] = bits & ~old | new | before

    # -- classes ------------------------------------------------------------------------------------------------
    def root(self, value: Value) -> Value:
        """The value in memory (or in a group) that `value` is a look at."""
        return self.looks[value].root if value in self.looks else value

    def inside(self, value: Value, group: Group) -> bool:
        """Whether `value`, or what it looks at, is computed by the group."""
        return self.owner.get(self.root(value)) is group

    def splat(self, value: Value) -> float | None:
        """The number that a value is everywhere, if it is a constant one."""
        root = self.root(value)
        return float(root.op.attrs["value"]) if root.op is not None and is_filled(root) else None

    def is_scalar(self, value: Value) -> bool:
        """One element repeated: a splat constant or a single number."""
        if self.splat(value) is not None or self.root(value).type.size == 1:
            return True
        seen = self.strided(value)
        return all(stride == 0 or count == 1 for count, stride in zip(seen.shape, seen.strides))

    def strided(self, value: Value) -> Strided:
        """How a value lies in memory. An iota lies in 0, 1, 2, ...: strides along its dimension only."""
        if value in self.looks:
            return self.looks[value]
        return identity(value)

    def class_of(self, value: Value, group: Group, cols: int | None) -> tuple[int | None, Class] | None:
        """Class of an inside value, through views; None when the group's loop cannot follow the view."""
        if value in group.classes:
            return cols, group.classes[value]
        op = value.op
        assert op is not None
        if op.name not in ("reshape", "broadcast_in_dim"):
            return None
        seen = self.class_of(op.operands[0], group, cols)
        if seen is None or op.name == "reshape":
            return seen
        return _broadcast_class(op, seen[0], seen[1], group.size)

    def outer_class(self, value: Value, cols: int | None) -> tuple[int | None, Class]:
        """Class of a value from outside that has the full shape; fixes the columns when only that makes it cheap."""
        if self.is_scalar(value):
            return cols, Class.SCALAR
        seen = self.strided(value)
        dims = [(count, stride) for count, stride in zip(seen.shape, seen.strides) if count > 1]
        zeros_behind = _suffix(dims, zero=True)
        if zeros_behind > 1 and cols in (None, zeros_behind) and all(s for _, s in dims[: -_depth(dims, True)]):
            return zeros_behind, Class.ROW
        last = dims[-1][0]
        lead_zero = all(stride == 0 for _, stride in dims[:-1]) and len(dims) > 1
        if lead_zero and dims[-1][1] and cols in (None, last):
            return last, Class.COL
        if cols is not None and lead_zero is False and _suffix(dims, zero=False) == cols and all(
            s == 0 for _, s in dims[: -_depth(dims, False)]
        ) and len(dims) > _depth(dims, False):  # fmt: skip
            return cols, Class.COL
        return cols, Class.FULL

    def has_rows(self, value: Value, rows: int, cols: int) -> bool:
        """Whether a loop over so many rows and columns can follow how a value lies in memory."""
        return split_rows(self.strided(value), rows, cols) is not None

    # -- dependencies -------------------------------------------------------------------------------------------
    def _depends(self, producer: Group | None, group: Group) -> bool:
        """Whether adding a read of `producer` to `group` would close a circle."""
        return producer is not None and producer is not group and bool(self._ancestors[producer.id] >> group.id & 1)

    def runs_before(self, first: int, group: Group) -> bool:
        """Whether the group numbered `first` must have run before `group`."""
        return bool(self._ancestors[group.id] >> first & 1)

    def waits(self, group: Group) -> bool:
        """Whether anything must have run before `group`."""
        return self._ancestors[group.id] != 0

    def _new(self, kind: Kind, op: Op | None, *, size: int = 0, cols: int | None = None) -> Group:
        group = Group(len(self.groups), kind, size if op is None else op.result.type.size, cols)
        self.groups.append(group)
        self._ancestors.append(0)
        if op is not None:
            for result in op.results:
                group.classes[result] = Class.FULL
            self._add(group, op)
        return group

    def _add(self, group: Group, op: Op) -> None:
        group.ops.append(op)
        for result in op.results:
            self.owner[result] = group
        before = 0
        for value in op.operands:
            producer = self.owner.get(self.root(value))
            if group.kind is Kind.ROWS and producer is not group and group.outer.get(value) is Class.FULL:
                self.readers.setdefault(self.root(value), []).append(group)
            if producer is not None and producer is not group:
                before |= self._ancestors[producer.id] | 1 << producer.id
        if before & ~self._ancestors[group.id]:
            self._ancestors[group.id] |= before
            for other in self.groups:
                if self._ancestors[other.id] >> group.id & 1:
                    self._ancestors[other.id] |= before

    def _place_of(self, group: Group) -> int:
        """Where a group stands in the program: after its last op, a matmul with an update before the updates."""
        ops = [op for op in group.ops if group.update or op not in self._updates]
        return max(self._position[op] for op in ops or group.ops)

    def _ordered(self) -> list[Group]:
        live = [g for g in self.groups if g.ops]
        last = {g.id: self._place_of(g) for g in live}
        for group in live:
            if group.kind is Kind.DOT and any(op in self._updates for op in group.ops):
                before = [g.id for g in live if self.runs_before(g.id, group)]
                last.update({g: min(last[g], last[group.id]) for g in before})
        direct: dict[int, set[int]] = {g.id: set() for g in live}
        readers: dict[int, set[int]] = {g.id: set() for g in live}
        for group in live:
            for op in group.ops:
                for value in op.operands:
                    producer = self.owner.get(self.root(value))
                    if producer is not None and producer is not group:
                        direct[group.id].add(producer.id)
                        readers[producer.id].add(group.id)
        waiting = {g: len(d) for g, d in direct.items()}
        ready = [(last[g], g) for g, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        ordered = []
        while ready:
            _, g = heapq.heappop(ready)
            ordered.append(self.groups[g])
            for reader in readers[g]:
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    heapq.heappush(ready, (last[reader], reader))
        assert len(ordered) == len(live), "groups form a circle"
        return ordered


def _fits_psum(sums: int, cols: int) -> bool:
    return sums * -(-cols // BANK_COLS) <= PSUM_BANKS


def _dot_cols(op: Op) -> int:
    rhs = op.operands[1]
    taken = {*op.attrs["rhs_batching_dimensions"], *op.attrs["rhs_contracting_dimensions"]}
    return prod(count for axis, count in enumerate(rhs.shape) if axis not in taken)


def _is_trailing(dims: tuple[int, ...], rank: int) -> bool:
    return sorted(dims) == list(range(rank - len(dims), rank))


def _reduced_cols(op: Op) -> int:
    """Columns of the loop that computes a reduction: the reduced dims if they are last, the kept ones if first."""
    shape, dims = op.operands[0].shape, op.attrs["dimensions"]
    if _is_trailing(dims, len(shape)):
        return prod(shape[d] for d in dims)
    assert sorted(dims) == list(range(len(dims))), "canonical reductions are over leading or trailing dimensions"
    return prod(shape[len(dims) :])


def _broadcast_class(op: Op, cols: int | None, cls: Class, size: int) -> tuple[int | None, Class] | None:
    if cls is Class.SCALAR:
        return cols, cls
    operand, shape = op.operands[0], op.result.shape
    kept = [d for axis, d in enumerate(op.attrs["broadcast_dimensions"]) if operand.shape[axis] > 1]
    if operand.type.size == op.result.type.size:
        return cols, cls
    if op.result.type.size != size or cls not in (Class.ROW, Class.COL):
        return None
    new = [d for d in range(len(shape)) if d not in kept and shape[d] > 1]
    if cls is Class.ROW and (not kept or min(new) > max(kept)):
        width = prod(shape[d] for d in new)
        return (width, cls) if cols in (None, width) else None
    if cls is Class.COL and (not kept or max(new) < min(kept)):
        return cols, cls
    return None


def _depth(dims: list[tuple[int, int]], zero: bool) -> int:
    count = 0
    for _, stride in reversed(dims):
        if (stride == 0) is not zero:
            break
        count += 1
    return count


def _suffix(dims: list[tuple[int, int]], *, zero: bool) -> int:
    depth = _depth(dims, zero)
    return prod(count for count, _ in dims[-depth:]) if depth else 1
