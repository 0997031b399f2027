# SPDX-License-Identifier: Apache-2.0
"""nki.isa: one function per instruction of the NeuronCore, each a thin call into the recorder.

`dst` comes first; `engine` chooses where the instruction runs, `name` labels it. Arguments that only steer the
vendor's compiler are taken and change nothing here. Written out are the functions that translate what a kernel says
into what the instruction takes; the others are made from the declarations in `trnlab.isa`.

Source: nki/api/nki/isa/__init__.py of aws-neuron/aws-neuron-sdk (NKI 0.6.0).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from trnlab.isa import REGISTRY
from trnlab.isa.base import Engine
from trnlab.lang import assignment, compose
from trnlab.lang import instructions as ins
from trnlab.lang.recorder import current
from trnlab.lang.registers import VirtualRegister
from trnlab.lang.storage import MemorySpace, refuse
from trnlab.lang.tensor import Tensor
from trnlab.nki import declared
from trnlab.nki import enums as constants
from trnlab.nki.enums import (
    chip_engine,
    dge_mode,
    dma_engine,
    engine,
    gpsimd_engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
    scalar_engine,
    tensor_engine,
    unknown_engine,
    vector_engine,
)
from trnlab.nki.handles import NkiInstruction, issue, number
from trnlab.nki.instructions.activations import _reducing
from trnlab.nki.instructions.activations import activate2 as activate2
from trnlab.nki.instructions.activations import activation as activation
from trnlab.nki.instructions.activations import activation_reduce as activation_reduce
from trnlab.nki.instructions.transfers import core_barrier as core_barrier
from trnlab.nki.instructions.transfers import dma_compute as dma_compute
from trnlab.nki.instructions.transfers import dma_copy as dma_copy
from trnlab.nki.instructions.transfers import dma_transpose as dma_transpose
from trnlab.nki.instructions.transfers import register_alloc as register_alloc
from trnlab.nki.instructions.transfers import register_load as register_load
from trnlab.nki.instructions.transfers import register_move as register_move
from trnlab.nki.instructions.transfers import register_store as register_store
from trnlab.nki.instructions.transfers import sendrecv as sendrecv
from trnlab.nki.operators import alu_name, optional_alu_name
from trnlab.nki.random import dropout, rand2, rand_get_state, rand_set_state, rng, set_rng_seed
from trnlab.nki.target import default_chip, release

__all__ = [
    "NkiInstruction",
    "VirtualRegister",
    "constants",
    "dge_mode",
    "dma_engine",
    "dropout",
    "engine",
    "gpsimd_engine",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "rand2",
    "rand_get_state",
    "rand_set_state",
    "reduce_cmd",
    "rng",
    "scalar_engine",
    "set_rng_seed",
    "tensor_engine",
    "unknown_engine",
    "vector_engine",
]


class NkiValidationError(Exception):
    """Kept for kernels that catch it."""


def get_nc_version() -> nc_version:
    """The generation that the kernel is recorded for."""
    from trnlab.lang.recorder import recording

    chip = current().chip if recording() else default_chip()
    return nc_version(chip.generation)


def get_nc_sub_version() -> int:
    """Silicon revision."""
    return 0


def tensor_copy(
    dst: Tensor, src: Tensor, engine: engine = engine.unknown, name: str | None = None, dtype: Any = None
) -> NkiInstruction:
    """dst = src, cast to dst's format.

    `dtype` is what an older release named besides; kernels of nki-samples still pass it, also where dst has another
    format, and dst decides. A tensor in HBM is moved by DMA, with a warning.
    """
    if not (dst.on_chip and src.on_chip):
        current().remark(
            "tensor_copy on a tensor in HBM, which no engine reaches: it is moved by DMA",
            limit="dst and src in SBUF or PSUM",
            got=f"{src!r} to {dst!r}",
            remedy="use nisa.dma_copy(dst=, src=)",
        )
        assignment.put(dst, src, alone=False)
        return NkiInstruction(name)
    return issue("tensor_copy", name, on=engine, dst=dst, src=src)


def memset(dst: Tensor, value: Any, engine: engine = engine.unknown, name: str | None = None) -> NkiInstruction:
    """dst = value; a whole number where dst holds whole numbers. The specification wants an int there; published
    kernels of the release before also write 0.0."""
    if isinstance(value, float) and dst.format.dtype.kind in "iu" and not str(dst.format).endswith("_x4"):
        if not value.is_integer():
            refuse(
                "memset of integers takes a whole number",
                limit=f"an int, as dst is {dst.format}",
                got=value,
                remedy="pass value=0",
                code="TRN411",
            )
        value = int(value)
    return issue("memset", name, on=engine, dst=dst, value=value)


def nc_matmul(
    dst: Tensor,
    stationary: Tensor,
    moving: Tensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: Any = (),
    tile_size: Any = (),
    perf_mode: Any = matmul_perf_mode.none,
    name: str | None = None,
) -> NkiInstruction:
    """dst = stationary.T @ moving, or dst += it."""
    options: dict[str, Any] = _tile(tile_position, tile_size)
    if perf_mode not in (matmul_perf_mode.none, "none", None):
        mode = str(getattr(perf_mode, "value", perf_mode))
        options["perf_mode"] = "double_row" if mode.startswith("double_row") else mode
    told = {
        "is_transpose": is_transpose,
        "is_stationary_onezero": is_stationary_onezero,
        "is_moving_onezero": is_moving_onezero,
    }
    options |= {name: True for name, value in told.items() if value}
    ins.matmul("nc_matmul", dst, accumulate, stationary=stationary, moving=moving, **options)
    return NkiInstruction(name)


def _tile(position: Any, size: Any) -> dict[str, Any]:
    """The part of the PE array, where it is not all of it."""
    if not position and not size:
        return {}
    return {"tile_position": tuple(position or ()), "tile_size": tuple(size or ())}


def nc_matmul_mx(
    dst: Tensor,
    stationary: Tensor,
    moving: Tensor,
    stationary_scale: Tensor,
    moving_scale: Tensor,
    tile_position: Any = None,
    tile_size: Any = None,
    accumulate: bool | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """The product of MX operands, four packed values per element."""
    ins.matmul(
        "nc_matmul_mx",
        dst,
        accumulate,
        stationary=stationary,
        moving=moving,
        stationary_scale=stationary_scale,
        moving_scale=moving_scale,
        **_tile(tile_position, tile_size),
    )
    return NkiInstruction(name)


def nc_transpose(
    dst: Tensor, data: Tensor, engine: engine = engine.unknown, name: str | None = None
) -> NkiInstruction:
    """dst[f, p] = data[p, f]; left open, VectorE takes what is in or goes to SBUF and fits, TensorE the rest."""
    chosen = engine
    if engine is _UNKNOWN and (dst.buffer is MemorySpace.sbuf or data.buffer is MemorySpace.psum):
        chosen = _VECTOR  # TensorE reads SBUF and writes PSUM
    return issue("nc_transpose", name, on=chosen, dst=dst, data=data)


_UNKNOWN, _VECTOR = engine.unknown, engine.vector


def tensor_tensor(
    dst: Tensor, data1: Tensor, data2: Tensor, op: Any, engine: engine = engine.unknown, name: str | None = None
) -> NkiInstruction:
    """dst = data1 op data2."""
    ins.tensor_tensor(dst, data1, data2, alu_name(op), chip_engine(engine))
    return NkiInstruction(name)


def tensor_scalar(
    dst: Tensor,
    data: Tensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = (data op0 operand0) op1 operand1."""
    ins.tensor_scalar(
        dst, data, alu_name(op0), operand0, reverse0, optional_alu_name(op1), operand1, reverse1, chip_engine(engine)
    )
    return NkiInstruction(name)


