# SPDX-License-Identifier: Apache-2.0
"""Options, modes and generations: the smallest case that each instruction must refuse, and the code.

As in test_refusals, which has the older half of the set.
"""

from __future__ import annotations

from typing import Any

import pytest
from isa_cases import CHIPS, Case, refused, tile

from trnlab import isa
from trnlab.chips.spec import Chip
from trnlab.isa.base import Engine, Memory
from trnlab.program.access import AP

TRN1, TRN2, TRN3 = CHIPS
P, H = Memory.PSUM, Memory.HBM


def _ops(**shapes: Any) -> dict[str, AP]:
    return {name: tile(*spec) for name, spec in shapes.items()}


def _mx(k: int, m: int, n: int) -> dict[str, AP]:
    inputs = _ops(stationary=((k, m), "float8_e5m2_x4"), moving=((k, n), "float8_e5m2_x4"))
    scales = _ops(stationary_scale=((k, m), "uint8"), moving_scale=((k, n), "uint8"))
    return {"dst": tile((m, n), "float32", P), **inputs, **scales}


X, V = ((128, 64),), ((128, 1),)
MXFP8 = {"stationary_format": "float8_e5m2_x4", "moving_format": "float8_e5m2_x4"}
SMALL = _ops(dst=((8, 8), "float32", P), stationary=((8, 8),), moving=((8, 8),))
DOUBLE = _ops(dst=((8, 8), "float32", P), stationary=((8, 2, 8), "float8_e4m3"), moving=((8, 2, 8), "float8_e4m3"))
RANGE = _ops(dst=X, on_true_tile=X, bound0=V, bound1=V)
GATHER = _ops(dst=((16, 16),), src_buffer=((16, 9),), index=((16, 1), "uint16"))
TOPK = _ops(val_dst=((16, 9), "bfloat16"), idx_dst=((16, 9), "uint32"), src=((16, 2), "bfloat16"))
TURNED = _ops(dst=((64, 16), "bfloat16"), src=((9, 64), "bfloat16", H), index=((16, 1), "uint32"))


def case(
    name: str, ops: dict[str, AP], code: str, chip: Chip, *, engine: Engine | None = None, **attrs: Any
) -> tuple[Case, str]:
    """A case on the instruction's first engine unless another is named, and the code it is refused with."""
    instr = isa.REGISTRY[name]
    return Case(instr, chip, instr.engines[0] if engine is None else engine, dict(ops), attrs), code


