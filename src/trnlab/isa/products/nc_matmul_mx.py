# SPDX-License-Identifier: Apache-2.0
"""Matrix multiplication of MX operands on the PE array, dequantized on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import (
    PACKED_DTYPES,
    PSUM_ONLY,
    SBUF_ONLY,
    Array,
    Arrays,
    Dataflow,
    Engine,
    Instruction,
    Operand,
    OperandSpec,
    Work,
    as_float,
)
from trnlab.isa.products.microscaling import SCALES, STARTS, check_format, check_scales, codes_of, formats_of
from trnlab.isa.products.tiling import check_tile, columns_of_psum, tile_of
from trnlab.numerics.dtypes import dtype
from trnlab.numerics.mx import LANES, dequantize


@register
class NcMatmulMx(Instruction):
    """dst = stationary.T @ moving, or dst += it, over K partitions and the four values of each packed word.

    Each group of 8 partitions by 4 values is multiplied by its scale (float8_e8m0fnu, or its byte), which lies where
    quantize_mx puts it. Products are summed in float32; a bfloat16 dst is rounded as it is written. stationary_format
    and moving_format repeat the operands' formats. tile_position and tile_size take part of the array's rows, as in
    nc_matmul.
    """

    name = "nc_matmul_mx"
    opcode = 18
    dataflow = Dataflow.PRODUCT
    accumulates = True
    partly_used = ("stationary_scale", "moving_scale")
    engines = (Engine.TENSOR,)
    feature = "mx_formats"
    operands = (
        OperandSpec("dst", "dst", PSUM_ONLY, rw=True, shape=("M", "N"), dtypes=frozenset({"float32", "bfloat16"})),
        OperandSpec("stationary", "src", SBUF_ONLY, shape=("K", "M"), dtypes=PACKED_DTYPES),
        OperandSpec("moving", "src", SBUF_ONLY, shape=("K", "N"), dtypes=PACKED_DTYPES),
        OperandSpec("stationary_scale", "src", SBUF_ONLY, shape=("", "M"), dtypes=SCALES, starts=STARTS),
        OperandSpec("moving_scale", "src", SBUF_ONLY, shape=("", "N"), dtypes=SCALES, starts=STARTS),
    )
    attrs: ClassVar[Mapping[str, Any]] = {
        "stationary_format": None,
        "moving_format": None,
        "accumulate": False,
        "stop": True,
        "tile_position": (),
        "tile_size": (),
    }
    sizes: ClassVar[Mapping[str, int]] = {"M": 128}
    multiples: ClassVar[Mapping[str, int]] = {"K": 32, "M": 2}
    indirect = ("dst", "stationary", "moving")
    limits = (
        "N is at most what all of PSUM holds in dst's format: 4096 for float32, 8192 for bfloat16",
        "scales reach from their start in the first quadrant to the fourth row after that in the last",
        "tile_position and tile_size take rows of the array only, and K fits them; no index with tiles",
    )
    source = "nki.isa.nc_matmul_mx; trainium3_arch.rst:75-118; nki/deep-dives/mxfp-matmul.rst:99-129"
    example = """
        x, scale = nl.zeros((128, 128), nl.float8_e4m3fn_x4), nl.zeros((128, 128), nl.uint8)
        sums = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(dst=sums, stationary=x, moving=x, stationary_scale=scale, moving_scale=scale)
    """

    def implied(self, ops: Mapping[str, Operand]) -> Mapping[str, Any]:
        """The formats of the packed operands."""
        return formats_of(ops, "stationary", "moving")

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Only an accumulating matmul reads dst."""
        return bool(attrs["accumulate"])

    def largest(self, letter: str, ops: Mapping[str, Operand], chip: Chip) -> int | None:
        """N goes by dst's format."""
        return columns_of_psum(ops, chip) if letter == "N" else super().largest(letter, ops, chip)

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Formats as repeated, scales in their place, a row tile."""
        for name in ("stationary", "moving"):
            check_format(self, ops, attrs, name, chip)
            check_scales(self, ops, name, f"{name}_scale", chip)
        check_tile(self, ops, attrs, chip, columns=False)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Exact values, their products summed in float64 and rounded to float32."""
        left, right = (_values(arrays, attrs, name) for name in ("stationary", "moving"))
        k = left.shape[0]
        with np.errstate(all="ignore"):
            left, right = (x.transpose(0, 2, 1).reshape(k * LANES, -1) for x in (left, right))
            product = (left.T @ right).astype(np.float32).reshape(arrays["dst"].shape)
            return {"dst": as_float(arrays["dst"]) + product if attrs["accumulate"] else product}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """K rows of four values, M stationary and N moving columns."""
        stationary, moving = ops["stationary"], ops["moving"]
        k, m, n = moving.partitions, stationary.free, moving.free
        return Work(
            "pe.matmul_mx",
            n,
            m,
            k,
            moving.dtype.itemsize,
            moving.dtype.name,
            self.psum_mask(ops),
            flops=2 * LANES * k * m * n,
            part=tile_of(attrs),
        )


def _values(arrays: Arrays, attrs: Mapping[str, Any], name: str) -> Array:
    words = arrays[name].reshape(arrays[name].shape[0], -1)
    codes = codes_of(arrays[f"{name}_scale"], len(words))
    return dequantize(words, codes, dtype(attrs[f"{name}_format"]))
