# SPDX-License-Identifier: Apache-2.0
"""Quantization to the MX formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import (
    HALF_FLOATS,
    SBUF_ONLY,
    Array,
    Arrays,
    Dataflow,
    Engine,
    Instruction,
    Operand,
    OperandSpec,
    Work,
)
from trnlab.isa.products.microscaling import SCALES, STARTS, check_format, check_scales, formats_of
from trnlab.numerics.dtypes import dtype
from trnlab.numerics.mx import LANES, block_scales, quantize, scale_rows, scale_values

QUANTIZED = frozenset({"float8_e5m2_x4", "float8_e4m3fn_x4"})


@register
class QuantizeMx(Instruction):
    """dst = src in packed words of four, each group of 8 partitions by 4 elements divided by its scale in dst_scale.

    The scale of a group is 2**(floor(log2(its largest magnitude)) - (Emax - headroom)), where Emax is 8 for
    float8_e4m3fn and 15 for float8_e5m2; 2**-127 for zeros. headroom is 1 from NKI 0.5.0 on; it was 0 before, as in
    the sample algorithm of the OCP standard, and what did not fit became the largest value. A scale lies in the
    quadrant of its group, four partitions of it in use, from where dst_scale starts on; the rest of dst_scale stays
    as it is. dst_format repeats the format of dst.
    """

    name = "quantize_mx"
    opcode = 40
    dataflow = Dataflow.OCTETS
    partly_used = ("dst_scale",)
    engines = (Engine.VECTOR,)
    feature = "mx_formats"
    operands = (
        OperandSpec("dst", "dst", SBUF_ONLY, shape=("P", "D"), dtypes=QUANTIZED),
        OperandSpec("dst_scale", "dst", SBUF_ONLY, rw=True, shape=("", "D"), dtypes=SCALES, starts=STARTS),
        OperandSpec("src", "src", SBUF_ONLY, dtypes=HALF_FLOATS),
    )
    attrs: ClassVar[Mapping[str, Any]] = {"dst_format": None, "headroom": 1}
    multiples: ClassVar[Mapping[str, int]] = {"P": 32, "F": LANES}
    limits = (
        "D is F / 4",
        "dst_scale reaches from its start in the first quadrant to the fourth row after that in the last",
        "dst_format is the format of dst",
        "headroom is 0 or 1",
    )
    source = (
        "nki.isa.quantize_mx; nki/deep-dives/mxfp-matmul.rst:99-129, 228; trainium3_arch.rst:172 (rate); "
        "release-notes/components/nki.rst:166 (headroom)"
    )
    example = """
        x, packed = nl.ones((128, 512), nl.bfloat16), nl.ndarray((128, 128), nl.float8_e4m3fn_x4)
        scale = nl.ndarray((128, 128), nl.uint8)
        nisa.quantize_mx(dst=packed, src=x, dst_scale=scale)
    """

    def implied(self, ops: Mapping[str, Operand]) -> Mapping[str, Any]:
        """The format of dst."""
        return formats_of(ops, "dst")

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Sizes go by fours, and there is room for the scales."""
        if ops["dst"].free * LANES != ops["src"].free:
            self.refuse(
                "dst does not hold src in words of four",
                limit=f"{ops['src'].free // LANES} words per partition",
                got=ops["dst"].free,
                chip=chip,
                remedy="make dst a quarter as long as src",
                code="TRN409",
            )
        check_format(self, ops, attrs, "dst", chip)
        check_scales(self, ops, "dst", "dst_scale", chip)
        if attrs["headroom"] not in (0, 1):
            self.refuse(
                "headroom is a power of two above the largest value, or none",
                limit="0 or 1",
                got=attrs["headroom"],
                chip=chip,
                remedy="leave it out, or pass 0 for the rule of NKI before 0.5.0",
                code="TRN409",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Scales of the groups, then the words."""
        packed, lanes = dtype(attrs["dst_format"]), arrays["dst"].shape[0]
        values = arrays["src"].reshape(lanes, -1, LANES)
        codes = block_scales(values, packed, attrs["headroom"])
        scales = arrays["dst_scale"].reshape(arrays["dst_scale"].shape[0], -1).copy()
        scales[scale_rows(lanes)] = scale_values(codes) if scales.dtype.kind == "f" else codes
        return {
            "dst": quantize(values, codes, packed).reshape(arrays["dst"].shape),
            "dst_scale": scales.reshape(arrays["dst_scale"].shape),
        }

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements of src."""
        return self.streaming({"src": ops["src"]}, engine, flops=2)
