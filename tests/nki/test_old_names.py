# SPDX-License-Identifier: Apache-2.0
"""The public names of the old dialect, and the parameters of its functions.

Names and parameters are those of the 2.2x documentation of aws-neuron-sdk (nki.language, nki.isa, nki.compiler, nki),
whose functions also take options that only steer the vendor's compiler.
"""

from __future__ import annotations

import inspect
from functools import reduce

import pytest

from trnlab.nki import neuronxcc

FUNCTIONS = {
    "language": """
        abs(x dtype mask)
        add(x y dtype mask)
        affine_range(args)
        all(x axis dtype mask)
        all_reduce(x op program_axes dtype mask parallel_reduce asynchronous)
        arange(args)
        arctan(x dtype mask)
        atomic_rmw(dst value op mask)
        bitwise_and(x y dtype mask)
        bitwise_or(x y dtype mask)
        bitwise_xor(x y dtype mask)
        broadcast_to(src shape)
        ceil(x dtype mask)
        copy(src mask dtype)
        cos(x dtype mask)
        device_print(prefix x mask)
        divide(x y dtype mask)
        dropout(x rate dtype mask)
        ds(start size)
        empty_like(a dtype buffer name)
        equal(x y dtype mask)
        erf(x dtype mask)
        erf_dx(x dtype mask)
        exp(x dtype mask)
        expand_dims(data axis)
        floor(x dtype mask)
        fmod(x y dtype mask)
        full(shape fill_value dtype buffer name)
        gather_flattened(data indices mask dtype)
        gelu(x dtype mask)
        gelu_apprx_sigmoid(x dtype mask)
        gelu_apprx_tanh(x dtype mask)
        gelu_dx(x dtype mask)
        greater(x y dtype mask)
        greater_equal(x y dtype mask)
        invert(x dtype mask)
        left_shift(x y dtype mask)
        less(x y dtype mask)
        less_equal(x y dtype mask)
        load(src mask dtype)
        load_transpose2d(src mask dtype)
        log(x dtype mask)
        logical_and(x y dtype mask)
        logical_not(x dtype mask)
        logical_or(x y dtype mask)
        logical_xor(x y dtype mask)
        loop_reduce(x op loop_indices dtype mask)
        matmul(x y transpose_x mask)
        max(x axis dtype mask keepdims)
        maximum(x y dtype mask)
        mean(x axis dtype mask keepdims)
        min(x axis dtype mask keepdims)
        minimum(x y dtype mask)
        mish(x dtype mask)
        mod(x y dtype mask)
        multiply(x y dtype mask)
        ndarray(shape dtype buffer name)
        negative(x dtype mask)
        not_equal(x y dtype mask)
        num_programs(axes)
        ones(shape dtype buffer name)
        power(x y dtype mask)
        prod(x axis dtype mask keepdims)
        program_id(axis)
        program_ndim()
        rand(shape dtype)
        random_seed(seed mask)
        reciprocal(x dtype mask)
        relu(x dtype mask)
        right_shift(x y dtype mask)
        rms_norm(x w axis n epsilon dtype compute_dtype mask)
        rsqrt(x dtype mask)
        sequential_range(args)
        shared_constant(constant dtype)
        shared_identity_matrix(n dtype)
        sigmoid(x dtype mask)
        sign(x dtype mask)
        silu(x dtype mask)
        silu_dx(x dtype mask)
        sin(x dtype mask)
        softmax(x axis dtype compute_dtype mask)
        softplus(x dtype mask)
        sqrt(x dtype mask)
        square(x dtype mask)
        static_range(args)
        store(dst value mask)
        subtract(x y dtype mask)
        sum(x axis dtype mask keepdims)
        tan(x dtype mask)
        tanh(x dtype mask)
        transpose(x dtype mask)
        trunc(x dtype mask)
        var(x axis dtype mask)
        where(condition x y dtype mask)
        zeros(shape dtype buffer name)
        zeros_like(a dtype buffer name)
    """,
    "isa": """
        activation(op data bias scale reduce_op reduce_res reduce_cmd mask dtype)
        activation_reduce(op data reduce_op reduce_res bias scale mask dtype)
        affine_select(pred on_true_tile on_false_value mask dtype)
        bn_aggr(data mask dtype)
        bn_stats(data mask dtype)
        dma_copy(dst src mask dst_rmw_op oob_mode dge_mode)
        dma_transpose(src axes mask dtype)
        dropout(data prob mask dtype)
        get_nc_version()
        iota(expr dtype mask)
        local_gather(src_buffer index num_elem_per_idx num_valid_indices mask)
        max8(src mask dtype)
        memset(shape value dtype mask engine)
        nc_find_index8(data vals mask dtype)
        nc_match_replace8(data vals imm dst_idx mask dtype)
        nc_matmul(stationary moving is_stationary_onezero is_moving_onezero is_transpose tile_position \
            tile_size mask)
        nc_stream_shuffle(src dst shuffle_mask dtype mask)
        nc_transpose(data mask dtype engine)
        range_select(on_true_tile comp_op0 comp_op1 bound0 bound1 reduce_cmd reduce_res reduce_op range_start \
            on_false_value mask dtype)
        reciprocal(data dtype mask)
        scalar_tensor_tensor(data op0 operand0 op1 operand1 reverse0 reverse1 dtype mask)
        select_reduce(dst predicate on_true on_false reduce_res reduce_cmd reduce_op reverse_pred mask dtype)
        tensor_copy(src mask dtype engine)
        tensor_copy_dynamic_dst(dst src mask dtype engine)
        tensor_copy_dynamic_src(src mask dtype engine)
        tensor_copy_predicated(src dst predicate reverse_pred mask dtype)
        tensor_partition_reduce(op data mask dtype)
        tensor_reduce(op data axis mask dtype negate keepdims)
        tensor_scalar(data op0 operand0 reverse0 op1 operand1 reverse1 dtype mask engine)
        tensor_scalar_reduce(data op0 operand0 reduce_op reduce_res reverse0 dtype mask)
        tensor_tensor(data1 data2 op dtype mask engine)
        tensor_tensor_scan(data0 data1 initial op0 op1 reverse0 reverse1 dtype mask)
    """,
    "compiler": """
        enable_stack_allocator(func log_level)
        force_auto_alloc(func)
        skip_middle_end_transformations(func)
    """,
    "compiler.sbuf": """
        alloc(func)
        auto_alloc()
        mod_alloc(base_addr base_partition num_par_tiles num_free_tiles)
    """,
    "compiler.psum": """
        alloc(func)
        auto_alloc()
        mod_alloc(base_bank base_addr base_partition num_bank_tiles num_par_tiles num_free_tiles)
    """,
}
NAMES = {
    "": "baremetal benchmark compiler isa jit language profile simulate_kernel tensor trace typing",
    "language": """
        bfloat16 bool_ float16 float32 float8_e4m3 float8_e5m2 int16 int32 int8 tfloat32 uint16 uint32 uint8
        hbm private_hbm psum sbuf shared_hbm par_dim mgrid tile_size nc spmd_dim fp32 dslice finfo static_cast
    """,
    "isa": """
        dge_mode engine nc_version oob_mode reduce_cmd sequence_bounds tensor_scalar_cumulative
        tensor_engine vector_engine scalar_engine gpsimd_engine dma_engine unknown_engine
    """,
    "typing": "mutable_tensor tensor",
}
TILE_SIZES = """
    bn_stats_fmax gemm_moving_fmax gemm_stationary_fmax pmax psum_fmax psum_min_align sbuf_min_align
    total_available_sbuf_size
"""
TENSOR = "assert_shape astype broadcast_to dtype expand_dims itemsize ndim reshape shape view"


