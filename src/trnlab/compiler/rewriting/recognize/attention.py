# SPDX-License-Identifier: Apache-2.0
"""Attention that is written out becomes `trn.attention`, and its gradient `trn.attention_backward`.

For each product that a softmax follows, `region` says what its successors are. Where that comes to attention, the
results are replaced, and whatever nobody reads any more goes. If somebody reads scores or probabilities, or their
gradient, all stays as it was: they have to be in memory anyhow. Sums of the gradient of scores are results too: those
of what was added to them (`bias_gradient`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from trnlab.compiler.rewriting.recognize.axes import Dim, Dims, arrange, flat, restore, size_of, unify
from trnlab.compiler.rewriting.recognize.bias_gradient import BiasSum, bias_sums, given_sum
from trnlab.compiler.rewriting.recognize.facts import FORMATS, GRADIENT, PROBABILITIES, Terms, same_terms
from trnlab.compiler.rewriting.recognize.masks import Hiding, KnownValues, hiding_of, mask_values
from trnlab.compiler.rewriting.recognize.region import AttentionRegion, Context, RegionProduct
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.kernels.attention_blocks import WIDEST
from trnlab.kernels.attention_tiles import is_fused

_GRADIENTS = ("dq", "dk", "dv")


@dataclass(eq=False)
class AttentionMatch:
    """One attention, with the ops whose results it replaces."""

    region: AttentionRegion
    groups: tuple[Dim, Dim, Dim, Dim]  # axes of batch, heads, queries and keys
    shared: Dim  # of key heads
    scale: float
    hiding: Hiding
    out: RegionProduct
    gradients: dict[str, RegionProduct] = field(default_factory=dict)
    factor: float = 1.0  # of the gradients dq and dk as written
    masked: bool = False
    sums: dict[Op, BiasSum] = field(default_factory=dict)  # that give the gradient of what is added to scores

    @property
    def ends(self) -> set[Op]:
        """The ops that are replaced."""
        return {self.out.op, *(m.op for m in self.gradients.values()), *self.sums}


def recognize_attention(graph: Graph) -> bool:
    """Replace what is attention; whether there was any."""
    context = Context(graph.users(), {op: i for i, op in enumerate(graph.ops)})
    read, known = graph.wanted(), KnownValues()
    found = [f for op in graph.ops if _may_be(op, context) if (f := find(op, context, read, known)) is not None]
    if found:
        _replace(graph, found)
        remove_dead_ops(graph)
    return bool(found)


def _may_be(op: Op, context: Context) -> bool:
    """Whether a product is followed by an exponential a few ops later."""
    if op.name != "dot_general" or op.result.dtype not in FORMATS or 0 in op.result.shape:
        return False
    level = [op.result]
    for _ in range(12):
        users = [user for value in level for user in context.users.get(value, ())][:16]
        if any(user.name == "exponential" for user in users):
            return True
        level = [user.result for user in users if user.name not in ("dot_general", "gather", "scatter")]
    return False


# -- finding ---------------------------------------------------------------------------------------------------------


def find(op: Op, context: Context, read: set[Value], known: KnownValues) -> AttentionMatch | None:
    """The attention that starts with a product, or None."""
    region = AttentionRegion(op, context)
    region.explore()
    if region.out is None or not _alike([op, region.out.op], [region.out.op]):
        return None
    fact, _ = region.facts[region.out.inner]
    assert isinstance(fact, Terms)
    probable = same_terms(fact, PROBABILITIES)
    if probable is None or not math.isclose(probable, 1.0, rel_tol=1e-6) or fact.masked:
        return None
    groups, shared = _groups(region, known)
    hiding = hiding_of(fact.steps, groups, known)
    scale = math.prod((step.number for step in fact.steps if step.kind == "scale"), start=1.0)
    if hiding is None or not _fits(region, fused=scale if hiding.added else None):
        return None
    found = AttentionMatch(region, groups, shared, scale, hiding, region.out)
    if not _take_gradients(found) or region.escapes(found.ends, read):
        return None
    return found


def _alike(products: Sequence[Op], results: Sequence[Op]) -> bool:
    """Whether products read the format of the first one, in its precision, and no result of `results` is wider."""
    first = products[0]
    kind, precision = first.operands[0].dtype, first.attrs["precision"]
    return (
        kind in FORMATS
        and all(v.dtype is kind for p in products for v in p.operands)
        and all(
            p.attrs["precision"] == precision and not p.attrs["lhs_mx"] and not p.attrs["rhs_mx"] for p in products
        )
        and all(p.result.dtype in FORMATS and p.result.dtype.itemsize <= kind.itemsize for p in results)
    )


def _fits(region: AttentionRegion, fused: float | None) -> bool:
    """Whether heads are as large as attention takes them. fused: with that scale, by a fused kernel: others are
    slower with a bias than matrices in memory."""
    sizes, kind = (size_of(region.depth), size_of(region.value_depth())), region.product.operands[0].dtype
    return max(sizes) <= WIDEST and (fused is None or is_fused(*sizes, kind, fused))


def _groups(region: AttentionRegion, known: KnownValues) -> tuple[tuple[Dim, Dim, Dim, Dim], Dim]:
    """Axes of batch, heads, queries and keys, and those of key heads.

    Of the axes that only queries have, those of a mask are queries, or else the largest; the others are query heads
    that share a key head.
    """
    assert region.out is not None
    steps = region.facts[region.out.inner][0].steps
    masked = {axis for step in steps for dim in step.dims for axis in flat(dim)}
    own, pairs = flat(region.queries), flat(region.pairs)
    inside = [axis for axis in own if axis in masked] or list(own)
    queries = max(inside, key=lambda axis: axis.size, default=None)
    heads = tuple(axis for axis in own if axis is not queries)
    shared = pairs[-1:]
    return (pairs[:-1], shared + heads, (queries,) if queries else (), flat(region.keys)), shared


def _take_gradients(found: AttentionMatch) -> bool:
    """Find the products that give dq, dk and dv; whether they are those of this attention, if there are any."""
    region = found.region
    if region.into is None:
        return not region.others
    outer = {*flat(region.pairs), *flat(region.queries), *flat(region.value_depth())}
    if not outer.issuperset(_axes(_dout(region)[1])):
        return False
    for meeting in region.others:
        name = _gradient(meeting, region, found)
        if name is None or name in found.gradients:
            return False
        found.gradients[name] = meeting
    if not found.gradients:
        return not region.sums
    assert region.into is not None
    found.sums.update(bias_sums(region, found.groups))
    if len(found.sums) < len(region.sums):
        return False
    place, written = region.context.place, [m.op for m in found.gradients.values()]
    late = all(place[op] > place[found.out.op] for op in written)
    return late and _is_exact(found) and _alike([region.product, region.into.op, *written], written)


def _is_exact(found: AttentionMatch) -> bool:
    """Whether the gradient of a query that sees no key is as written: where scores are hidden by a number, it is
    masked."""
    return found.masked or found.hiding.number in (None, -math.inf)


def _gradient(meeting: RegionProduct, region: AttentionRegion, found: AttentionMatch) -> str | None:
    """Which of dq, dk and dv a product is."""
    fact, dims = region.facts[meeting.inner]
    if not isinstance(fact, Terms):
        return None
    contracted = {a for d in meeting.dims("contracting", meeting.side) for a in flat(dims[d])}
    over_keys = contracted == set(flat(region.keys))
    if not over_keys and contracted != set(flat(region.queries)):
        return None
    factor = same_terms(fact, GRADIENT)
    if factor is not None:
        if fact.gradient is not (region.into.op if region.into else None):
            return None
        ratio = factor / found.scale
        if found.gradients.keys() & {"dq", "dk"} and not math.isclose(ratio, found.factor, rel_tol=1e-6):
            return None
        found.factor, found.masked = ratio, fact.masked
        name, role = ("dq", "k") if over_keys else ("dk", "q")
    else:
        factor = same_terms(fact, PROBABILITIES)
        if factor is None or not math.isclose(factor, 1.0, rel_tol=1e-6) or over_keys or fact.masked:
            return None
        name, role = "dv", "dout"
    return name if _meets(meeting, dims, region, role) else None


def _meets(meeting: RegionProduct, dims: Dims, region: AttentionRegion, role: str) -> bool:
    """Whether the other operand has that role, and its dimensions stand for the same as those that they meet."""
    own = region.roles.get(role, {}).get(meeting.other)
    if own is None:
        return False
    for kind in ("batching", "contracting"):
        for mine, theirs in zip(meeting.dims(kind, meeting.side), meeting.dims(kind, 1 - meeting.side)):
            if not unify((dims[mine],), (own[theirs],)):
                return False
    batch = {a for d in meeting.dims("batching", meeting.side) for a in flat(dims[d])}
    return batch == set(flat(region.pairs))


def _axes(dims: Dims) -> Dim:
    return flat(axis for dim in dims for axis in dim)


def _dout(region: AttentionRegion) -> tuple[Value, Dims]:
    """The incoming gradient as it is first known."""
    place = region.context.place
    return min(region.roles["dout"].items(), key=lambda item: -1 if item[0].op is None else place[item[0].op])


# -- replacing -------------------------------------------------------------------------------------------------------


def _replace(graph: Graph, found: list[AttentionMatch]) -> None:
    """Put attention where its first result was."""
    b, now = GraphBuilder(graph.name), dict[Value, Value]()
    old = graph.ops
    forward = {f.out.op: _Writer(f, now) for f in found}
    writers = {m.op: (name, forward[f.out.op]) for f in found for name, m in f.gradients.items()}
    sums = {op: forward[f.out.op] for f in found for op in f.sums}
    for op in old:
        op.operands = tuple(now.get(v, v) for v in op.operands)
        b.loc, b.origin = op.loc, op.origin
        if op in forward:
            now[op.result] = forward[op].forward(b)
        elif op in writers:
            name, writer = writers[op]
            now[op.result] = writer.gradient(b, name)
        elif op in sums:
            now[op.result] = sums[op].gradient_of_bias(b, op)
        else:
            b.graph.ops.append(op)
            continue
        now[op.result].name = now[op.result].name or op.result.name
    graph.ops = b.graph.ops
    graph.outputs = [now.get(v, v) for v in graph.outputs]


class _Writer:
    """Writes one attention and, later, its gradients."""

    def __init__(self, found: AttentionMatch, now: dict[Value, Value]) -> None:
        self.found, self._now = found, now
        region = found.region
        batch, heads, queries, keys = found.groups
        self._of_q = (batch, heads, queries, flat(region.depth))
        self._of_k = (batch, found.shared, keys, flat(region.depth))
        self._of_v = (batch, found.shared, keys, flat(region.value_depth()))
        self._of_out = (batch, heads, queries, flat(region.value_depth()))
        self._made: dict[str, Value] = {}

    def forward(self, b: GraphBuilder) -> Value:
        """What the product of probabilities and values was."""
        found, region = self.found, self.found.region
        of = {"q": self._of_q, "k": self._of_k, "v": self._of_v}
        q, k, v = (self._operand(b, role, groups) for role, groups in of.items())
        self._bias, self._alive = mask_values(b, found.hiding, found.groups)
        if self._alive is not None and self._equal:
            q = b.multiply(q, b.broadcast_to(b.convert(self._alive, q.dtype), q.shape))
        attrs = {"causal": found.hiding.causal, "scale": found.scale, "precision": region.product.attrs["precision"]}
        self._attrs, bias = attrs, [] if self._bias is None else [self._bias]
        out, lse = b.append("trn.attention", (q, k, v, *bias), attrs).results
        self._operands, self._results = (q, k, v), (out, lse)
        return self._given(b, self._blank(b, out), self._of_out, found.out)

    @property
    def _equal(self) -> bool:
        """Whether the scores of a query that sees no key are all equal, not NaN."""
        number = self.found.hiding.number
        return number is not None and number > -math.inf

    def _blank(self, b: GraphBuilder, value: Value) -> Value:
        """NaN for a query that sees no key, where that is what it gives."""
        if self._alive is None or self._equal:
            return value
        return b.select(b.broadcast_to(self._alive, value.shape), value, math.nan)

    def _operand(self, b: GraphBuilder, role: str, groups: tuple[Dim, ...]) -> Value:
        """What the products read, with one dimension for each group."""
        roles = self.found.region.roles[role]
        given = (self.found.out.other,) if role == "v" else self.found.region.product.operands
        value = next(v for v in given if v in roles)
        return arrange(b, self._now.get(value, value), roles[value], groups)

    def gradient(self, b: GraphBuilder, name: str) -> Value:
        """What a product of the gradient was; the first one asked for writes the op."""
        if not self._made:
            self._write_backward(b)
        groups = {"dq": self._of_q, "dk": self._of_k, "dv": self._of_v}[name]
        return self._given(b, self._made[name], groups, self.found.gradients[name])

    def gradient_of_bias(self, b: GraphBuilder, op: Op) -> Value:
        """What a sum of gradients of scores was."""
        if not self._made:
            self._write_backward(b)
        return given_sum(b, op, self.found.sums[op], self._made["dbias"], self.found.groups)

    def _write_backward(self, b: GraphBuilder) -> None:
        found = self.found
        value, dims = _dout(found.region)
        dout = arrange(b, self._now.get(value, value), dims, self._of_out)
        bias = [] if self._bias is None else [self._bias]
        if not found.masked:
            dout = self._blank(b, dout)
        operands = (dout, *self._operands, *self._results, *bias)
        attrs = dict(self._attrs)
        if found.sums:
            apart = self._alive is not None or not all(each.of_batch for each in found.sums.values())
            attrs["dbias"] = "each" if apart else "sum"
        dq, dk, dv, *dbias = b.append("trn.attention_backward", operands, attrs).results
        if dbias:
            self._made["dbias"] = dbias[0]
            if self._alive is not None and self._equal:
                self._made["dbias"] = b.multiply(
                    dbias[0], b.broadcast_to(b.convert(self._alive, dbias[0].dtype), dbias[0].shape)
                )
        if self._alive is not None and self._equal:
            dq = b.multiply(dq, b.broadcast_to(b.convert(self._alive, dq.dtype), dq.shape))
        elif self._alive is not None and found.masked:
            dv = self._blank_values(b, dv)
        if not math.isclose(found.factor, 1.0, rel_tol=1e-6):
            dq, dk = (b.multiply(x, found.factor) for x in (dq, dk))
        self._made |= {"dq": dq, "dk": dk, "dv": dv}

    def _blank_values(self, b: GraphBuilder, dv: Value) -> Value:
        """NaN for the values of a head of which one query sees no key."""
        assert self._alive is not None
        q = self._operands[0]
        alive = b.reduce(b.broadcast_to(self._alive, (*q.shape[:3], 1)), [2, 3], "and")
        batch, heads = dv.shape[:2]
        alive = b.reduce(b.reshape(alive, (batch, heads, -1)), [2], "and")
        return b.select(b.broadcast_to(b.reshape(alive, (batch, heads, 1, 1)), dv.shape), dv, math.nan)

    def _given(self, b: GraphBuilder, value: Value, groups: tuple[Dim, ...], meeting: RegionProduct) -> Value:
        """A result in the dimensions and the format of the product that it replaces."""
        op, region = meeting.op, self.found.region
        inner, other = region.facts[meeting.inner][1], region.roles[self._role(meeting)][meeting.other]
        sides = (inner, other) if meeting.side == 0 else (other, inner)
        dims: list[Dim] = [inner[d] for d in meeting.dims("batching", meeting.side)]
        for side, own in enumerate(sides):
            used = {*meeting.dims("batching", side), *meeting.dims("contracting", side)}
            dims.extend(dim for d, dim in enumerate(own) if d not in used)
        return b.convert(restore(b, value, groups, tuple(dims)), op.result.dtype)

    def _role(self, meeting: RegionProduct) -> str:
        """What the other operand of a product is."""
        names = {m.op: name for name, m in self.found.gradients.items()}
        return {"dq": "k", "dk": "q", "dv": "dout"}[names[meeting.op]] if meeting.op in names else "v"
