# SPDX-License-Identifier: Apache-2.0
"""Fusion: which ops become one routine.

Ops are taken in order and join the group that computes one of their operands whenever its loop can compute them too.
Afterwards, when all readers are known, epilogues move to where they cost least, and loops that read the same merge.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from functools import reduce
from operator import or_

from trnlab.compiler.analysis.roles import find_updates
from trnlab.compiler.analysis.selection import SelectionRule
from trnlab.compiler.analysis.strided import BARRIER, LOOK_OPS, ValueView
from trnlab.compiler.convolutions import has_epilogue
from trnlab.compiler.fusing.admission import Admission, dot_cols, fits_psum, reduced_cols
from trnlab.compiler.fusing.classes import narrows, widens
from trnlab.compiler.fusing.dependencies import GroupDependencies
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind, ValueClass, resident, sums_over_rows
from trnlab.compiler.fusing.limits import beside_operators
from trnlab.compiler.fusing.order import bring_forward, gathered_when_read
from trnlab.compiler.fusing.recompute import levels_of, placed_late
from trnlab.compiler.fusing.tiles import is_seen
from trnlab.graph.collectives import exchanges_own_parts
from trnlab.graph.flops import GROUPED
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import COLLECTIVE, DOT, ELEMENTWISE, OPS, REDUCE, WINDOW

# Elements of a group that is merged with a later one only if that makes nobody wait: there is little to save.
SMALL = 4096
# Elements that are read again by a loop of its own where the loop that reads them anyway would make it wait.
QUICK = 1 << 16


class Partition(Admission):
    """Groups of a graph under construction. operators: whether a loop is an operator with its neighbours alone, see
    `limits`. epilogues: whether convolutions compute what follows them."""

    def __init__(
        self,
        graph: Graph,
        looks: dict[Value, ValueView],
        copies: set[Value],
        rules: Mapping[Op, SelectionRule],
        operators: bool = False,
        epilogues: bool = True,
    ) -> None:
        super().__init__(looks)
        self.operators, self.epilogues = operators, epilogues
        self.graph, self.copies, self.rules = graph, copies, rules
        self.groups: list[FusionGroup] = []
        self.readers: dict[Value, list[FusionGroup]] = {}  # groups that load a full value from outside, by its root
        self.dependencies = GroupDependencies()
        self._orders: list[tuple[FusionGroup, FusionGroup]] = []  # that no value demands
        self._updates = find_updates(graph)
        self.learns = bool(self._updates)
        self._late, self._levels = placed_late(graph), levels_of(graph)
        self._meets = exchanges_own_parts(graph)
        self._met: FusionGroup | None = None  # the collective before
        self._position = {op: i for i, op in enumerate(graph.ops)}
        self._users = graph.users()

    def form(self) -> None:
        """Put every op into a group."""
        for op in self.graph.ops:
            if op.name in LOOK_OPS:
                if op.result in self.copies:
                    self._new(GroupKind.MOVE, op)
            elif op.name in ("constant", "iota"):
                continue
            elif op.name in ("concatenate", "pad"):
                self._new(GroupKind.MOVE, op)
            elif OPS[op.name].kind == DOT:
                group = self._new(GroupKind.DOT, op, cols=dot_cols(op))
                group.classes.update(dict.fromkeys(op.results[1:], ValueClass.FINAL))
            elif op.name == "trn.take_along":
                self._new(GroupKind.GATHER, op)
            elif op.name in ("scatter", "trn.sum_along", "trn.sum_rows", "trn.put_rows"):
                self._new(GroupKind.SCATTER, op)
            elif op.name in GROUPED:
                self._new(GroupKind.GROUPED, op)
            elif op.name == "custom_call":
                self._new(GroupKind.CALL, op)
            elif op.name == "loop":
                self._new(GroupKind.LOOP, op)
            elif OPS[op.name].kind == COLLECTIVE:
                self._meet(self._new(GroupKind.COLLECTIVE, op))
            elif OPS[op.name].kind == "attention":
                self._new(GroupKind.ATTENTION, op)
            elif op.name == "convolution":
                shape = op.result.shape
                self._new(
                    GroupKind.CONVOLUTION, op, cols=op.result.type.size // shape[1] if has_epilogue(op) else None
                )
            elif OPS[op.name].kind == WINDOW:
                self._new(GroupKind.POOL, op)
            else:
                self._place(op)
        if not self.operators:
            self._sink_epilogues()
            self._merge_siblings()
            self._sink_epilogues(merged=True)

    def ordered(self) -> list[FusionGroup]:
        """All groups, in an order that respects their dependencies and otherwise follows the program."""
        ordered, self._users = self._ordered(), self.graph.users()
        outputs = {self.root(v) for v in self.graph.outputs}
        for group in ordered:
            if group.kind is GroupKind.ROWS and sums_over_rows(group):
                late = self._for_sums_alone(group, outputs)
                group.ops = [*(op for op in group.ops if op not in late), *(op for op in group.ops if op in late)]
            self._find_same(group)
        return ordered

    def _for_sums_alone(self, group: FusionGroup, outputs: set[Value]) -> set[Op]:
        """Sums over rows, and what only they read. Nobody has them before all rows are done: they come last in each
        tile, whatever order they are written in."""
        late: set[Op] = set()
        for op in reversed(group.ops):
            value = op.results[0]
            readers = self.computing_readers(value)
            if group.classes[value] is ValueClass.FINAL or (
                readers and late.issuperset(readers) and value not in outputs
            ):
                late.add(op)
        return late

    def _meet(self, group: FusionGroup) -> None:
        """Where ranks have programs of their own, each collective is behind the one before: all keep one order."""
        if self._meets and self._met is not None:
            self._precede(self._met, group)
        self._met = group

    # -- placing one op -----------------------------------------------------------------------------------------
    def _place(self, op: Op) -> None:
        for group in self._candidates(op):
            self._take_columns(group, op)
            if self._admits(group, op):
                self._add(group, op)
                self._absorb(group, op)
                return
        size, cols = op.result.type.size, None
        if OPS[op.name].kind == REDUCE:
            size, cols = op.operands[0].type.size, reduced_cols(op)
        group = self._new(GroupKind.ROWS, None, size=size, cols=cols)
        group.update = op in self._updates
        admitted = self._admits(group, op)
        assert admitted, f"{op.name} does not fit a group of its own"
        self._add(group, op)

    def _candidates(self, op: Op) -> list[FusionGroup]:
        """Groups that compute an operand, latest first; then loops over rows that read one anyway."""
        roots = [self.shared(v) for v in op.operands]
        kinds = (GroupKind.ROWS, GroupKind.DOT, GroupKind.CONVOLUTION)
        owners = {self.owner[v] for v in roots if v in self.owner and self.owner[v].kind in kinds}
        readers = {g for v in roots if v.type.size > 1 for g in self.readers.get(v, ()) if g.ops}
        beside = {g for g in readers - owners if g.size > QUICK or not self.dependencies.of(g.id) & ~self._needs(op)}
        by_age = sorted(owners, key=lambda g: -g.id)
        products = [g for g in by_age if g.kind is GroupKind.DOT and any(map(self._is_of_columns, owners))]
        found = [*products, *(g for g in by_age if g not in products), *sorted(beside, key=lambda g: -g.id)]
        if op in self._late:
            found = [g for g in found if max(self._late.get(o, self._levels[o]) for o in g.ops) >= self._late[op]]
        return [g for g in found if g.update == (op in self._updates)]

    def _needs(self, op: Op) -> int:
        """The groups that must have run before an op can be computed, a bit for each."""
        owners = [self.owner[root] for v in op.operands if (root := self.root(v)) in self.owner]
        return reduce(or_, (self.dependencies.upto(g.id) for g in owners), 0)

    def _is_of_columns(self, group: FusionGroup) -> bool:
        """Whether all that a loop computes varies along columns only: a bias in another format, of every row."""
        few = {ValueClass.COL, ValueClass.SCALAR}
        return group.kind is GroupKind.ROWS and bool(group.ops) and few.issuperset(group.classes.values())

    def _take_columns(self, group: FusionGroup, op: Op) -> None:
        """Have a product compute what an op of its result reads along columns: else a loop over all rows would, and
        be the op's instead of the product."""
        if group.kind is not GroupKind.DOT or OPS[op.name].kind != ELEMENTWISE or op.result.type.size != group.size:
            return
        for value in op.operands:
            other = self.owner.get(self.root(value))
            if other is None or other is group or other.size != group.size or not self._is_of_columns(other):
                continue
            readers = {r for made in other.ops for r in self.computing_readers(made.result)}
            if readers <= {op, *other.ops} and all(self._admits(group, made) for made in other.ops):
                self.merge(other, group)

    def _admits(self, group: FusionGroup, op: Op) -> bool:
        """Whether `group` can compute `op` too; fixes the group's columns and the result's class when it can."""
        if any(self._depends(self.owner.get(self.root(v)), group) for v in op.operands):
            return False
        if self.operators and not beside_operators(self, group, op):
            return False
        of_convolution = group.kind is GroupKind.CONVOLUTION and OPS[op.name].kind == ELEMENTWISE
        if of_convolution and (not self.epilogues or self._is_kept(group, op)):
            return False
        verdict = self.admitted(group, op)
        if verdict is None:
            return False
        group.cols, group.classes[op.result] = verdict
        return True

    def _is_kept(self, group: FusionGroup, op: Op) -> bool:
        """Whether others read what an op reads of a group: it is stored then, and further results cost more."""
        outputs = {self.root(v) for v in self.graph.outputs}
        read = {self.root(v) for v in op.operands if self.inside(v, group)}
        return any(v in outputs or {*self.computing_readers(v)} != {op} for v in read)

    def _sink_epilogues(self, merged: bool = False) -> None:
        """Move what a matmul's epilogue computes for one loop over rows alone into that loop: it is not stored
        then. So are casts to a wider format, whoever computes them; and when loops have been merged, only these."""
        readers = self._users
        outputs = {self.root(v) for v in self.graph.outputs}
        for group in self.groups:
            first = {GroupKind.DOT: 1, GroupKind.ROWS: 0}.get(group.kind, len(group.ops))
            for op in reversed(group.ops[first:]):
                if op.result in outputs or group.classes[op.result] is ValueClass.FINAL:
                    continue
                if any(u.name == BARRIER for u in readers.get(op.result, ())):
                    continue
                if self._loads_columns(group, op):
                    continue
                users = self.readers_of(op.result)
                user = users.pop() if len(users) == 1 else None
                if user is None or user is group or user.kind is not GroupKind.ROWS:
                    continue
                wide = widens(op) or (group.kind is GroupKind.ROWS and self._cut_otherwise(group, op, user))
                if (merged or group.kind is GroupKind.ROWS) and not wide:
                    continue
                if group.kind is GroupKind.DOT and narrows(op) and not self._saves(group, op, user):
                    continue
                if self.read_in_step(user, op.result) and self._admits(user, op):
                    group.ops.remove(op)
                    del group.classes[op.result]
                    user.outer = {v: c for v, c in user.outer.items() if self.root(v) is not op.result}
                    self._add(user, op)
                    user.ops.sort(key=self._position.__getitem__)

    def _cut_otherwise(self, group: FusionGroup, op: Op, user: FusionGroup) -> bool:
        """Whether an op lies in a loop of its own for the columns of that alone, and neither loop finds sums."""
        plain = all(OPS[o.name].kind == ELEMENTWISE for o in (*group.ops, *user.ops))
        apart = group.cols is not None and user.cols is not None and group.cols != user.cols
        return plain and apart and op.result.type.size == user.size and group.update == user.update

    def _saves(self, group: FusionGroup, last: Op, user: FusionGroup) -> bool:
        """Whether fewer bytes are stored where the loop over rows that reads a cast computes it, with all before it
        that can go there. The product may be stored in more bytes than the cast is."""
        gone = {last}
        for op in reversed(group.ops[1:]):
            readers = self.computing_readers(op.result)
            if readers and {*readers} <= {*gone, *user.ops} and not self._loads_columns(group, op):
                gone.add(op)

        def stored(computed: list[Op]) -> int:
            read = (op for op in computed if not {*self.computing_readers(op.result)} <= {*computed})
            return sum(op.result.type.nbytes for op in read)

        return stored([op for op in group.ops if op not in gone]) < stored(group.ops)

    def _loads_columns(self, group: FusionGroup, op: Op) -> bool:
        """Whether a loop over rows that computes an op of `group` would load what it reads for each 128 of them."""
        return any(group.outer.get(v) is ValueClass.COL and not resident(v, group) for v in op.operands)

    def shared(self, value: Value) -> Value:
        """What makes loops that read a value belong together: its root, or the barrier before that. What is computed
        again behind a barrier must not be computed along with the first time, or it is kept in between."""
        seen = value
        while seen.op is not None and seen.op.name in LOOK_OPS and seen not in self.copies:
            if seen.op.name == BARRIER:
                return seen
            seen = seen.op.operands[0]
        return self.root(value)

    def read_in_step(self, user: FusionGroup, value: Value) -> bool:
        """Whether a group reads the elements of a value in their order in memory, so that it can compute it too."""
        looks = [(op, v) for op in user.ops for v in op.operands if self.root(v) is value]
        in_order = all(op.name != "gather" and self.strided(v).is_contiguous for op, v in looks)
        return in_order and all(is_seen(v, value, user.kind) for _, v in looks)

    def readers_of(self, value: Value) -> set[FusionGroup | None]:
        """The groups that read a value, views looked through."""
        return {self.owner.get(r.result) for r in self.computing_readers(value)}

    def computing_readers(self, value: Value) -> list[Op]:
        """The ops that read a value, views looked through."""
        found = []
        for op in self._users.get(value, ()):
            is_view = op.name in LOOK_OPS and op.result not in self.copies
            found += self.computing_readers(op.result) if is_view else [op]
        return found

    def _merge_siblings(self) -> None:
        """Loops over rows that read the same tensor read it once."""
        for value in list(self.readers):
            beside = list(dict.fromkeys(g for g in self.readers[value] if g.ops))
            for i, group in enumerate(beside):
                for other in beside[i + 1 :]:
                    if group.ops and other.ops and self._mergeable(group, other):
                        self.merge(group, other)

    def _find_same(self, group: FusionGroup) -> None:
        """Full values from outside that are the same elements in the same order, in other shapes: loaded once."""
        first: dict[tuple[Value, int, tuple[tuple[int, int], ...]], Value] = {}
        for op in group.ops:
            for value in op.operands:
                if group.outer.get(value) is ValueClass.FULL and op.name != "gather":
                    seen = self.strided(value)
                    group.same[value] = first.setdefault((seen.base, seen.offset, seen.collapsed()), value)

    # -- joining two groups -------------------------------------------------------------------------------------
    def _absorb(self, group: FusionGroup, op: Op) -> None:
        """Take in the other groups of rows that compute operands of `op`, which has just joined `group`."""
        if group.kind is not GroupKind.ROWS or op in self._late:
            return
        for value in op.operands:
            other = self.owner.get(self.shared(value))
            if other is not None and other is not group and self._mergeable(other, group):
                self.merge(other, group)

    def _mergeable(self, a: FusionGroup, b: FusionGroup) -> bool:
        if a.kind is not GroupKind.ROWS or a.size != b.size or a.update != b.update:
            return False
        if a.size <= SMALL and self._waits_for_more(b, a) and not self._is_for_alone(a, b):
            return False
        if a.cols is not None and b.cols is not None and a.cols != b.cols:
            return False
        sums = sum(map(sums_over_rows, (a, b)))
        if sums and not fits_psum(sums, a.cols or b.cols or 0):
            return False
        if any(v in a.outer and a.outer[v] is not cls for v, cls in b.outer.items()):
            return False
        if any(self._reads_final(x, y) for x, y in ((a, b), (b, a))):
            return False
        between = self.dependencies.between
        return not (between(a.id, b.id) or between(b.id, a.id))

    def _is_for_alone(self, a: FusionGroup, b: FusionGroup) -> bool:
        """Whether nobody but `b` reads what `a` computes."""
        readers = {r for op in a.ops for r in self.computing_readers(op.result)}
        return readers <= {*a.ops, *b.ops} and not {op.result for op in a.ops} & {*self.graph.outputs}

    def _waits_for_more(self, late: FusionGroup, early: FusionGroup) -> bool:
        """Whether `late` must wait for groups that `early` need not wait for."""
        return bool(self.dependencies.of(late.id) & ~self.dependencies.upto(early.id))

    def _reads_final(self, reader: FusionGroup, writer: FusionGroup) -> bool:
        """Whether `reader` needs something of `writer` that its loop could not have while it runs."""
        for op in reader.ops:
            for value in op.operands:
                if self.inside(value, writer):
                    seen = self.class_of(value, writer, writer.cols)
                    from_memory = op.name == "gather"  # rows of a table that is complete
                    if seen is None or seen[1] is ValueClass.FINAL or from_memory:
                        return True
        return False

    def merge(self, gone: FusionGroup, into: FusionGroup) -> None:
        """Let one group compute what another did."""
        inner = {v for v in into.outer if self.owner.get(self.root(v)) is gone}
        anchor = into.ops[: into.kind is not GroupKind.ROWS]  # stays the first, whatever comes before it in the graph
        into.ops = [*anchor, *sorted([*gone.ops, *into.ops[len(anchor) :]], key=self._position.__getitem__)]
        into.cols = into.cols or gone.cols
        into.classes.update(gone.classes)
        into.outer = {v: c for v, c in {**gone.outer, **into.outer}.items() if v not in inner}
        into.loads |= gone.loads
        for value in gone.classes:
            self.owner[value] = into
        for value, cls in gone.outer.items():
            if cls is ValueClass.FULL:
                self.readers.setdefault(self.shared(value), []).append(into)
        gone.ops, gone.classes, gone.outer = [], {}, {}  # what has no ops is no group any more
        self.dependencies.merge(gone.id, into.id)

    # -- dependencies -------------------------------------------------------------------------------------------
    def _depends(self, producer: FusionGroup | None, group: FusionGroup) -> bool:
        """Whether adding a read of `producer` to `group` would close a circle."""
        return producer is not None and producer is not group and self.dependencies.runs_before(group.id, producer.id)

    def _new(self, kind: GroupKind, op: Op | None, *, size: int = 0, cols: int | None = None) -> FusionGroup:
        group = FusionGroup(len(self.groups), kind, size if op is None else op.result.type.size, cols)
        self.groups.append(group)
        self.dependencies.new()
        if op is not None:
            for result in op.results:
                group.classes[result] = ValueClass.FULL
            self._add(group, op)
        return group

    def _add(self, group: FusionGroup, op: Op) -> None:
        group.ops.append(op)
        for result in op.results:
            self.owner[result] = group
        before = 0
        for value in op.operands:
            producer = self.owner.get(self.root(value))
            if group.kind is GroupKind.ROWS and producer is not group and group.outer.get(value) is ValueClass.FULL:
                self.readers.setdefault(self.shared(value), []).append(group)
            if producer is not None and producer is not group:
                before |= self.dependencies.upto(producer.id)
        self.dependencies.require(before, group.id)

    def _precede(self, first: FusionGroup, then: FusionGroup) -> None:
        """Have one group run before another though that does not read it."""
        self._orders.append((first, then))
        self.dependencies.require(self.dependencies.upto(first.id), then.id)

    def _place_of(self, group: FusionGroup) -> int:
        """Where a group stands in the program: after its last op, a matmul with an update, or whose squares are
        asked for, before these."""
        late = (op in self._updates or op.name == "trn.sum_of_squares" for op in group.ops)
        ops = [op for op, is_late in zip(group.ops, late) if group.update or not is_late]
        return max(self._position[op] for op in ops or group.ops)

    def _read_before_overwritten(self) -> None:
        """Have groups that read an input run before the one that overwrites it, where that closes no circle."""
        readers: dict[Value, dict[FusionGroup, None]] = {}
        for group in self.groups:
            for op in group.ops:
                for value in op.operands:
                    readers.setdefault(self.root(value), {})[group] = None
        for out, source in self.graph.aliases.items():
            writer = self.owner.get(self.graph.outputs[out])
            for group in readers.get(self.graph.inputs[source], ()):
                if (
                    writer is not None
                    and group is not writer
                    and not self.dependencies.runs_before(writer.id, group.id)
                ):
                    self._precede(group, writer)

    def _ordered(self) -> list[FusionGroup]:
        self._read_before_overwritten()
        live = [g for g in self.groups if g.ops]
        last: dict[int, float] = {g.id: self._place_of(g) for g in live}
        direct: dict[int, set[int]] = {g.id: set() for g in live}
        readers: dict[int, set[int]] = {g.id: set() for g in live}
        for group in live:
            for op in group.ops:
                for value in op.operands:
                    producer = self.owner.get(self.root(value))
                    if producer is not None and producer is not group:
                        direct[group.id].add(producer.id)
                        readers[producer.id].add(group.id)
        updating = [g for g in live if g.kind is GroupKind.DOT and any(op in self._updates for op in g.ops)]
        for group in updating:
            last[group.id] = self._soonest(group, {g.id for g in updating}, last, direct, readers)
        for first, then in self._orders:
            direct[then.id].add(first.id)
            readers[first.id].add(then.id)
        bring_forward(last, direct, readers)
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
        return ordered if self._meets else gathered_when_read(ordered, direct)

    def _soonest(
        self,
        group: FusionGroup,
        updating: set[int],
        last: dict[int, float],
        direct: dict[int, set[int]],
        readers: dict[int, set[int]],
    ) -> float:
        """A place for a product with its update: its own, but no later than behind the first of the others that need
        what it waits for last, which somebody waits for. Frameworks differ in when they ask for a weight's gradient,
        and for the step's number and its factors, which wait for nothing."""
        waiting = (
            before for before in direct[group.id] if self.dependencies.of(before) or self.groups[before].size > 1
        )
        producer = max(waiting, key=last.__getitem__, default=None)
        if producer is None:
            return last[group.id]
        others = [last[r] for r in readers[producer] if r not in updating and last[r] > last[producer]]
        return max(last[producer], min(last[group.id], min(others, default=last[producer]) + 0.5))