def module(path: str):
    return reduce(getattr, path.split(".") if path else [], neuronxcc)


def signatures():
    for path, table in FUNCTIONS.items():
        for line in table.strip().splitlines():
            name, parameters = line.strip().rstrip(")").split("(")
            yield pytest.param(path, name, parameters.split(), id=f"{path}.{name}")


@pytest.mark.parametrize(("path", "name", "parameters"), list(signatures()))
def test_a_function_has_the_parameters_of_its_documentation(path, name, parameters):
    function = getattr(module(path), name)
    known = inspect.signature(function).parameters
    variadic = any(p.kind is p.VAR_POSITIONAL for p in known.values())
    missing = [p for p in parameters if p not in known and not (p == "args" and variadic)]
    assert not missing


@pytest.mark.parametrize("path", NAMES)
def test_a_module_has_the_names_of_its_documentation(path):
    assert [name for name in NAMES[path].split() if not hasattr(module(path), name)] == []


def test_tile_sizes_and_tensors_have_their_attributes():
    from trnlab.nki.neuronxcc.tile import Tile

    sizes = neuronxcc.language.tile_size
    assert [name for name in TILE_SIZES.split() if not hasattr(sizes, name)] == []
    assert [name for name in TENSOR.split() if not hasattr(Tile, name)] == []
