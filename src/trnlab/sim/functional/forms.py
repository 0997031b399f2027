# SPDX-License-Identifier: Apache-2.0
"""Which kernel an instruction gets, and with which numbers; where no kernel keeps its meaning, it gets none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from trnlab.isa.activations import activation_op
from trnlab.isa.alu import alu_op
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import DType, float32
from trnlab.sim.functional import elementwise as ew
from trnlab.sim.functional import kernels as k
from trnlab.sim.functional.formats import COMPILED

_EXACT_INTEGERS = 1 << 24  # float32 holds every whole number up to here

# Slots of the operands, by instruction and operand name.
SLOTS: dict[str, dict[str, int]] = {
    "nc_matmul": {"stationary": k.A, "moving": k.B},
    "nc_transpose": {"data": k.A},
    "activation": {"reduce_res": k.RES, "data": k.A, "scale": k.S0, "bias": k.S1},
    "reciprocal": {"data": k.A},
    "memset": {},
    "tensor_copy": {"src": k.A},
    "tensor_tensor": {"data1": k.A, "data2": k.B},
    "tensor_scalar": {"data": k.A, "operand0": k.S0, "operand1": k.S1},
    "scalar_tensor_tensor": {"data": k.A, "operand0": k.S0, "operand1": k.B},
    "tensor_reduce": {"data": k.A},
    "iota": {},
    "affine_select": {"on_true": k.A},
    "select_reduce": {"reduce_res": k.RES, "on_true": k.A, "predicate": k.B, "on_false": k.S0},
    "tensor_copy_predicated": {"src": k.A, "predicate": k.B},
    "dropout": {"data": k.A, "prob": k.S0, "seed": k.S1},
    "rng": {"key": k.B},
    "dma_copy": {"src": k.A, "index": k.B},
}


@dataclass(frozen=True)
class OperandUsage:
    """What the choice of a kernel may depend on.

    formats: of the operands, by slot; counts: free dims of slot A; complete: whether every operand has a slot.
    """

    attrs: Mapping[str, Any]
    formats: Mapping[int, DType]
    counts: tuple[int, ...]
    engine: Engine
    complete: bool = True

    def value(self, name: str, default: float = 0.0) -> float:
        """A number among the attributes; where an operand took its place, `default`."""
        found = self.attrs.get(name)
        return default if found is None else float(found)


@dataclass(frozen=True)
class BoundKernel:
    """A kernel and its numbers, see `kernels`."""

    kind: int
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()


SLOW = BoundKernel(k.MEANING)


def form_of(name: str, usage: OperandUsage) -> BoundKernel:
    """The form of an instruction in one usage: by definition where an operand or a format is unknown to the loops."""
    translate = _FORMS.get(name)
    known = usage.complete and all(dtype.code in COMPILED for dtype in usage.formats.values())
    return translate(usage) if translate and known else SLOW


def _matmul(u: OperandUsage) -> BoundKernel:
    if u.attrs.get("perf_mode", "none") != "none":
        return SLOW
    if u.attrs.get("is_transpose"):
        return SLOW if u.attrs["accumulate"] else BoundKernel(k.TRANSPOSING_MATMUL)
    if u.formats[k.DST] is not float32:
        return SLOW
    return BoundKernel(k.MATMUL, (int(u.attrs["accumulate"]),))


def _transpose(u: OperandUsage) -> BoundKernel:
    return BoundKernel(k.TRANSPOSE)


def _copy(u: OperandUsage) -> BoundKernel:
    return BoundKernel(k.COPY)


def _dma_copy(u: OperandUsage) -> BoundKernel:
    if k.B not in u.formats:
        return BoundKernel(k.COPY)
    scatters, skips = u.attrs.get("indirect", "src") == "dst", u.attrs.get("oob_mode", "error") == "skip"
    if not u.attrs.get("per_row", True):
        return SLOW
    if not (scatters or skips):
        return BoundKernel(k.GATHER)
    if u.formats[k.DST] is not u.formats[k.A]:
        return SLOW  # what stays is rounded anew with the rest
    return BoundKernel(k.MOVE_ROWS, (int(scatters), 0, int(skips)))


def _is_int32(dtype: DType) -> bool:
    return dtype.is_integer and dtype.itemsize == 4


def _activation(u: OperandUsage) -> BoundKernel:
    code = activation_op(u.attrs["op"]).code
    if code in ew.SLOW_FUNCTIONS:
        return SLOW
    scale, bias = u.value("scale", 1.0), u.value("bias") or -0.0  # minus zero added changes nothing, not even -0.0
    scaled = k.S0 in u.formats or k.S1 in u.formats or (scale, bias) != (1.0, 0.0)
    if u.attrs["op"] in ("copy", "identity"):
        code = ew.NO_FUNCTION
        if not scaled and k.RES not in u.formats and not _is_int32(u.formats[k.A]):
            return BoundKernel(k.COPY)
    ints = [0] * k.INTS
    ints[k.OP0], ints[k.HAS_SCALE] = code, int(scaled)
    return BoundKernel(k.ACTIVATION, tuple(ints), (scale, bias))


def _reciprocal(u: OperandUsage) -> BoundKernel:
    return BoundKernel(k.ACTIVATION, (ew.RECIPROCAL,))


def _memset(u: OperandUsage) -> BoundKernel:
    value = u.value("value")
    if u.formats[k.DST].is_integer and abs(value) > _EXACT_INTEGERS:
        return SLOW
    return BoundKernel(k.FILL, (), (0.0, 0.0, value))


def _tensor_tensor(u: OperandUsage) -> BoundKernel:
    op = alu_op(u.attrs["op"])
    if op.code not in ew.BINARY or all(_is_int32(u.formats[s]) for s in (k.A, k.B)):
        return SLOW  # bits, and 32-bit integers that stay exact
    return BoundKernel(k.TENSOR_TENSOR, (op.code,))


def _scalar_operator(name: str | None, reverse: bool) -> int | None:
    """Code of an operator between a tile and a scalar, -1 for none; None where there is no loop for it."""
    if name is None:
        return -1
    op = alu_op(name)
    code = ew.MIRRORED.get(op.code, op.code) if reverse and not op.unary else op.code
    return None if op.bitvec or code not in ew.WITH_SCALAR else code


def _tensor_scalar(u: OperandUsage) -> BoundKernel:
    first = _scalar_operator(u.attrs["op0"], u.attrs["reverse0"])
    second = _scalar_operator(u.attrs["op1"], u.attrs["reverse1"])
    if first is None or second is None:
        return SLOW
    return BoundKernel(k.TENSOR_SCALAR, (first, second), (u.value("operand0"), u.value("operand1")))


def _scalar_tensor_tensor(u: OperandUsage) -> BoundKernel:
    first = _scalar_operator(u.attrs["op0"], u.attrs["reverse0"])
    second = alu_op(u.attrs["op1"]).code
    if first is None or second not in ew.BINARY:
        return SLOW
    return BoundKernel(k.SCALAR_TENSOR_TENSOR, (first, second, int(u.attrs["reverse1"])), (u.value("operand0"),))


def _tensor_reduce(u: OperandUsage) -> BoundKernel:
    op = alu_op(u.attrs["op"]).code
    if op not in ew.FOLDS:
        return SLOW
    folded = prod(u.counts[len(u.counts) - u.attrs["axes"] :])
    return BoundKernel(k.REDUCE, (op, 0, int(u.attrs["negate"]), folded))


def _ramp(u: OperandUsage) -> tuple[int, ...]:
    pattern = [(0, 1)] * 4 + [tuple(dim) for dim in u.attrs["pattern"]]
    numbers = [number for dim in pattern[-4:] for number in dim]
    return (0, 0, 0, 0, u.attrs["offset"], u.attrs["channel_multiplier"], *numbers)


def _iota(u: OperandUsage) -> BoundKernel:
    return BoundKernel(k.IOTA, _ramp(u))


def _affine_select(u: OperandUsage) -> BoundKernel:
    if _is_int32(u.formats[k.A]):
        return SLOW
    ints = list(_ramp(u))
    ints[k.OP0] = alu_op(u.attrs["cmp_op"]).code
    return BoundKernel(k.AFFINE_SELECT, tuple(ints), (0.0, 0.0, u.value("on_false")))


def _select_reduce(u: OperandUsage) -> BoundKernel:
    return BoundKernel(k.SELECT_REDUCE, (0, 0, int(u.attrs["reverse_pred"])), (u.value("on_false"),))


def _copy_predicated(u: OperandUsage) -> BoundKernel:
    if _is_int32(u.formats[k.DST]):
        return SLOW
    return BoundKernel(k.COPY_PREDICATED, (0, 0, int(u.attrs["reverse_pred"])), (0.0, 0.0, u.value("src")))


def _dropout(u: OperandUsage) -> BoundKernel:
    if _is_int32(u.formats[k.DST]):
        return SLOW
    return BoundKernel(k.DROPOUT, (int(u.value("seed")),), (u.value("prob"),))


def _rng(u: OperandUsage) -> BoundKernel:
    if k.B not in u.formats or not _is_int32(u.formats[k.DST]):
        return SLOW
    return BoundKernel(k.NUMBERED_BITS, (0, 0, 0, 0, u.attrs["first"], u.attrs["step"]))


_FORMS: dict[str, Callable[[OperandUsage], BoundKernel]] = {
    "nc_matmul": _matmul,
    "nc_transpose": _transpose,
    "activation": _activation,
    "reciprocal": _reciprocal,
    "memset": _memset,
    "tensor_copy": _copy,
    "tensor_tensor": _tensor_tensor,
    "tensor_scalar": _tensor_scalar,
    "scalar_tensor_tensor": _scalar_tensor_tensor,
    "tensor_reduce": _tensor_reduce,
    "iota": _iota,
    "affine_select": _affine_select,
    "select_reduce": _select_reduce,
    "tensor_copy_predicated": _copy_predicated,
    "dropout": _dropout,
    "rng": _rng,
    "dma_copy": _dma_copy,
}
