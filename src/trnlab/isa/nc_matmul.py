# SPDX-License-Identifier: Apache-2.0
"""Matrix multiplication on the PE array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import (
    FLOAT32,
    MATMUL_DTYPES,
    PSUM_ONLY,
    SBUF_ONLY,
    Array,
    Arrays,
    Engine,
    Instruction,
    Operand,
    OperandSpec,
    Work,
    as_float,
)

WIDE = frozenset({"float32", "tfloat32"})


@register
class NcMatmul(Instruction):
    """dst = stationary.T @ moving, or dst += it: K is contracted over the partitions, products are summed in float32.

    The array first loads the stationary operand [K, M], then streams the moving operand [K, N] past it. `accumulate`
    adds to what an earlier matmul left in dst; `stop` marks the last one of an accumulation group. Free dimensions
    are flattened.
    """

    name = "nc_matmul"
    opcode = 1
    engines = (Engine.TENSOR,)
    operands = (
        OperandSpec("dst", "dst", PSUM_ONLY, rw=True, shape=("M", "N"), dtypes=FLOAT32),
        OperandSpec("stationary", "src", SBUF_ONLY, shape=("K", "M"), dtypes=MATMUL_DTYPES),
        OperandSpec("moving", "src", SBUF_ONLY, shape=("K", "N"), dtypes=MATMUL_DTYPES),
    )
    attrs: ClassVar[Mapping[str, Any]] = {"accumulate": False, "stop": True}
    sizes: ClassVar[Mapping[str, int]] = {"M": 128, "N": 512}
    limits = ("float32 and tfloat32 multiply only with each other",)
    cost_kinds = ("pe.matmul",)
    source = "nki.isa.nc_matmul; trainium_inferentia2_arch.rst:134-298 (LoadStationary, MultiplyMoving)"

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Only an accumulating matmul reads dst."""
        return bool(attrs["accumulate"])

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Refuse a wide format against a narrow one."""
        formats = ops["stationary"].dtype.name, ops["moving"].dtype.name
        if (formats[0] in WIDE) != (formats[1] in WIDE):
            self.refuse(
                "a 32-bit and a narrower format cannot be multiplied", limit=self.limits[0], got=" @ ".join(formats),
                chip=chip, remedy="cast both to one format with tensor_copy", code="TRN408",
            )  # fmt: skip

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """float32 sums of products."""
        stationary, moving = (as_float(arrays[name]) for name in ("stationary", "moving"))
        k = stationary.shape[0]
        with np.errstate(all="ignore"):
            product = (stationary.reshape(k, -1).T @ moving.reshape(k, -1)).reshape(arrays["dst"].shape)
            return {"dst": as_float(arrays["dst"]) + product if attrs["accumulate"] else product}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """K rows, M stationary and N moving columns; the cost follows the wider input's format."""
        stationary, moving = ops["stationary"], ops["moving"]
        widest = max(moving, stationary, key=lambda op: (op.dtype.itemsize, op.dtype.name == "float32"))
        k, m, n = moving.partitions, stationary.free, moving.free
        return Work(
            "pe.matmul", n, m, k, widest.dtype.itemsize, widest.dtype.name, self.psum_mask(ops), flops=2 * k * m * n
        )
