# SPDX-License-Identifier: Apache-2.0
"""Every public name of NKI 0.6.0 is there, with its parameters, in their order.

The tables are facts of the interface: nki/api/nki of aws-neuron/aws-neuron-sdk.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import trnlab.nki as nki
from trnlab.nki import collectives, isa, language

NKI = """
jit(fn)
simulate(kernel)
"""

LANGUAGE = """
is_hbm(buffer)
is_on_chip(buffer)
is_psum(buffer)
is_sbuf(buffer)
add(x, y, dtype)
subtract(x, y, dtype)
multiply(x, y, dtype)
divide(x, y, dtype)
maximum(x, y, dtype)
minimum(x, y, dtype)
abs_max(x, y, dtype)
abs_min(x, y, dtype)
abs(x, dtype)
square(x, dtype)
power(x, y, dtype)
equal(x, y, dtype)
not_equal(x, y, dtype)
less(x, y, dtype)
less_equal(x, y, dtype)
greater(x, y, dtype)
greater_equal(x, y, dtype)
bitwise_and(x, y, dtype)
bitwise_or(x, y, dtype)
bitwise_xor(x, y, dtype)
invert(x, dtype)
left_shift(x, y, dtype)
right_shift(x, y, dtype)
logical_and(x, y, dtype)
logical_or(x, y, dtype)
logical_xor(x, y, dtype)
logical_not(x, dtype)
exp(x, dtype)
log(x, dtype)
sqrt(x, dtype)
rsqrt(x, dtype)
tanh(x, dtype)
sigmoid(x, dtype)
relu(x, dtype)
gelu(x, dtype)
gelu_apprx_sigmoid(x, dtype)
gelu_apprx_tanh(x, dtype)
gelu_dx(x, dtype)
gelu_apprx_sigmoid_dx(x, dtype)
silu(x, dtype)
silu_dx(x, dtype)
softplus(x, dtype)
mish(x, dtype)
erf(x, dtype)
erf_dx(x, dtype)
reciprocal(x, dtype)
copy(x, dtype)
sin(x, dtype)
cos(x, dtype)
tan(x, dtype)
arctan(x, dtype)
ceil(x, dtype)
floor(x, dtype)
trunc(x, dtype)
negative(x, dtype)
sign(x, dtype)
fmod(x, y, dtype)
mod(x, y, dtype)
sum(x, axis, dtype, keepdims)
max(x, axis, dtype, keepdims)
min(x, axis, dtype, keepdims)
mean(x, axis, dtype, keepdims)
prod(x, axis, dtype, keepdims)
var(x, axis, dtype, keepdims)
all(x, axis, dtype)
softmax(x, axis, dtype)
rms_norm(x, w, axis, n, epsilon, dtype, compute_dtype)
where(condition, x, y, dtype)
dropout(x, rate, dtype)
ones(shape, dtype, buffer, name)
full(shape, fill_value, dtype, buffer, name)
zeros_like(x, dtype, buffer, name)
empty_like(x, dtype, buffer, name)
random_seed(seed)
expand_dims(x, axis)
broadcast_to(x, shape, dtype)
transpose(x, dtype)
matmul(x, y, transpose_x)
no_reorder()
load_transpose2d(src, dtype)
gather_flattened(data, indices, axis, dtype)
ds(start, size)
affine_range(start, stop, step)
sequential_range(start, stop, step)
static_range(start, stop, step)
dynamic_range(start, stop, step)
fori_loop(lower, upper, body_fun, step)
while_loop(init, body_fun)
ndarray(shape, dtype, buffer, name, address)
zeros(shape, dtype, buffer, name)
load(src, dtype)
store(dst, value)
program_id(axis)
num_programs(axes)
program_ndim()
shared_constant(constant)
shared_identity_matrix(n, dtype, dst)
device_print(print_prefix, tensor)
rand(shape, dtype, buffer, name)
DType bool_ int8 int16 int32 uint8 uint16 uint32 float16 float32 bfloat16 tfloat32 float8_e4m3 float8_e4m3fn
float8_e5m2 float8_e5m2_x4 float8_e4m3fn_x4 float8_e8m0fnu float4_e2m1fn_x4 sbuf psum hbm private_hbm shared_hbm
tile_size average prelu bypass
MemoryRegion.sbuf
MemoryRegion.psum
MemoryRegion.private_hbm
MemoryRegion.shared_hbm
NKIObject
NkiTensor.shape
NkiTensor.strides
NkiTensor.offset
NkiTensor.name
NkiTensor.dtype
NkiTensor.buffer
NkiTensor.ndim
NkiTensor.size
NkiTensor.is_contiguous()
NkiTensor.get_pattern()
NkiTensor.is_indirect()
NkiTensor.__getitem__(key)
NkiTensor.permute(dims)
NkiTensor.broadcast(dim, size)
NkiTensor.expand_dim(dim)
NkiTensor.squeeze_dim(dim)
NkiTensor.reshape_dim(dim, shape)
NkiTensor.flatten_dims(start_dim, end_dim)
NkiTensor.reshape(shape)
NkiTensor.rearrange(src_pattern, dst_pattern, fixed_sizes)
NkiTensor.__setitem__(key, value)
NkiTensor.slice(dim, start, end, step)
NkiTensor.select(dim, index)
NkiTensor.vector_select(dim, vector_offset)
NkiTensor.ap(pattern, offset, scalar_offset, vector_offset, indirect_dim, dtype)
NkiTensor.view(dtype)
NkiTensor.reinterpret_cast
NkiTensor.indirect(index, num_elem)
_TileSize.pmax
_TileSize.psum_fmax
_TileSize.psum_bank_fmax
_TileSize.psum_bank_fmax_bytes
_TileSize.gemm_stationary_fmax
_TileSize.gemm_moving_fmax
_TileSize.bn_stats_fmax
_TileSize.psum_min_align
_TileSize.sbuf_min_align
_TileSize.psum_num_banks
_TileSize.sbuf_size_bytes
_TileSize.sbuf_fmax
_TileSize.sbuf_fmax_bytes
_TileSize.total_available_sbuf_size
"""

ISA = """
get_nc_sub_version()
get_nc_version()
dma_copy(dst, src, priority, oob_mode, dge_mode, engine, name)
tensor_copy(dst, src, engine, name)
memset(dst, value, engine, name)
tensor_copy_predicated(dst, src, predicate, reverse_pred, name)
nc_matmul(dst, stationary, moving, is_stationary_onezero, is_moving_onezero, is_transpose, accumulate,
    tile_position, tile_size, perf_mode, name)
