# SPDX-License-Identifier: Apache-2.0
"""Cost classes: the values of `Work.kind` and what decides their cost. The figures are the chip's.

n is elements per partition, N below; see `Work` for the other fields. Published rules are cited per instruction.
"""

from __future__ import annotations

from collections.abc import Mapping

COST_CLASSES: Mapping[str, str] = {
    "pe.matmul": "LoadStationary of m columns, then n moving columns; dtype sets the passes (float32: 4)",
    "pe.transpose": "n columns of an identity move over the data, m columns; dtype sets the passes",
    "vector.nc_transpose": "N",
    "vector.tensor_copy": "N; 16-bit modes by dtype, psum and strided",
    "gpsimd.tensor_copy": "N plus the software's fixed cost",
    "scalar.tensor_copy": "N",
    "vector.memset": "N; N/2 for zeros (m = 1) in a 16-bit float",
    "gpsimd.memset": "N plus the software's fixed cost",
    "vector.tensor_tensor": "2N from SBUF; N when one input is in PSUM, or all bfloat16, contiguous, m = 1 (+ - *)",
    "gpsimd.tensor_tensor": "N plus the software's fixed cost",
    "vector.tensor_scalar": "N for one operator or two; 16-bit modes by dtype, psum and strided",
    "scalar.tensor_scalar": "N",
    "gpsimd.tensor_scalar": "N plus the software's fixed cost; rsqrt (m = 1) takes about four times ScalarE's time",
    "vector.scalar_tensor_tensor": "2N; N when bfloat16 and m = 1 (subtract then multiply, N even)",
    "vector.tensor_reduce": "N of the input; N/2 when bfloat16 in and out and m = 1 (add or max)",
    "vector.reciprocal": "8N",
    "gpsimd.iota": "150 + N",
    "gpsimd.affine_select": "150 + N",
    "vector.select_reduce": "N when predicate and on_true are in different memories, 2N when both are in SBUF",
    "vector.tensor_copy_predicated": "N when predicate and src are in different memories, 2N when both are in SBUF",
    "vector.dropout": "N",
    "vector.rng": "N",
    "gpsimd.rng": "N plus the software's fixed cost",
    "scalar.activation": "N; m is the table set of the function (0: none), a change of set loads tables",
    "scalar.activation_reduce": "as scalar.activation, plus one read of the accumulators",
    "dma.copy": "m descriptors of n bytes, nbytes in all, k partitions on the SBUF side",
    "dma.gather": "as dma.copy; descriptors are made by GpSimd's software",
}