REFUSED = {
    # generations
    "exponential: before v4": case("exponential", _ops(dst=X, src=X), "TRN414", TRN2),
    "range_select: on v2": case("range_select", _ops(dst=X, on_true_tile=X, bound0=V, bound1=V), "TRN414", TRN1),
    "rand_set_state: vector of v3": case(
        "rand_set_state",
        _ops(state=((8, 24), "uint32"), src_seeds=((8, 24), "uint32")),
        "TRN401",
        TRN2,
        engine=Engine.VECTOR,
    ),
    "tensor_scalar: square before v4": case(
        "tensor_scalar", _ops(dst=X, data=X), "TRN414", TRN2, op0="square", operand0=None
    ),
    "dma: priority before v4": case("dma_copy", _ops(dst=X, src=X), "TRN414", TRN2, priority=0),
    "dma: priority 4": case("dma_copy", _ops(dst=X, src=X), "TRN414", TRN3, priority=4),
    "dma: hwdge on v2": case("dma_copy", _ops(dst=X, src=X), "TRN414", TRN1, dge_mode="hwdge"),
    # the PE array
    "matmul: double row on v2": case("nc_matmul", DOUBLE, "TRN414", TRN1, perf_mode="double_row"),
    "matmul: double row of bfloat16": case(
        "nc_matmul",
        _ops(dst=((8, 8), "float32", P), stationary=((8, 2, 8), "bfloat16"), moving=((8, 2, 8), "bfloat16")),
        "TRN408",
        TRN2,
        perf_mode="double_row",
    ),
    "matmul: double row and column tiles": case(
        "nc_matmul", DOUBLE, "TRN411", TRN2, perf_mode="double_row", tile_position=(0, 0), tile_size=(32, 32)
    ),
    "matmul: triple row": case("nc_matmul", DOUBLE, "TRN409", TRN2, perf_mode="triple_row"),
    "matmul: pairs last": case(
        "nc_matmul",
        _ops(dst=((8, 8), "float32", P), stationary=((8, 8, 2), "float8_e4m3"), moving=((8, 2, 8), "float8_e4m3")),
        "TRN409",
        TRN2,
        perf_mode="double_row",
    ),
    "matmul: tiles of 32 on v2": case("nc_matmul", SMALL, "TRN411", TRN1, tile_position=(32, 0), tile_size=(32, 128)),
    "matmul: size without position": case("nc_matmul", SMALL, "TRN411", TRN2, tile_size=(64, 128)),
    "matmul: between two tiles": case("nc_matmul", SMALL, "TRN411", TRN2, tile_position=(32, 0), tile_size=(64, 128)),
    "matmul: larger than its tile": case(
        "nc_matmul",
        _ops(dst=((8, 8), "float32", P), stationary=((65, 8),), moving=((65, 8),)),
        "TRN406",
        TRN2,
        tile_position=(0, 0),
        tile_size=(64, 128),
    ),
    "matmul: e4m3fn before v4": case(
        "nc_matmul",
        _ops(dst=((8, 8), "float32", P), stationary=((8, 8), "float8_e4m3fn"), moving=((8, 8), "float8_e5m2")),
        "TRN408",
        TRN2,
    ),
    "matmul: both e4m3": case(
        "nc_matmul",
        _ops(dst=((8, 8), "float32", P), stationary=((8, 8), "float8_e4m3fn"), moving=((8, 8), "float8_e4m3")),
        "TRN408",
        TRN3,
    ),
    "matmul: 4097 columns": case(
        "nc_matmul",
        _ops(dst=((8, 4097), "float32", P), stationary=((8, 8), "bfloat16"), moving=((8, 4097), "bfloat16")),
        "TRN406",
        TRN3,
    ),
    "matmul: transpose into another format": case(
        "nc_matmul",
        _ops(dst=((8, 8), "float16", P), stationary=((8, 8), "bfloat16"), moving=((8, 8), "bfloat16")),
        "TRN408",
        TRN2,
        is_transpose=True,
    ),
    # MX formats
    "matmul_mx: 16 rows": case("nc_matmul_mx", _mx(16, 8, 8), "TRN416", TRN3, **MXFP8),
    "matmul_mx: odd M": case("nc_matmul_mx", _mx(32, 7, 8), "TRN416", TRN3, **MXFP8),
    "matmul_mx: format not repeated": case("nc_matmul_mx", _mx(32, 8, 8), "TRN411", TRN3),
    "matmul_mx: column tiles": case(
        "nc_matmul_mx", _mx(32, 8, 8), "TRN411", TRN3, **MXFP8, tile_position=(0, 64), tile_size=(32, 64)
    ),
    "matmul_mx: scales start at 16": case(
        "nc_matmul_mx",
        {**_mx(32, 8, 8), "moving_scale": tile((4, 8), "uint8", first_partition=16)},
        "TRN405",
        TRN3,
        **MXFP8,
    ),
    "matmul_mx: scales of another quadrant": case(
        "nc_matmul_mx",
        {**_mx(32, 8, 8), "moving_scale": tile((4, 8), "uint8", first_partition=32)},
        "TRN405",
        TRN3,
        **MXFP8,
    ),
    "matmul_mx: no room for scales": case(
        "nc_matmul_mx", {**_mx(64, 8, 8), "moving_scale": tile((35, 8), "uint8")}, "TRN409", TRN3, **MXFP8
    ),
    "quantize_mx: dst too long": case(
        "quantize_mx",
        _ops(dst=((32, 4), "float8_e5m2_x4"), dst_scale=((4, 4), "uint8"), src=((32, 4), "bfloat16")),
        "TRN409",
        TRN3,
        dst_format="float8_e5m2_x4",
    ),
    "memset: packed ones": case("memset", _ops(dst=((8, 8), "float8_e5m2_x4")), "TRN411", TRN3, value=1),
    "copy: unpacking": case(
        "tensor_copy", _ops(dst=((8, 8), "uint32"), src=((8, 8), "float8_e5m2_x4")), "TRN408", TRN3
    ),
    # accumulators
    "activation: no such command": case("activation", _ops(dst=X, data=X), "TRN411", TRN2, reduce_cmd="load_reduce"),
    "activation: going on from nothing": case(
        "activation", _ops(dst=X, data=X, reduce_res=V), "TRN402", TRN2, reduce_cmd="reduce"
    ),
    "select_reduce: reading after idling": case(
        "select_reduce",
        _ops(dst=X, predicate=((128, 64), "uint8"), on_true=X, reduce_res=V),
        "TRN411",
        TRN1,
        on_false=0.0,
        reduce_cmd="idle",
    ),
    "tensor_scalar_reduce: nothing to load": case(
        "tensor_scalar_reduce", _ops(dst=X, data=X), "TRN411", TRN1, operand0=1.0, reduce_cmd="load_reduce"
    ),
    "tensor_scalar_reduce: no operand": case("tensor_scalar_reduce", _ops(dst=X, data=X), "TRN402", TRN1),
    "tensor_scalar_reduce: subtract": case(
        "tensor_scalar_reduce", _ops(dst=X, data=X), "TRN412", TRN1, operand0=1.0, reduce_op="subtract"
    ),
    "tensor_scalar_cumulative: power": case(
        "tensor_scalar_cumulative", _ops(dst=X, src=X), "TRN412", TRN1, imm0=1.0, op1="power"
    ),
    "exponential: value without load": case("exponential", _ops(dst=X, src=X), "TRN411", TRN3, reduce_init=1.0),
    "activate2: add then add": case("activate2", _ops(dst=X, data=X), "TRN412", TRN3, op0="add", op1="add"),
    "activate2: bypass reversed": case("activate2", _ops(dst=X, data=X), "TRN411", TRN3, reverse1=True),
    "activate2: product of rows": case("activate2", _ops(dst=X, data=X), "TRN412", TRN3, reduce_op="multiply"),
    "scan: one operand": case(
        "tensor_tensor_scan", _ops(dst=X, data0=X, data1=X), "TRN412", TRN1, initial=0.0, op0="abs"
    ),
    "range_select: not equal": case("range_select", RANGE, "TRN412", TRN2, comp_op0="not_equal"),
    "range_select: past 2**24": case("range_select", RANGE, "TRN411", TRN2, range_start=(1 << 24) - 63),
    "range_select: another fill": case("range_select", RANGE, "TRN411", TRN2, on_false_value=-1000000000.0),
    "range_select: sum": case("range_select", RANGE, "TRN412", TRN2, reduce_op="add"),
    # searches, gathers, shuffles, lists
    "max8: seven": case("max8", _ops(dst=((8, 8),), src=((8, 7),)), "TRN416", TRN1),
    "max8: 16385": case("max8", _ops(dst=((8, 8),), src=((8, 16385),)), "TRN406", TRN1),
    "max8: nine results": case("max8", _ops(dst=((8, 9),), src=((8, 16),)), "TRN409", TRN1),
    "max8: four dimensions": case("max8", _ops(dst=((8, 8),), src=((8, 2, 2, 2),)), "TRN407", TRN1),
    "match_replace8: text": case(
        "nc_match_replace8", _ops(dst=((8, 8),), data=((8, 8),), vals=((8, 8),)), "TRN411", TRN1, imm="-inf"
    ),
    "bn_stats: 513": case("bn_stats", _ops(dst=((8, 6),), data=((8, 513),)), "TRN406", TRN1),
    "partition_reduce: product": case(
        "tensor_partition_reduce", _ops(dst=((1, 64),), data=X), "TRN412", TRN1, op="multiply"
    ),
    "local_gather: runs of three": case("local_gather", GATHER, "TRN411", TRN1, num_elem_per_idx=3),
    "local_gather: 17 of 16": case("local_gather", GATHER, "TRN406", TRN1, num_valid_indices=17),
    "local_gather: dst too short": case("local_gather", GATHER, "TRN409", TRN1, num_elem_per_idx=2),
    "shuffle: 31 rows": case(
        "nc_stream_shuffle", _ops(dst=((32, 4),), src=((32, 4),)), "TRN411", TRN1, shuffle_mask=(0,) * 31
    ),
    "shuffle: row 32": case(
        "nc_stream_shuffle", _ops(dst=((32, 4),), src=((32, 4),)), "TRN411", TRN1, shuffle_mask=(32,) * 32
    ),
    "shuffle: beyond src": case(
        "nc_stream_shuffle", _ops(dst=((33, 4),), src=((32, 4),)), "TRN409", TRN1, shuffle_mask=(0,) * 32
    ),
    "shuffle: start of the smaller tile": case(
        "nc_stream_shuffle", {"dst": tile((32, 4), first_partition=32), "src": tile((64, 4))}, "TRN405", TRN1
    ),
    "sequence_bounds: one number per id": case(
        "sequence_bounds", _ops(dst=((1, 9),), segment_ids=((1, 9),)), "TRN409", TRN1
    ),
    "nonzero: no place for the count": case(
        "nonzero_with_count", _ops(dst=((16, 8), "int32"), src=((16, 8),)), "TRN409", TRN2
    ),
    "nonzero: offset of 33 bits": case(
        "nonzero_with_count", _ops(dst=((16, 9), "int32"), src=((16, 8),)), "TRN411", TRN2, index_offset=1 << 31
    ),
    "topk: seven elements": case("topk", TOPK, "TRN411", TRN1, n=7),
    "topk: more than src holds": case("topk", TOPK, "TRN409", TRN1, n=33),
    "topk: K above n": case("topk", TOPK, "TRN411", TRN1, n=8),
    # random numbers
    "rng: state of another engine": case(
        "rng", _ops(dst=((8, 8), "uint32"), state=((8, 6), "uint32")), "TRN409", TRN2
    ),
    "rand2: empty range": case("rand2", _ops(dst=X), "TRN411", TRN3, min=1.0, max=1.0),
    "dropout: bfloat16 probabilities of integers": case(
        "dropout", _ops(dst=((8, 8), "int8"), data=((8, 8), "int8"), prob=((8, 1), "bfloat16")), "TRN408", TRN1
    ),
    # transfers
    "dma: no such mode": case("dma_copy", _ops(dst=X, src=X), "TRN411", TRN2, dge_mode="fast"),
    "dma: hwdge on gpsimd": case(
        "dma_copy", _ops(dst=X, src=X), "TRN401", TRN2, engine=Engine.GPSIMD, dge_mode="hwdge"
    ),
    "dma: hwdge casts": case("dma_copy", _ops(dst=X, src=((128, 64), "bfloat16")), "TRN411", TRN2, dge_mode="hwdge"),
    "dma: scatter without index": case(
        "dma_copy", _ops(dst=X, src=X), "TRN402", TRN2, engine=Engine.GPSIMD, indirect="dst"
    ),
    "dma: no such side": case(
        "dma_copy",
        _ops(dst=X, src=((9, 64), "float32", H), index=((128, 1), "int32")),
        "TRN411",
        TRN2,
        engine=Engine.GPSIMD,
        indirect="both",
    ),
    "dma_transpose: other axes": case("dma_transpose", _ops(dst=X, src=X), "TRN411", TRN2, axes=(0, 1)),
    "dma_transpose: shape": case("dma_transpose", _ops(dst=X, src=X), "TRN409", TRN2),
    "dma_transpose: hwdge of float32": case(
        "dma_transpose", _ops(dst=((64, 16),), src=((16, 64),)), "TRN406", TRN2, dge_mode="hwdge"
    ),
    "dma_transpose: gather on v2": case("dma_transpose", TURNED, "TRN414", TRN1, engine=Engine.GPSIMD),
    "dma_transpose: gather on sync": case("dma_transpose", TURNED, "TRN401", TRN2),
    "dma_transpose: gather of 15 rows": case(
        "dma_transpose", {**TURNED, "dst": tile((64, 15), "bfloat16")}, "TRN416", TRN2, engine=Engine.GPSIMD
    ),
    "dma_compute: product": case("dma_compute", _ops(dst=X, src0=X), "TRN411", TRN2, reduce_op="multiply"),
    "dma_compute: scaled": case("dma_compute", _ops(dst=X, src0=X), "TRN411", TRN2, scales=(2.0,)),
    "dma_compute: sizes": case("dma_compute", _ops(dst=X, src0=X, src1=V), "TRN409", TRN2),
    "dma_compute: index without side": case(
        "dma_compute", _ops(dst=X, src0=X, index=((128, 1), "int32")), "TRN411", TRN2, engine=Engine.GPSIMD
    ),
    "dma_compute: rows on sync": case(
        "dma_compute",
        _ops(dst=((128, 64), "float32", H), src0=X, index=((128, 1), "int32")),
        "TRN401",
        TRN2,
        indirect="dst",
    ),
    "dma_compute: rows of another length": case(
        "dma_compute",
        _ops(dst=((128, 65), "float32", H), src0=X, index=((128, 1), "int32")),
        "TRN409",
        TRN2,
        engine=Engine.GPSIMD,
        indirect="dst",
    ),
    "sendrecv: core 2": case("sendrecv", _ops(dst=X, src=X), "TRN411", TRN2, send_to_rank=2),
    "sendrecv: no such DMA": case("sendrecv", _ops(dst=X, src=X), "TRN411", TRN2, dma_engine="vector"),
    "sendrecv: 257 elements inside GpSimd": case(
        "sendrecv", _ops(dst=((8, 257),), src=((8, 257),)), "TRN406", TRN2, dma_engine="gpsimd_dma"
    ),
    "core_barrier: core 1 alone": case("core_barrier", _ops(data=((8, 8), "float32", H)), "TRN411", TRN2, cores=(1,)),
    # registers
    "register_alloc: 33 bits": case("register_alloc", _ops(dst=((1, 1), "int32")), "TRN411", TRN1, x=1 << 31),
    "register_move: a half": case("register_move", _ops(dst=((1, 1), "int32")), "TRN411", TRN1, src=0.5),
    "register_load: converting": case(
        "register_load", _ops(dst=((1, 1), "int32"), src=((1, 1), "float32")), "TRN408", TRN1
    ),
    "register_store: converting": case(
        "register_store", _ops(dst=((1, 1), "float32"), src=((1, 1), "int32")), "TRN408", TRN1
    ),
}


@pytest.mark.parametrize("label", REFUSED)
def test_an_option_that_does_not_exist_is_refused(label: str) -> None:
    """Each with the code of its rule."""
    one, code = REFUSED[label]
    refused(one, code)
