# SPDX-License-Identifier: Apache-2.0
"""Cost classes: the values of `Work.kind` and what decides their cost. The figures are the chip's.

n is elements per partition, N below; see `Work` for the other fields. Published rules are cited per instruction.
"""

from __future__ import annotations

from collections.abc import Mapping

COST_CLASSES: Mapping[str, str] = {
    "pe.matmul": "LoadStationary of m columns, then n moving columns; dtype sets the passes (float32: 4)",
    "pe.matmul_onezero": "as pe.matmul, float32 in half the passes: an operand holds ones and zeros only",
    "pe.matmul_mx": "as pe.matmul, one pass: four values to a row",
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
    "vector.reciprocal": "8N; as measured, 3N on NeuronCore-v2",
    "gpsimd.iota": "150 + N",
    "gpsimd.affine_select": "150 + N",
    "vector.select_reduce": "N when predicate and on_true are in different memories, 2N when both are in SBUF",
    "vector.tensor_copy_predicated": "N when predicate and src are in different memories, 2N when both are in SBUF",
    "vector.dropout": "N",
    "vector.tensor_scalar_reduce": "as vector.tensor_scalar, plus one minimum interval for the accumulators",
    "vector.tensor_scalar_cumulative": "N (assumed)",
    "vector.tensor_tensor_scan": "2N",
    "vector.exponential": "N/4",
    "vector.range_select": "N",
    "vector.max8": "N",
    "vector.nc_find_index8": "N",
    "vector.nc_match_replace8": "N",
    "vector.bn_stats": "N",
    "vector.bn_aggr": "13 N / 3",
    "vector.nc_stream_shuffle": "N",
    "vector.quantize_mx": "N/4",
    "vector.rng": "N",
    "vector.rand2": "N/4",
    "vector.set_rng_seed": "N",
    "vector.rand_set_state": "N",
    "vector.rand_get_state": "N",
    "gpsimd.rng": "N plus the software's fixed cost",
    "gpsimd.rand_set_state": "N plus the software's fixed cost",
    "gpsimd.rand_get_state": "N plus the software's fixed cost",
    "gpsimd.tensor_partition_reduce": "N plus the software's fixed cost (assumed)",
    "gpsimd.local_gather": "150 + n m / C, C = ((28 + 4 m) / (4 m)) / min(4 / itemsize, m)",
    "gpsimd.nc_n_gather": "N plus the software's fixed cost, which comes again every 512 elements (assumed)",
    "gpsimd.sequence_bounds": "N plus the software's fixed cost (assumed)",
    "gpsimd.nonzero_with_count": "N plus the software's fixed cost (assumed)",
    "gpsimd.topk": "4 n + m",
    "scalar.activation": "N; m is the table set of the function (0: none), a change of set loads tables",
    "scalar.activation_reduce": "as scalar.activation, plus one read of the accumulators",
    "scalar.activate2": "as scalar.activation",
    "scalar.activate2_reduce": "as scalar.activation_reduce",
    "sequencer.register": "between registers, or a number into one",
    "sequencer.load": "one number from memory into a register; what an address chosen at run time waits for",
    "sequencer.store": "one number from a register to memory, as sequencer.load (assumed)",
    "sequencer.barrier": "a semaphore there and back (assumed)",
    "dma.copy": "m descriptors of n bytes, nbytes in all, k partitions on the SBUF side",
    "dma.ring": "as dma.copy; descriptors lie ready in a ring in HBM",
    "dma.gather": "as dma.copy; descriptors are made by GpSimd's software",
    "dma.transpose": "as dma.copy at 0.9 of the rate from HBM, 0.5 within SBUF; by elements before dma_transpose",
    "dma.compute": "as dma.copy at half the rate",
    "dma.sendrecv": "as dma.copy within SBUF",
    "collective.all_reduce": "launch and steps; 2 (m - 1) / m of nbytes, a core n of nbytes; over k cores",
    "collective.reduce_scatter": "launch and steps; (m - 1) / m of nbytes",
    "collective.all_gather": "as collective.reduce_scatter",
    "collective.all_to_all": "as collective.reduce_scatter",
    "collective.all_gather_v": "as collective.all_gather with all parts full",
    "collective.all_to_all_v": "as collective.all_to_all with all parts full",
    "collective.collective_permute": "launch and one step; nbytes",
    "collective.collective_permute_reduce": "as collective.collective_permute, and the sum at half the rate",
}


def assumed_rules() -> list[tuple[str, str]]:
    """The cost classes whose rule nobody published, with the rule."""
    return [(kind, rule) for kind, rule in COST_CLASSES.items() if "(assumed)" in rule]
