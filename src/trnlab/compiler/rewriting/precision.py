# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: what the PE array reads is cast to bfloat16; sums, statistics, state and everything else stay
fp32.

The same rule as the vendor compiler's `--auto-cast matmult --auto-cast-type bf16`, for the products that the user
asked for: running sums and sums of rows by index, which the PE array happens to compute, say `precision` HIGHEST, or
are other ops, and stay fp32. An op that says BFLOAT16 is cast in every session. Casts are put where they cost
least: on what a view looks at rather than on the view, so that whatever computes the value can write it in bfloat16
at once.

A sum over rows is a product with ones on the PE array. Where its operand goes to matmuls in bfloat16 and would be
kept in fp32 for the sum alone, as a layer's output gradient is for the bias gradient, the sum reads what the matmuls
read, as it does under PyTorch's autocast. It is added up in fp32.
"""

from __future__ import annotations

from collections.abc import Mapping

from trnlab.compiler.analysis.strided import VIEW_OPS
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import DOT, ELEMENTWISE, OPS
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import Rule, made_by, rewrite
from trnlab.numerics.dtypes import DType, bfloat16, float8_e4m3, float8_e5m2, float32, int8

BYTES = (int8, float8_e4m3, float8_e5m2)  # formats of weights that engines widen in SBUF, see kernels.blocks
MOVES = (*VIEW_OPS, "concatenate")
MOST_READS = 2  # of a matrix in fp32: with more, a copy in bfloat16 is cheaper
WIDEST_SUMS = 4096  # columns whose sums PSUM holds in fp32, beside whatever else a loop over rows computes


def cast_matmuls(graph: Graph, *, to_bf16: bool) -> None:
    """Insert casts before every op that the PE array computes, if wanted. Results keep their formats.

    to_bf16: whether ops that leave their precision open are meant, too.
    """
    meant = ("DEFAULT", "BFLOAT16") if to_bf16 else ("BFLOAT16",)
    if to_bf16 or any(op.attrs.get("precision") in meant for op in graph.ops):
        rewrite(graph, {**dict.fromkeys(MOVES, _widen_after), **_Casts(meant).rules()})
    if to_bf16:
        kept, users = graph.wanted(), graph.users()
        rewrite(graph, {"reduce": lambda op, b: _sum_of_cast(op, b, users, kept)})


def _sum_of_cast(op: Op, b: GraphBuilder, users: Mapping[Value, list[Op]], kept: set[Value]) -> Value | None:
    """A sum over rows of the cast that matmuls read anyway, where nobody else needs what is cast."""
    x, dims = op.operands[0], op.attrs["dimensions"]
    if op.attrs["kind"] != "add" or x.dtype is not float32 or dims != tuple(range(len(dims))) or not dims:
        return None
    looks = []
    while x.op is not None and x.op.name == "reshape":
        looks.append(x.shape)
        x = x.op.operands[0]
    if not (op.result.type.size > WIDEST_SUMS or _is_epilogue(x)) or x in kept or not _only_cast(x, users):
        return None
    low = b.convert(x, bfloat16)
    for shape in reversed(looks):
        low = b.reshape(low, shape)
    return b.reduce(b.convert(low, float32), dims)


def _only_cast(x: Value, users: Mapping[Value, list[Op]]) -> bool:
    """Whether some reader of x casts it to bfloat16 and all others sum it up, views looked through."""
    readers, casts = list(users.get(x, ())), 0
    while readers:
        op = readers.pop()
        if op.name == "reshape":
            readers += users.get(op.result, ())
        elif op.name == "convert" and op.result.dtype is bfloat16:
            casts += 1
        elif op.name != "reduce":
            return False
    return casts > 0


def _is_epilogue(x: Value) -> bool:
    """Whether elementwise ops make x of a product, tile by tile."""
    todo, seen = [x], {x}
    while todo:
        value = todo.pop()
        if made_by(value, "dot_general"):
            return True
        if value.op is not None and (value.op.name == "reshape" or OPS[value.op.name].kind == ELEMENTWISE):
            fresh = [v for v in value.op.operands if v.type.size == x.type.size and v not in seen]
            todo += fresh
            seen.update(fresh)
    return False


def cast_loads(graph: Graph, by_transfers: bool) -> None:
    """Let products cast what is given in another format and read in bfloat16 by one or two of them alone, such as
    weights: transfers do it on the way in for fp32 (where they can: `by_transfers`), engines for what has a byte.

    A copy in bfloat16 costs four bytes an element to read, two to write, and two for each product that reads it; fp32
    costs four for each product. A transfer that makes two bytes of one would take as long as one of two; so weights
    that have a byte each (int8, fp8) come as they are.
    """
    readers = _readers_of_casts(graph, (float32, *BYTES) if by_transfers else BYTES)
    wanted = {
        cast for cast, ops in readers.items() if ops is not None and (len(ops) <= MOST_READS or _of_bytes(cast))
    }
    b = GraphBuilder(graph.name)
    for op in graph.ops:
        sides = [v if _root(v) in wanted else None for v in op.operands] if OPS[op.name].kind == DOT else []
        for name, first in (("lhs", 0), ("rhs", 1)) if sides else ():
            if all(sides[first::2]):
                op.attrs = {**op.attrs, f"{name}_cast": bfloat16.name}
                replaced = [_uncast(b, v) if i % 2 == first else v for i, v in enumerate(op.operands)]
                op.operands = tuple(replaced)
        b.graph.ops.append(op)
    graph.ops = b.graph.ops
    remove_dead_ops(graph)


def _readers_of_casts(graph: Graph, formats: tuple[DType, ...]) -> dict[Value, list[Op] | None]:
    """The products that read each cast of an input of these formats to bfloat16; None where others do."""
    found: dict[Value, list[Op] | None] = {}
    for op in graph.ops:
        sides: list[set[Value]] = [{_root(v) for v in op.operands[i::2]} for i in (0, 1)]
        for i, value in enumerate(op.operands):
            cast = _root(value)
            convert = made_by(cast, "convert")
            if convert is None or op.name in VIEW_OPS:
                continue
            source = _unbarred(convert.operands[0])
            given = source.op is None and source.dtype in formats
            plain = OPS[op.name].kind == DOT and not op.attrs.get("lhs_mx")
            same = all(v.op is not None and v.op.name == "convert" for v in sides[i % 2])
            pair = given and plain and same and cast.dtype is bfloat16
            known = found.setdefault(cast, [])
            found[cast] = [*known, op] if pair and known is not None else None
    for value in graph.outputs:
        found[_root(value)] = None
    return found


def _of_bytes(cast: Value) -> bool:
    """Whether what is cast has a byte an element, which products read quicker than a copy of it."""
    assert cast.op is not None
    return cast.op.operands[0].dtype in BYTES


def _unbarred(value: Value) -> Value:
    """The same value before barriers."""
    while value.op is not None and value.op.name == "optimization_barrier":
        value = value.op.operands[0]
    return value


def _root(value: Value) -> Value:
    """What a value is a look at."""
    while value.op is not None and value.op.name in VIEW_OPS:
        value = value.op.operands[0]
    return value


def _uncast(b: GraphBuilder, value: Value) -> Value:
    """The same look at what was cast."""
    assert value.op is not None
    if value.op.name not in VIEW_OPS:
        return value.op.operands[0]
    return b.append(value.op.name, (_uncast(b, value.op.operands[0]),), value.op.attrs).results[0]


def _widen_after(op: Op, b: GraphBuilder) -> Value | None:
    """Move first, widen to fp32 afterwards: half the bytes, and the narrow form stays at hand for the next matmul."""
    operands = op.operands
    sources = [v.op.operands[0] for v in operands if v.op is not None and v.op.name == "convert"]
    if (
        len(sources) < len(operands)
        or any(v.dtype is not bfloat16 for v in sources)
        or operands[0].dtype is not float32
    ):
        return None
    return b.convert(b.append(op.name, sources, op.attrs).results[0], float32)


class _Casts:
    """The rules of one graph, for ops of the precisions `meant`, and the casts made so far."""

    def __init__(self, meant: tuple[str, ...]) -> None:
        self._meant = meant
        self._cast: dict[Value, Value] = {}

    def rules(self) -> dict[str, Rule]:
        """What to do at each op that the PE array computes."""
        return {
            "dot_general": self._dot,
            "convolution": self._dot,
            "trn.grouped_dot": self._dot,
            "trn.grouped_outer": self._dot,
            "trn.attention": self._attention,
            "trn.attention_backward": self._attention,
        }

    def _low(self, b: GraphBuilder, value: Value) -> Value:
        """The value in bfloat16: as it was before it was widened, or cast at the root of its views."""
        if value.dtype is not float32:
            return value
        if value not in self._cast:
            op = value.op
            if op is not None and op.name == "convert" and op.operands[0].dtype is bfloat16:
                self._cast[value] = op.operands[0]
            elif op is not None and op.name in MOVES:
                lowered = [self._low(b, v) for v in op.operands]
                self._cast[value] = b.append(op.name, lowered, op.attrs).results[0]
            else:
                self._cast[value] = b.convert(value, bfloat16)
        return self._cast[value]

    def _dot(self, op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
        if op.attrs["precision"] not in self._meant:
            return None
        return b.append(op.name, tuple(self._low(b, v) for v in op.operands), op.attrs).results

    def _attention(self, op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
        if op.attrs["precision"] not in self._meant:
            return None
        forward = ("q", "k", "v", "bias")
        names = forward if op.name == "trn.attention" else ("dout", "q", "k", "v", "out", "lse", "bias", "heard")
        given = tuple(
            v if name in ("lse", "bias", "heard") else self._low(b, v) for name, v in zip(names, op.operands)
        )
        results = b.append(op.name, given, op.attrs).results
        return tuple(r if r.dtype is old.dtype else b.convert(r, old.dtype) for r, old in zip(results, op.results))
