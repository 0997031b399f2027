# SPDX-License-Identifier: Apache-2.0
"""Instructions on tensors: what the recorder adds to the bare instruction, the same for both dialects.

Engines that the kernel left open are chosen here, and matmuls that do not say whether they accumulate learn it from
what their place in PSUM already holds.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from trnlab import isa
from trnlab.errors import ConstraintError
from trnlab.isa.alu import alu_op
from trnlab.isa.base import Engine
from trnlab.lang.dynamic_index import Lookup
from trnlab.lang.recorder import current
from trnlab.lang.storage import MemorySpace, refuse
from trnlab.lang.tensor import Tensor
from trnlab.lang.transfers import too_deep
from trnlab.program.access import MAX_FREE_DIMS
from trnlab.program.strided import ONE_ELEMENT, Dims, collapsed, row_major

_WHOLE = frozenset({"int32", "uint32"})
# To look a member up takes 200 ns in Python 3.11.
_VECTOR, _GPSIMD, _SCALAR = Engine.VECTOR, Engine.GPSIMD, Engine.SCALAR
_IN_PSUM, _IN_SBUF = MemorySpace.psum, MemorySpace.sbuf


def nc_matmul(
    dst: Tensor, stationary: Tensor, moving: Tensor, accumulate: bool | None = None, **options: Any
) -> None:
    """dst = stationary.T @ moving, or dst += it."""
    matmul("nc_matmul", dst, accumulate, stationary=stationary, moving=moving, **options)


def matmul(name: str, dst: Tensor, accumulate: bool | None, **arguments: Any) -> None:
    """An instruction that sums products in PSUM; accumulate=None adds where a matmul has written before."""
    if accumulate is None:
        accumulate = _continues_sum(dst)
    elif accumulate:
        current().accumulating.append(len(current().builder))
    if not accumulate:
        _starts_sum(dst)
    current().record(name, None, {"dst": dst, "accumulate": bool(accumulate), **arguments})


def _continues_sum(dst: Tensor) -> bool:
    """Whether a matmul has written there, to which another one adds."""
    sums = dst.storage.sums
    return (dst.offset, dst.shape, dst.strides) in sums or any(_covers(known, dst) for known in sums)


def _starts_sum(dst: Tensor) -> None:
    """A matmul overwrites what is there."""
    _forget(dst)
    region = (dst.offset, dst.shape, dst.strides)
    dst.storage.sums.add(region)
    dst.storage.wrote.add(region)


def _covers(known: tuple[int, tuple[int, ...], tuple[int, ...]], dst: Tensor) -> bool:
    """Whether a region without gaps holds every element of dst."""
    offset, shape, strides = known
    row = dst.storage.row
    if strides[1:] != row_major(shape[1:]):
        return False
    first, last = _span(offset % row, shape[1:], strides[1:])
    low, high = _span(dst.offset % row, dst.shape[1:], dst.strides[1:])
    above = dst.offset // row - offset // row
    return first <= low and high <= last and 0 <= above <= shape[0] - dst.shape[0]


def _forget(dst: Tensor) -> None:
    """A new accumulation group ends those it overlaps."""
    low, high = _span(dst.offset, dst.shape[1:], dst.strides[1:])
    row = dst.storage.row
    for region in list(dst.storage.sums):
        first, last = _span(region[0], region[1][1:], region[2][1:])
        if low % row <= last % row and first % row <= high % row:
            rows = range(region[0] // row, region[0] // row + region[1][0])
            if dst.offset // row < rows.stop and rows.start < dst.offset // row + dst.shape[0]:
                dst.storage.sums.discard(region)


def _span(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    return offset, offset + sum((n - 1) * s for n, s in zip(shape, strides))


def written(dst: Tensor) -> None:
    """Another engine wrote a PSUM tile: matmuls that leave `accumulate` open add to that."""
    if dst.storage.region is _IN_PSUM:
        region = (dst.offset, dst.shape, dst.strides)
        dst.storage.sums.add(region)
        dst.storage.wrote.add(region)


def _as_bits(operand: Any, dst: Tensor) -> Any:
    """Integers as wide as dst's in its format: operators on bits see patterns, not signs."""
    if not isinstance(operand, Tensor) or operand.format == dst.format:
        return operand
    one, other = operand.format.dtype, dst.format.dtype
    alike = one.kind in "iu" and other.kind in "iu" and one.itemsize == other.itemsize
    return operand.view(dst.format) if alike else operand