def tensor_reduce(
    dst: Tensor,
    op: Any,
    data: Tensor,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Fold trailing free dimensions of data. keepdims: dst has them with one element, or not; it is written alike."""
    view, count, _ = compose.reduced(data, axis)
    ins.tensor_reduce(dst, alu_name(op), view, count, negate)
    return NkiInstruction(name)


def tensor_partition_reduce(dst: Tensor, op: Any, data: Tensor, name: str | None = None) -> NkiInstruction:
    """Fold the partitions."""
    return issue("tensor_partition_reduce", name, dst=dst, op=_partition_op(op), data=data)


def _partition_op(op: Any) -> str:
    return "average" if getattr(op, "__name__", op) == "average" else alu_name(op)


def tensor_scalar_cumulative(
    dst: Tensor,
    src: Tensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    name: str | None = None,
) -> NkiInstruction:
    """A running fold with op1 over (src op0 imm0)."""
    return issue(
        "tensor_scalar_cumulative",
        name,
        dst=dst,
        src=src,
        op0=alu_name(op0),
        op1=alu_name(op1),
        imm0=number(imm0),
        imm1=None if imm1 is None else number(imm1),
        reduce_cmd=reduce_cmd.name,
        accumulators=ins.accumulators(Engine.VECTOR, dst.shape[0]),
    )


def iota(
    dst: Tensor, pattern: Any, offset: int = 0, channel_multiplier: int = 0, name: str | None = None
) -> NkiInstruction:
    """An affine ramp."""
    return issue(
        "iota", name, dst=dst, pattern=_pattern(pattern), offset=int(offset), channel_multiplier=channel_multiplier
    )


def affine_select(
    dst: Tensor,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: Tensor,
    on_false_value: Any,
    cmp_op: Any = "is_equal",
    offset: int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """on_true where the affine ramp compares with zero as asked."""
    return issue(
        "affine_select",
        name,
        dst=dst,
        on_true=on_true_tile,
        pattern=_pattern(pattern),
        offset=int(offset),
        channel_multiplier=channel_multiplier,
        cmp_op=alu_name(cmp_op),
        on_false=on_false_value,
    )


def _pattern(pattern: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(step), int(count)) for step, count in pattern)


def exponential(
    dst: Tensor,
    src: Tensor,
    max_value: Any = 0.0,
    reduce_res: Tensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> NkiInstruction:
    """exp(src - max_value) on VectorE."""
    return issue(
        "exponential",
        name,
        dst=dst,
        src=src,
        max_value=number(max_value),
        reduce_res=reduce_res,
        **_reducing("exponential", Engine.VECTOR, dst, reduce_cmd, reduce_res, reduce_init),
    )


def tensor_scalar_reduce(
    dst: Tensor,
    data: Tensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Tensor | None = None,
    reverse0: bool = False,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """data op0 operand0, and the fold of each row."""
    if reverse0:
        refuse(
            "tensor_scalar_reduce does not reverse its operands",
            limit="reverse0=False",
            got=True,
            remedy="use tensor_scalar, then tensor_reduce",
            code="TRN411",
        )
    return issue(
        "tensor_scalar_reduce",
        name,
        dst=dst,
        data=data,
        op0=alu_name(op0),
        operand0=number(operand0),
        reduce_op=alu_name(reduce_op),
        reduce_res=reduce_res,
        reduce_res_negate=reduce_res_negate,
        **_reducing("tensor_scalar_reduce", Engine.VECTOR, dst, reduce_cmd, reduce_res, reduce_init),
    )


def quantize_mx(dst: Tensor, src: Tensor, dst_scale: Tensor, name: str | None = None) -> NkiInstruction:
    """Quantise to an MX format with one scale per 32 values, by the rule of `target.release`."""
    return issue("quantize_mx", name, dst=dst, src=src, dst_scale=dst_scale, headroom=int(release() >= (0, 5)))


def range_select(
    dst: Tensor,
    on_true_tile: Tensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Tensor,
    bound1: Tensor,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_res: Tensor | None = None,
    reduce_op: Any = "max",
    range_start: float = 0,
    on_false_value: Any = -3.4028234663852886e38,
    name: str | None = None,
) -> NkiInstruction:
    """Keep the elements whose index lies between two bounds."""
    return issue(
        "range_select",
        name,
        dst=dst,
        on_true_tile=on_true_tile,
        comp_op0=alu_name(comp_op0),
        comp_op1=alu_name(comp_op1),
        bound0=bound0,
        bound1=bound1,
        reduce_res=reduce_res,
        reduce_op=alu_name(reduce_op),
        range_start=range_start,
        on_false_value=float(on_false_value),
        **_reducing("range_select", Engine.VECTOR, dst, reduce_cmd, reduce_res),
    )


def select_reduce(
    dst: Tensor,
    predicate: Tensor,
    on_true: Tensor,
    on_false: Any,
    reduce_res: Tensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    reduce_op: Any = "max",
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """on_true where the predicate is not zero, and the maximum of each row."""
    return issue(
        "select_reduce",
        name,
        dst=dst,
        predicate=predicate,
        on_true=on_true,
        on_false=number(on_false),
        reduce_res=reduce_res,
        reduce_op=alu_name(reduce_op),
        reverse_pred=reverse_pred,
        **_reducing("select_reduce", Engine.VECTOR, dst, reduce_cmd, reduce_res),
    )


# -- instructions that are called as they are declared ---------------------------------------------------------------
def __getattr__(name: str) -> Callable[..., NkiInstruction]:
    """The function of an instruction that has been registered since. Raises AttributeError for what is none."""
    instr = REGISTRY.get(name)
    if instr is None or not declared.is_callable(instr):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    made = globals()[name] = declared.function(instr, __name__)
    return made


for _name in REGISTRY:
    if _name not in globals() and declared.is_callable(REGISTRY[_name]):
        __getattr__(_name)
