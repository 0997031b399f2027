# SPDX-License-Identifier: Apache-2.0
"""The rules of single instructions: the smallest case that breaks each one, and the code it is refused with.

A refusal carries a stable code, the limit, the value, the chip and a way out.
"""

from __future__ import annotations

from typing import Any

import pytest
from isa_cases import CHIPS, Case, refused, tile

from trnlab import isa
from trnlab.isa.base import Engine, Memory
from trnlab.program.access import AP

TRN1, TRN2 = CHIPS
P, H = Memory.PSUM, Memory.HBM


def _ops(**shapes: Any) -> dict[str, AP]:
    return {name: tile(*spec) for name, spec in shapes.items()}


# instruction, operands, attributes, engine, chip, code
X, V = ((128, 64),), ((128, 1),)
REFUSED = {
    "matmul: 129 stationary columns": (
        "nc_matmul",
        _ops(dst=((128, 512), "float32", P), stationary=((128, 129),), moving=((128, 512),)),
        {},
        Engine.TENSOR,
        TRN1,
        "TRN409",
    ),
    "matmul: stationary and dst 129": (
        "nc_matmul",
        _ops(dst=((129, 512), "float32", P), stationary=((128, 129),), moving=((128, 512),)),
        {},
        Engine.TENSOR,
        TRN1,
        "TRN404",
    ),
    "matmul: 513 moving columns": (
        "nc_matmul",
        _ops(dst=((128, 513), "float32", P), stationary=((128, 128),), moving=((128, 513),)),
        {},
        Engine.TENSOR,
        TRN1,
        "TRN406",
    ),
    "matmul: bfloat16 sums": (
        "nc_matmul",
        _ops(dst=((128, 512), "bfloat16", P), stationary=((128, 128),), moving=((128, 512),)),
        {},
        Engine.TENSOR,
        TRN2,
        "TRN408",
    ),
    "matmul: float32 with bfloat16": (
        "nc_matmul",
        _ops(dst=((128, 512), "float32", P), stationary=((128, 128),), moving=((128, 512), "bfloat16")),
        {},
        Engine.TENSOR,
        TRN1,
        "TRN408",
    ),
    "matmul: integers": (
        "nc_matmul",
        _ops(dst=((128, 512), "float32", P), stationary=((128, 128), "int8"), moving=((128, 512), "int8")),
        {},
        Engine.TENSOR,
        TRN1,
        "TRN408",
    ),
    "transpose: 33 on vector": (
        "nc_transpose",
        _ops(dst=((32, 33),), data=((33, 32),)),
        {},
        Engine.VECTOR,
        TRN1,
        "TRN406",
    ),
    "transpose: to SBUF on tensor": (
        "nc_transpose",
        _ops(dst=((32, 33),), data=((33, 32),)),
        {},
        Engine.TENSOR,
        TRN1,
        "TRN403",
    ),
    "transpose: fp8 on tensor": (
        "nc_transpose",
        _ops(dst=((64, 64), "float8_e4m3", P), data=((64, 64), "float8_e4m3")),
        {},
        Engine.TENSOR,
        TRN2,
        "TRN408",
    ),
    "transpose: integers without transpose mode": (
        "nc_transpose",
        _ops(dst=((64, 64), "int32", P), data=((64, 64), "int32")),
        {},
        Engine.TENSOR,
        TRN1,
        "TRN408",
    ),
    "transpose: 129 elements": (
        "nc_transpose",
        _ops(dst=((129, 64), "float32", P), data=((64, 129),)),
        {},
        Engine.TENSOR,
        TRN2,
        "TRN404",
    ),
    "activation: number as bias": ("activation", _ops(dst=X, data=X), {"bias": 1.0}, Engine.SCALAR, TRN1, "TRN414"),
    "activation: reciprocal with bias": (
        "activation",
        _ops(dst=X, data=X, bias=V),
        {"op": "reciprocal"},
        Engine.SCALAR,
        TRN2,
        "TRN411",
    ),
    "activation: max of rows": (
        "activation",
        _ops(dst=X, data=X, reduce_res=V),
        {"reduce_op": "max"},
        Engine.SCALAR,
        TRN2,
        "TRN412",
    ),
    "activation: unknown": ("activation", _ops(dst=X, data=X), {"op": "cos"}, Engine.SCALAR, TRN2, "TRN412"),
    "activation: bfloat16 scale": (
        "activation",
        _ops(dst=X, data=X, scale=((128, 1), "bfloat16")),
        {},
        Engine.SCALAR,
        TRN2,
        "TRN408",
    ),
    "copy: on scalar of v2": ("tensor_copy", _ops(dst=X, src=X), {}, Engine.SCALAR, TRN1, "TRN401"),
    "copy: gpsimd from PSUM": (
        "tensor_copy",
        _ops(dst=X, src=((128, 64), "float32", P)),
        {},
        Engine.GPSIMD,
        TRN2,
        "TRN403",
    ),
    "memset: 256 in a byte": ("memset", _ops(dst=((128, 8), "uint8")), {"value": 256}, Engine.VECTOR, TRN1, "TRN411"),
    "memset: half in an integer": (
        "memset",
        _ops(dst=((128, 8), "int32")),
        {"value": 0.5},
        Engine.VECTOR,
        TRN1,
        "TRN411",
    ),
    "memset: text": ("memset", _ops(dst=X), {"value": "one"}, Engine.VECTOR, TRN1, "TRN411"),
    "tensor_tensor: both in PSUM": (
        "tensor_tensor",
        _ops(dst=X, data1=((128, 64), "float32", P), data2=((128, 64), "float32", P)),
        {},
        Engine.VECTOR,
        TRN1,
        "TRN413",
    ),
    "tensor_tensor: power on vector": (
        "tensor_tensor",
        _ops(dst=X, data1=X, data2=X),
        {"op": "power"},
        Engine.VECTOR,
        TRN1,
        "TRN412",
    ),
    "tensor_tensor: bits of floats": (
        "tensor_tensor",
        _ops(dst=X, data1=X, data2=X),
        {"op": "bitwise_and"},
        Engine.VECTOR,
        TRN1,
        "TRN408",
    ),
    "tensor_tensor: 32-bit integers on vector": (
        "tensor_tensor",
        _ops(dst=((8, 8), "int32"), data1=((8, 8), "int32"), data2=((8, 8), "uint32")),
        {},
        Engine.VECTOR,
        TRN2,
        "TRN408",
    ),
    "tensor_tensor: one operand": (
        "tensor_tensor",
        _ops(dst=X, data1=X, data2=X),
        {"op": "abs"},
        Engine.VECTOR,
        TRN1,
        "TRN412",
    ),
    "tensor_tensor: later generation": (
        "tensor_tensor",
        _ops(dst=X, data1=X, data2=X),
        {"op": "abs_max"},
        Engine.VECTOR,
        TRN2,
        "TRN414",
    ),
    "tensor_scalar: bits then sum": (
        "tensor_scalar",
        _ops(dst=((8, 8), "int8"), data=((8, 8), "int8")),
        {"op0": "bitwise_and", "operand0": 1, "op1": "add", "operand1": 1},
        Engine.VECTOR,
        TRN1,
        "TRN411",
    ),
    "tensor_scalar: operand without operator": (
        "tensor_scalar",
        _ops(dst=X, data=X),
        {"operand0": 1.0, "operand1": 1.0},
        Engine.VECTOR,
        TRN1,
        "TRN411",
    ),
    "tensor_scalar: operator without operand": (
        "tensor_scalar",
        _ops(dst=X, data=X),
        {},
        Engine.VECTOR,
        TRN1,
        "TRN402",
    ),
    "tensor_scalar: bfloat16 operand": (
        "tensor_scalar",
        _ops(dst=X, data=X, operand0=((128, 1), "bfloat16")),
        {},
        Engine.VECTOR,
        TRN1,
        "TRN408",
    ),
    "tensor_scalar: float against bits": (
        "tensor_scalar",
        _ops(dst=((8, 8), "int8"), data=((8, 8), "int8")),
        {"op0": "bitwise_or", "operand0": 1.0},
        Engine.VECTOR,
        TRN1,
        "TRN411",
    ),
    "tensor_scalar: scalar of v2": (
        "tensor_scalar",
        _ops(dst=X, data=X),
        {"operand0": 1.0},
        Engine.SCALAR,
        TRN1,
        "TRN401",
    ),
    "tensor_scalar: add then multiply on scalar": (
        "tensor_scalar",
        _ops(dst=X, data=X),
        {"op0": "add", "operand0": 1.0, "op1": "multiply", "operand1": 1.0},
        Engine.SCALAR,
        TRN2,
        "TRN412",
    ),
    "tensor_scalar: reversed on scalar": (
        "tensor_scalar",
        _ops(dst=X, data=X),
        {"operand0": 1.0, "reverse0": True},
        Engine.SCALAR,
        TRN2,
        "TRN412",
    ),
    "tensor_scalar: multiply on gpsimd": (
        "tensor_scalar",
        _ops(dst=X, data=X),
        {"operand0": 1.0},
        Engine.GPSIMD,
        TRN2,
        "TRN412",
    ),
    "scalar_tensor_tensor: bits": (
        "scalar_tensor_tensor",
        _ops(dst=X, data=X, operand1=X),
        {"operand0": 1.0, "op0": "bitwise_or"},
        Engine.VECTOR,
        TRN1,
        "TRN412",
    ),
    "scalar_tensor_tensor: one operand": (
        "scalar_tensor_tensor",
        _ops(dst=X, data=X, operand1=X),
        {"operand0": 1.0, "op0": "abs"},
        Engine.VECTOR,
        TRN1,
        "TRN412",
    ),
    "tensor_reduce: comparison": (
        "tensor_reduce",
        _ops(dst=V, data=X),
        {"op": "is_gt"},
        Engine.VECTOR,
        TRN1,
        "TRN412",
    ),
    "tensor_reduce: two axes of one": (
        "tensor_reduce",
        _ops(dst=V, data=X),
        {"axes": 2},
        Engine.VECTOR,
        TRN1,
        "TRN411",
    ),
    "tensor_reduce: no axes": ("tensor_reduce", _ops(dst=X, data=X), {"axes": 0}, Engine.VECTOR, TRN1, "TRN411"),
    "tensor_reduce: dst too long": (
        "tensor_reduce",
        _ops(dst=((128, 2),), data=X),
        {},
        Engine.VECTOR,
        TRN1,
        "TRN409",
    ),
    "tensor_reduce: sign of bits": (
        "tensor_reduce",
        _ops(dst=((8, 1), "int8"), data=((8, 4), "int8")),
        {"op": "bitwise_or", "negate": True},
        Engine.VECTOR,
        TRN1,
        "TRN411",
    ),
    "iota: pattern too short": ("iota", _ops(dst=X), {"pattern": ((1, 63),)}, Engine.GPSIMD, TRN1, "TRN409"),
    "iota: no pattern": ("iota", _ops(dst=X), {}, Engine.GPSIMD, TRN1, "TRN407"),
    "iota: five dimensions": (
        "iota",
        _ops(dst=((8, 32),)),
        {"pattern": ((1, 2),) * 5},
        Engine.GPSIMD,
        TRN1,
        "TRN407",
    ),
    "iota: offset of 33 bits": (
        "iota",
        _ops(dst=X),
        {"pattern": ((1, 64),), "offset": 1 << 31},
        Engine.GPSIMD,
        TRN1,
        "TRN411",
    ),
    "affine_select: not a comparison": (
        "affine_select",
        _ops(dst=X, on_true=X),
        {"pattern": ((1, 64),), "cmp_op": "add"},
        Engine.GPSIMD,
        TRN1,
        "TRN412",
    ),
    "affine_select: unknown comparison": (
        "affine_select",
        _ops(dst=X, on_true=X),
        {"pattern": ((1, 64),), "cmp_op": "<"},
        Engine.GPSIMD,
        TRN1,
        "TRN412",
    ),
    "affine_select: text": (
        "affine_select",
        _ops(dst=X, on_true=X),
        {"pattern": ((1, 64),), "on_false": "-inf"},
        Engine.GPSIMD,
        TRN1,
        "TRN411",
    ),
    "select_reduce: sum": (
        "select_reduce",
        _ops(dst=X, predicate=((128, 64), "uint8"), on_true=X),
        {"on_false": 0.0, "reduce_op": "add"},
        Engine.VECTOR,
        TRN1,
        "TRN412",
    ),
    "select_reduce: float predicate": (
        "select_reduce",
        _ops(dst=X, predicate=X, on_true=X),
        {"on_false": 0.0},
        Engine.VECTOR,
        TRN1,
        "TRN408",
    ),
    "tensor_copy_predicated: number too large": (
        "tensor_copy_predicated",
        _ops(dst=((8, 8), "uint8"), predicate=((8, 8), "uint8")),
        {"src": 256},
        Engine.VECTOR,
        TRN1,
        "TRN411",
    ),
    "dropout: above one": ("dropout", _ops(dst=X, data=X), {"prob": 1.5}, Engine.VECTOR, TRN1, "TRN411"),
    "rng: gpsimd of v2": ("rng", _ops(dst=((8, 8), "uint32")), {}, Engine.GPSIMD, TRN1, "TRN401"),
    "rng: floats": ("rng", _ops(dst=X), {}, Engine.VECTOR, TRN1, "TRN408"),
    "dma: sizes": ("dma_copy", _ops(dst=X, src=((128, 65), "float32", H)), {}, Engine.SYNC, TRN1, "TRN409"),
    "dma: gather from sync": (
        "dma_copy",
        _ops(dst=X, src=((9, 64), "float32", H), index=((128, 1), "int32")),
        {},
        Engine.SYNC,
        TRN1,
        "TRN401",
    ),
    "dma: gather from SBUF": (
        "dma_copy",
        _ops(dst=X, src=X, index=((128, 1), "int32")),
        {},
        Engine.GPSIMD,
        TRN1,
        "TRN403",
    ),
    "dma: gather of other rows": (
        "dma_copy",
        _ops(dst=X, src=((9, 65), "float32", H), index=((128, 1), "int32")),
        {},
        Engine.GPSIMD,
        TRN1,
        "TRN409",
    ),
}


@pytest.mark.parametrize("label", REFUSED)
def test_one_past_a_limit_is_refused(label: str) -> None:
    """The rules of single instructions, each with the smallest case that breaks it."""
    name, ops, attrs, engine, chip, code = REFUSED[label]
    error = refused(Case(isa.REGISTRY[name], chip, engine, dict(ops), dict(attrs)), code)
    assert code in str(error)
    assert "limit" in str(error)