nc_matmul_mx(dst, stationary, moving, stationary_scale, moving_scale, tile_position, tile_size, accumulate, name)
nc_transpose(dst, data, engine, name)
dma_transpose(dst, src, axes, priority, dge_mode, oob_mode, name)
tensor_tensor(dst, data1, data2, op, engine, name)
tensor_scalar(dst, data, op0, operand0, reverse0, op1, operand1, reverse1, engine, name)
tensor_reduce(dst, op, data, axis, negate, keepdims, name)
tensor_partition_reduce(dst, op, data, name)
tensor_scalar_cumulative(dst, src, op0, op1, imm0, imm1, reduce_cmd, name)
activation(dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd, name)
activation_reduce(dst, op, data, reduce_op, reduce_res, bias, scale, name)
activate2(dst, op, data, imm0, imm1, op0, op1, relu_param, reverse0, reverse1, reduce_op, reduce_res, reduce_cmd,
    name)
iota(dst, pattern, offset, channel_multiplier, name)
affine_select(dst, pattern, channel_multiplier, on_true_tile, on_false_value, cmp_op, offset, name)
local_gather(dst, src_buffer, index, num_elem_per_idx, num_valid_indices, name)
nc_n_gather(dst, data, indices, name)
bn_stats(dst, data, name)
bn_aggr(dst, data, name)
tensor_tensor_scan(dst, data0, data1, initial, op0, op1, reverse0, reverse1, name)
nc_stream_shuffle(dst, src, shuffle_mask, name)
rng(dst, engine, name)
dropout(dst, data, prob, name)
set_rng_seed(src_seeds, name)
rand_set_state(src_seeds, engine, name)
rand_get_state(dst, engine, name)
rand2(dst, min, max, name)
exponential(dst, src, max_value, reduce_res, reduce_cmd, reduce_init, name)
reciprocal(dst, data, name)
max8(dst, src, name)
sequence_bounds(dst, segment_ids, name)
scalar_tensor_tensor(dst, data, op0, operand0, op1, operand1, reverse0, reverse1, name)
tensor_scalar_reduce(dst, data, op0, operand0, reduce_op, reduce_res, reverse0, reduce_cmd, reduce_init,
    reduce_res_negate, name)