def tensor_tensor(dst: Tensor, data1: Tensor, data2: Tensor, op: str, engine: Engine | None = None) -> None:
    """dst = data1 op data2. Left open, the engine is the one whose arithmetic is exact for the formats.

    32-bit integers pass through float32 on VectorE, and with operators that are not defined on them.
    """
    known = alu_op(op)
    if known.bitvec:
        data1, data2 = _as_bits(data1, dst), _as_bits(data2, dst)
    whole = data1.format in _WHOLE and data2.format in _WHOLE and not known.bitvec
    if engine is None and not whole:
        engine = _VECTOR if _VECTOR in known.engines else _GPSIMD
    elif engine is None:
        exact = whole and known.integer and all(t.storage.region is _IN_SBUF for t in (dst, data1, data2))
        engine = _GPSIMD if exact or _VECTOR not in known.engines else _VECTOR
    options = {"exact": False} if whole and not (known.integer and engine is _GPSIMD) else {}
    record("tensor_tensor", engine, {"dst": dst, "data1": data1, "data2": data2, "op": op, **options})


def tensor_scalar(
    dst: Tensor,
    data: Tensor,
    op0: str,
    operand0: Any,
    reverse0: bool = False,
    op1: str | None = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Engine | None = None,
) -> None:
    """dst = (data op0 operand0) op1 operand1."""
    if engine is None and not _on_vector(op0, op1):
        engine = _GPSIMD
    if alu_op(op0).bitvec:
        data, operand0, operand1 = (_as_bits(x, dst) for x in (data, operand0, operand1))
    record(
        "tensor_scalar",
        engine,
        {
            "dst": dst,
            "data": data,
            "op0": op0,
            "operand0": _scalar(operand0),
            "reverse0": reverse0,
            "op1": op1,
            "operand1": _scalar(operand1),
            "reverse1": reverse1,
        },
    )


@cache
def _on_vector(*ops: str | None) -> bool:
    """Whether VectorE has all of these operators."""
    return all(op is None or _VECTOR in alu_op(op).engines for op in ops)


def _scalar(operand: Any) -> Any:
    return operand if operand is None or isinstance(operand, (Tensor, int)) else float(operand)


def tensor_reduce(dst: Tensor, op: str, data: Tensor, axes: int, negate: bool = False) -> None:
    """Reduce the last `axes` dimensions of data."""
    if alu_op(op).bitvec:
        data = _as_bits(data, dst)
    if isinstance(data.indirection, Lookup):
        current().emit("tensor_reduce", dst=dst, data=data, op=op, axes=1, negate=negate)
        written(dst)
        return
    outer, inner = _folded(data.strides, data.shape, axes)
    if not outer:  # all free dimensions, which the view of them merges as well
        record("tensor_reduce", None, {"dst": dst, "data": data, "op": op, "axes": len(inner), "negate": negate})
        return
    if len(outer) + len(inner) > MAX_FREE_DIMS:
        refuse(
            "a reduction over too many dimensions",
            limit=f"{MAX_FREE_DIMS} free dimensions that do not merge",
            got=list(data.shape),
            remedy="reduce one outer index at a time",
            code="TRN407",
        )
    source = data.access().with_dims(*outer, *inner)
    current().emit("tensor_reduce", dst=dst, data=source, op=op, axes=len(inner), negate=negate)
    written(dst)


@lru_cache(maxsize=65536)
def _folded(strides: tuple[int, ...], shape: tuple[int, ...], axes: int) -> tuple[Dims, Dims]:
    """The free dimensions that stay and those that go, the last `axes`, in as few as possible."""
    dims = tuple(zip(strides, shape))
    first = len(dims) - axes
    return collapsed(dims[1:first]), collapsed(dims[first:]) or ONE_ELEMENT


def emit(name: str, *, engine: Engine | None = None, **arguments: Any) -> None:
    """Any instruction; one that works element by element is cut where its patterns have too many dimensions."""
    record(name, engine, arguments)