core_barrier(data, cores, engine, name)
dma_compute(dst, srcs, reduce_op, scales, unique_indices, oob_mode, name)
quantize_mx(dst, src, dst_scale, name)
range_select(dst, on_true_tile, comp_op0, comp_op1, bound0, bound1, reduce_cmd, reduce_res, reduce_op, range_start,
    on_false_value, name)
select_reduce(dst, predicate, on_true, on_false, reduce_res, reduce_cmd, reduce_op, reverse_pred, name)
sendrecv(src, dst, send_to_rank, recv_from_rank, pipe_id, dma_engine, name)
register_alloc(x)
register_move(dst, src)
register_load(dst, src)
register_store(dst, src)
nc_find_index8(dst, data, vals, name)
nc_match_replace8(dst, data, vals, imm, dst_idx, name)
nonzero_with_count(dst, src, index_offset, padding_val, name)
topk(val_dst, idx_dst, src, n, name)
tensor_engine vector_engine scalar_engine gpsimd_engine unknown_engine
engine.tensor
engine.vector
engine.scalar
engine.gpsimd
engine.dma
engine.sync
engine.unknown
reduce_cmd.idle
reduce_cmd.reset
reduce_cmd.reduce
reduce_cmd.reset_reduce
reduce_cmd.load_reduce
dge_mode.unknown
dge_mode.swdge
dge_mode.hwdge
dge_mode.none
oob_mode.error
oob_mode.skip
matmul_perf_mode.none
matmul_perf_mode.double_row
nc_version.gen2
nc_version.gen3
nc_version.gen4
dma_engine.dma
dma_engine.gpsimd_dma
NkiInstruction.depends_on()
NkiValidationError
VirtualRegister
"""

COLLECTIVES = """
all_reduce(srcs, dsts, replica_group, op, priority, name)
all_gather(srcs, dsts, replica_group, collective_dim, priority, name)
all_gather_v(srcs, dsts, replica_group, metadata_tensor, recv_counts_known, has_rdispls, priority, name)
reduce_scatter(srcs, dsts, replica_group, collective_dim, op, priority, name)
all_to_all(srcs, dsts, replica_group, collective_dim, priority, name)
all_to_all_v(srcs, dsts, replica_group, metadata_tensor, recv_counts_known, has_rdispls, priority, name)
collective_permute(srcs, dsts, source_target_pairs, priority, name)
collective_permute_implicit(srcs_by_channel, dsts_by_channel, replica_group, channel_ids, priority, name)
collective_permute_implicit_reduce(srcs0_by_channel, srcs1_by_channel, dsts_by_channel, replica_group, op,
    channel_ids, priority, name)
collective_permute_implicit_current_processing_rank_id(iteration_id, replica_group, channel_id, name)
rank_id(name)
ReplicaGroup
"""

OURS_TOO = {
    "tensor_copy": ["dtype"],  # kernels of nki-samples still pass it
    "jit": ["mode", "platform_target", "options"],
    "simulate": ["ranks"],
}
MODULES = {
    "nki": (nki, NKI),
    "nki.language": (language, LANGUAGE),
    "nki.isa": (isa, ISA),
    "nki.collectives": (collectives, COLLECTIVES),
}


def entries(table: str) -> list[tuple[str, list[str] | None]]:
    """Each name of a table with its parameters, None for what is no function."""
    found = []
    for line in table.replace("\n    ", " ").split("\n"):
        if "(" in line:
            name, _, rest = line.rstrip(")").partition("(")
            found.append((name, [p for p in rest.split(", ") if p]))
        else:
            found.extend((name, None) for name in line.split())
    return found


@pytest.mark.parametrize(
    ("module", "name", "parameters"),
    [(module, *entry) for module, (_, table) in MODULES.items() for entry in entries(table)],
)
def test_name(module: str, name: str, parameters: list[str] | None) -> None:
    """It is there; a function can be called with the names of its parameters, and by their places."""
    found: Any = MODULES[module][0]
    for part in name.split("."):
        assert hasattr(found, part), f"{module}.{name} is missing"
        found = getattr(found, part)
    if parameters is None:
        return
    assert callable(found)
    mine = [p for p in inspect.signature(found).parameters.values() if p.name != "self"]
    named = [p.name for p in mine if p.kind is not p.VAR_POSITIONAL]
    allowed = OURS_TOO.get(name, [])
    assert [p for p in named if p not in allowed] == parameters


def test_there_are_as_many_instructions_as_the_specification_counts() -> None:
    """52 functions of nki.isa, with the two that ask for the version of the core."""
    functions = [name for name, parameters in entries(ISA) if parameters is not None and "." not in name]
    assert len(functions) == 52