def record(name: str, engine: Engine | None, arguments: dict[str, Any]) -> None:
    """`emit` for callers that have a dict: every copy of it shows in the time that small instructions take."""
    if engine is _SCALAR and name == "tensor_copy" and not current().chip.has("scalar_tensor_copy"):
        # ScalarE of the first generation copies as it computes, by way of float32.
        name, arguments = "activation", {"dst": arguments["dst"], "data": arguments["src"], "op": "copy"}
    dst = arguments.get("dst")
    if not isinstance(dst, Tensor):
        current().record(name, engine, arguments)
        return
    try:
        current().record(name, engine, arguments)
    except ConstraintError:
        deep = any(too_deep(a) for a in arguments.values() if isinstance(a, Tensor))
        if name not in _ELEMENTWISE or not deep:
            raise
        _emit_in_pieces(name, engine, dst, arguments)
    written(dst)


def _emit_in_pieces(name: str, engine: Engine | None, dst: Tensor, arguments: dict[str, Any]) -> None:
    """One instruction per index of the first free dimension that has several."""
    axis = next(i for i, n in enumerate(dst.shape) if i and n > 1)
    for i in range(dst.shape[axis]):
        emit(name, engine=engine, **{k: _piece(a, dst.shape, axis, i) for k, a in arguments.items()})


_ELEMENTWISE = frozenset(
    {
        "tensor_tensor",
        "tensor_scalar",
        "scalar_tensor_tensor",
        "tensor_copy",
        "activation",
        "memset",
        "reciprocal",
        "tensor_copy_predicated",
    }
)


def _piece(argument: Any, shape: tuple[int, ...], axis: int, i: int) -> Any:
    """Index i of dimension `axis` of what has the shape of the destination; the rest as it is."""
    same = isinstance(argument, Tensor) and argument.shape == shape
    return argument.slice(axis, i, i + 1) if same else argument


def redirect(value: Tensor, dst: Tensor, accumulate: bool | None = False) -> bool:
    """Let the instruction that made `value` just now write `dst` instead; False when that is not the same.

    accumulate: for a matmul, as in `matmul`; no other instruction adds to what is there, so that any but a matmul's
    value then stays where it is. An instruction computes in float32, so that a float32 value may go to any format.
    """
    if value.format is not dst.format and value.format != dst.format and str(value.format) != "float32":
        return False
    if current().last_sums():
        if accumulate is not True and _is_known(dst):
            adds = accumulate is None and _continues_sum(dst)
            if current().redirect(value, dst, accumulate=adds):
                if not adds:
                    _starts_sum(dst)
                return True
    elif accumulate is False and _is_known(dst) and current().redirect(value, dst):
        written(dst)
        return True
    taken = current().take_back(value)
    if taken is None:
        return False
    name, engine, arguments = taken
    instr = isa.REGISTRY[name]
    try:
        sums = name in ("nc_matmul", "nc_matmul_mx")
        kept = instr.reads_destination({**instr.attrs, **arguments})  # what it leaves of `value` is part of it
        if kept or (accumulate is not False and not sums):
            current().emit(name, engine=engine, **arguments)
            return False
        if sums:
            options = {k: v for k, v in arguments.items() if k not in ("dst", "accumulate")}
            matmul(name, dst, accumulate, **options)
        else:
            emit(name, engine=engine, **{**arguments, "dst": dst})
        return True
    except ConstraintError:
        current().emit(name, engine=engine, **arguments)
        return False


def _is_known(dst: Tensor) -> bool:
    """Whether it lies on chip, at an address that is known, in a pattern that instructions can carry."""
    try:
        return dst.on_chip and not dst.is_indirect() and bool(dst.recorded())
    except ConstraintError:
        return False


def accumulators(engine: Engine, partitions: int) -> Tensor:
    """The accumulation registers of an engine's first lanes, which the program keeps in a tile."""
    tile = current().once(
        ("accumulators", engine),
        lambda: current().tensor((128, 1), "float32", _IN_SBUF, name=f"{engine.name.lower()} accumulators"),
    )
    assert isinstance(tile, Tensor)
    return tile[0:partitions]


def accepts(name: str, attribute: str) -> bool:
    """Whether an instruction has an attribute or operand of that name."""
    instr = isa.REGISTRY.get(name)
    return instr is not None and (attribute in instr.attrs or any(s.name == attribute for s in instr.operands))
