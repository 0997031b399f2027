# SPDX-License-Identifier: Apache-2.0
"""Typing rules: for every op, the result types that follow; and what is refused, with its code."""

import pytest
from graph_samples import typed

from trnlab.errors import GraphError
from trnlab.graph.infer import infer
from trnlab.graph.ops import BINARY, OPS, UNARY
from trnlab.numerics.dtypes import bfloat16, float32, int32

F23, B23, I23, P23 = "2x3xfloat32", "2x3xbfloat16", "2x3xint32", "2x3xbool"
SUM = {
    "lhs_contracting_dimensions": (1,),
    "rhs_contracting_dimensions": (1,),
    "dtype": float32,
    "lhs_cast": "",
    "rhs_cast": "",
}
DOT = {
    "lhs_batching_dimensions": (),
    "rhs_batching_dimensions": (),
    "lhs_contracting_dimensions": (1,),
    "rhs_contracting_dimensions": (0,),
    "dtype": float32,
    "precision": "DEFAULT",
    "asked": 1,
    "lhs_mx": "",
    "rhs_mx": "",
    "lhs_cast": "",
    "rhs_cast": "",
}
BATCHED = {
    "lhs_batching_dimensions": (0,),
    "rhs_batching_dimensions": (1,),
    "lhs_contracting_dimensions": (2,),
    "rhs_contracting_dimensions": (0,),
    "dtype": bfloat16,
    "precision": "HIGHEST",
    "asked": 4,
    "lhs_mx": "",
    "rhs_mx": "",
    "lhs_cast": "",
    "rhs_cast": "",
}
ROWS = {
    "offset_dims": (2,),
    "collapsed_slice_dims": (0,),
    "operand_batching_dims": (),
    "start_index_map": (0,),
    "start_indices_batching_dims": (),
    "index_vector_dim": 2,
    "slice_sizes": (1, 5),
}
GROUPED = {"dtype": float32, "precision": "DEFAULT", "asked": 1}
ADD_ROWS = {
    "update_window_dims": (2,),
    "inserted_window_dims": (0,),
    "input_batching_dims": (),
    "scatter_indices_batching_dims": (),
    "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 2,
    "kind": "add",
}
PAD = {"edge_padding_low": (1, -1), "edge_padding_high": (0, 0), "interior_padding": (0, 2)}
QKV = ["2x4x5x8xbfloat16", "2x2x7x8xbfloat16", "2x2x7x8xbfloat16"]
WINDOWS = {"window": (2, 3), "window_strides": (2, 1), "padding_low": (0, 1), "places": (4, 6)}
RESIZED = {"rule": "linear", "places": (4, 6), "row_scale": 0.0, "column_scale": 1.5}
ORDERED = {"window": (3, 2), "window_strides": (2, 2), "padding_low": (0, 0), "places": (4, 3), "ordered": True}
AVERAGES = {**WINDOWS, "counted": (0, 1), "divisor": 0.0}
HEADS = {"causal": True, "scale": 0.5, "hides": False, "shifted": False, "precision": "DEFAULT"}
SHIFTED, BACK = {**HEADS, "shifted": True}, {**HEADS, "dbias": ""}

EVEN = {"sent": (), "received": (), "position": 0}  # parts of one size
GROUPS = {"replica_groups": (0, 1, 2, 3), "group_size": 2, "purpose": ""}
COLLECTIVES = [
    ("all_reduce", [F23, "4xfloat32"], {**GROUPS, "kind": "add"}, [F23, "4xfloat32"]),
    ("all_gather", [F23], {**GROUPS, "all_gather_dim": 1}, ["2x6xfloat32"]),
    ("reduce_scatter", [F23], {**GROUPS, "scatter_dimension": 0, "kind": "add"}, ["1x3xfloat32"]),
    ("all_to_all", [F23], {**GROUPS, **EVEN, "split_dimension": 0, "concat_dimension": 1}, ["1x6xfloat32"]),
    ("collective_permute", [F23], {"source_target_pairs": (0, 1), "purpose": ""}, [F23]),
    ("collective_broadcast", [F23], GROUPS, [F23]),
    ("partition_id", [], {}, ["uint32"]),
]

CONVOLUTION = {
    "window_strides": (2, 1),
    "padding_low": (0, 1),
    "padding_high": (0, 1),
    "lhs_dilation": (1, 1),
    "rhs_dilation": (1, 1),
    "window_reversal": False,
    "feature_group_count": 2,
    "batch_group_count": 1,
    "dtype": float32,
    "precision": "DEFAULT",
}
FOLLOWS = [
    *COLLECTIVES,
    *[(name, ["2x3xfloat32"], {}, ["2x3xbool" if name == "is_finite" else F23]) for name in UNARY if name != "not"],
    *[(name, [F23, F23], {}, [F23]) for name in BINARY if name not in ("and", "or", "xor") and "shift" not in name],
    *[(name, [I23, I23], {}, [I23]) for name in BINARY if "shift" in name],
    *[(name, [P23, P23], {}, [P23]) for name in ("and", "or", "xor")],
    ("not", [P23], {}, [P23]),
    ("optimization_barrier", [P23], {}, [P23]),
    ("and", [I23, I23], {}, [I23]),
    ("add", [I23, I23], {}, [I23]),
    ("compare", [B23, B23], {"comparison_direction": "LE"}, [P23]),
    ("select", [P23, B23, B23], {}, [B23]),
    ("select", ["bool", B23, B23], {}, [B23]),
    ("clamp", ["float32", F23, F23], {}, [F23]),
    ("convert", [F23], {"dtype": bfloat16}, [B23]),
    ("bitcast_convert", [F23], {"dtype": int32}, [I23]),
    ("constant", [], {"value": 1.0, "shape": (2, 3), "dtype": float32}, [F23]),
    ("iota", [], {"iota_dimension": 1, "shape": (2, 3), "dtype": int32}, [I23]),
    ("trn.rng_uniform", ["2xint32"], {"shape": (2, 3), "first": 0}, [F23]),
    ("trn.rng_philox", ["6xuint32"], {"shape": (2, 3)}, ["2x3xuint32"]),
    ("broadcast_in_dim", ["3xfloat32"], {"broadcast_dimensions": (1,), "shape": (2, 3)}, [F23]),
    ("broadcast_in_dim", ["1x2xfloat32"], {"broadcast_dimensions": (1, 0), "shape": (2, 3)}, [F23]),
    ("reshape", [F23], {"shape": (3, 1, 2)}, ["3x1x2xfloat32"]),
    ("transpose", ["2x3x4xfloat32"], {"permutation": (2, 0, 1)}, ["4x2x3xfloat32"]),
    ("slice", ["5x6xint32"], {"start_indices": (1, 0), "limit_indices": (4, 6), "strides": (2, 4)}, ["2x2xint32"]),
    ("concatenate", [F23, "2x1xfloat32", F23], {"dimension": 1}, ["2x7xfloat32"]),
    ("pad", [F23, "float32"], PAD, ["3x6xfloat32"]),
    ("reduce", ["2x3x4xfloat32"], {"dimensions": (0, 2), "kind": "add"}, ["3xfloat32"]),
    ("reduce", [P23], {"dimensions": (0, 1), "kind": "or"}, ["bool"]),
    ("dot_general", ["2x3xbfloat16", "3x4xbfloat16"], DOT, ["2x4xfloat32"]),
    ("dot_general", ["2x3x4xfloat32", "4x2x5xfloat32"], BATCHED, ["2x3x5xbfloat16"]),
    ("trn.dot_sum", ["2x3xbfloat16", "4x3xbfloat16", "2x5xbfloat16", "4x5xbfloat16"], SUM, ["2x4xfloat32"]),
    (
        "trn.dot_and_sums",
        ["2x3xbfloat16", "2x4xbfloat16"],
        {"dtype": float32, "summed": "rhs"},
        ["3x4xfloat32", "4xfloat32"],
    ),
    ("convolution", ["2x6x9x8xfloat32", "4x3x3x2xfloat32"], CONVOLUTION, ["2x4x4x9xfloat32"]),
    ("gather", ["9x5xfloat32", "2x3xint32"], ROWS, ["2x3x5xfloat32"]),
    ("scatter", ["9x5xfloat32", "2x3xint32", "2x3x5xfloat32"], ADD_ROWS, ["9x5xfloat32"]),
    ("trn.take_along", ["2x9xbfloat16", "2x5xint32"], {}, ["2x5xbfloat16"]),
    ("trn.sum_along", ["2x5xbfloat16", "2x5xint32"], {"places": 9, "dtype": float32}, ["2x9xfloat32"]),
    ("trn.sum_rows", ["4x3xbfloat16", "4xint32"], {"rows": 9}, ["4x3xfloat32"]),
    ("trn.put_rows", ["9x3xbfloat16", "4xint32", "4x3xbfloat16"], {}, ["9x3xbfloat16"]),
    ("trn.grouped_dot", ["6x4xbfloat16", "3x4x5xbfloat16", "3xint32"], GROUPED, ["6x5xfloat32"]),
    ("trn.grouped_outer", ["6x4xbfloat16", "6x5xbfloat16", "3xint32"], GROUPED, ["3x4x5xfloat32"]),
    ("trn.gelu", [F23], {"approximate": "tanh"}, [F23]),
    ("trn.gelu_dx", [B23], {"approximate": "none"}, [B23]),
    ("trn.rotate_half", ["2x6xbfloat16"], {"width": 0, "pairs": True}, ["2x6xbfloat16"]),
    ("trn.rotate_half", ["2x7xbfloat16"], {"width": 4, "pairs": False}, ["2x7xbfloat16"]),
    ("trn.moments", ["2x3x4xbfloat16"], {"dimensions": (1, 2)}, ["2x2xfloat32"]),
    ("trn.softmax_statistics", ["2x3x4xbfloat16"], {"dimensions": (2,)}, ["2x2x3xfloat32"]),
    ("trn.sum_of_squares", ["2x3x4xbfloat16"], {"dimensions": (1, 2)}, ["2xfloat32"]),
    ("trn.max_pool", ["2x9x6xfloat32"], WINDOWS, ["2x4x6xfloat32"]),
    ("trn.max_pool_backward", ["2x4x6xfloat32", "2x9x6xbfloat16"], {**WINDOWS, "ordered": False}, ["2x9x6xfloat32"]),
    ("trn.max_pool_backward", ["2x4x3xfloat32", "2x9x6xbfloat16"], ORDERED, ["2x9x6xfloat32"]),
    ("trn.attention", QKV, HEADS, [QKV[0], "2x4x5xfloat32"]),
    ("trn.avg_pool", ["2x9x6xbfloat16"], AVERAGES, ["2x4x6xbfloat16"]),
    ("trn.avg_pool_backward", ["2x4x6xfloat32"], {**AVERAGES, "size": (9, 6)}, ["2x9x6xfloat32"]),
    ("trn.resize", ["2x9x7xbfloat16"], RESIZED, ["2x4x6xbfloat16"]),
    ("trn.resize_backward", ["2x4x6xfloat32"], {**RESIZED, "size": (9, 7)}, ["2x9x7xfloat32"]),
    ("trn.attention", [*QKV, "1x1x5x7xfloat32"], HEADS, [QKV[0], "2x4x5xfloat32"]),
    ("trn.attention", [*QKV[:2], "2x2x7x3xbfloat16"], HEADS, ["2x4x5x3xbfloat16", "2x4x5xfloat32"]),
    (
        "trn.attention_backward",
        ["2x4x5x3xbfloat16", *QKV[:2], "2x2x7x3xbfloat16", "2x4x5x3xbfloat16", "2x4x5xfloat32"],
        BACK,
        [*QKV[:2], "2x2x7x3xbfloat16"],
    ),
    ("trn.attention", [*QKV, "1x4x7x1xfloat32"], SHIFTED, [QKV[0], "2x4x5xfloat32"]),
    ("trn.attention_backward", [QKV[0], *QKV, QKV[0], "2x4x5xfloat32"], BACK, QKV),
    (
        "trn.attention_backward",
        [QKV[0], *QKV, QKV[0], "2x4x5xfloat32", "1x4x5x7xfloat32", "1x1x5x1xfloat32"],
        {**BACK, "shifted": True, "dbias": "sum"},
        [*QKV, "1x4x5x7xfloat32"],
    ),
]

REFUSED = [
    ("conv", [], {}, "TRN301"),
    ("add", [F23], {}, "TRN301"),
    ("concatenate", [], {"dimension": 0}, "TRN301"),
    ("add", [F23, "3xfloat32"], {}, "TRN302"),
    ("add", [F23, B23], {}, "TRN303"),
    ("add", [P23, P23], {}, "TRN303"),
    ("tanh", [I23], {}, "TRN303"),
    ("and", [F23, F23], {}, "TRN303"),
    ("negate", [F23], {"axis": 1}, "TRN304"),
    ("compare", [F23, F23], {}, "TRN304"),
    ("compare", [F23, F23], {"comparison_direction": "=="}, "TRN304"),
    ("select", [F23, F23, F23], {}, "TRN303"),
    ("select", ["3xbool", F23, F23], {}, "TRN302"),
    ("clamp", ["3xfloat32", F23, F23], {}, "TRN302"),
    ("constant", [], {"value": 1, "shape": (2,), "dtype": float32}, "TRN303"),
    ("constant", [], {"value": 1.0, "shape": (-2,), "dtype": float32}, "TRN302"),
    ("iota", [], {"iota_dimension": 2, "shape": (2, 3), "dtype": int32}, "TRN304"),
    ("trn.rng_uniform", ["int32"], {"shape": (2,), "first": 0}, "TRN303"),
    ("trn.rng_uniform", ["2xint32"], {"shape": (2,), "first": -1}, "TRN304"),
    ("trn.rng_philox", ["2xuint32"], {"shape": (2,)}, "TRN303"),
    ("broadcast_in_dim", ["3xfloat32"], {"broadcast_dimensions": (0,), "shape": (2, 3)}, "TRN302"),
    ("broadcast_in_dim", ["3xfloat32"], {"broadcast_dimensions": (2,), "shape": (2, 3)}, "TRN304"),
    ("broadcast_in_dim", ["3xfloat32"], {"broadcast_dimensions": (), "shape": (2, 3)}, "TRN304"),
    ("reshape", [F23], {"shape": (7,)}, "TRN302"),
    ("reshape", [F23], {"shape": [6]}, "TRN304"),
    ("transpose", [F23], {"permutation": (0, 0)}, "TRN304"),
    ("slice", [F23], {"start_indices": (0, 0), "limit_indices": (2, 4), "strides": (1, 1)}, "TRN302"),
    ("slice", [F23], {"start_indices": (0,), "limit_indices": (2,), "strides": (1,)}, "TRN304"),
    ("concatenate", [F23, "3x3xfloat32"], {"dimension": 1}, "TRN302"),
    ("concatenate", [F23, B23], {"dimension": 1}, "TRN303"),
    ("pad", [F23, "1xfloat32"], PAD, "TRN302"),
    ("reduce", [F23], {"dimensions": (2,), "kind": "add"}, "TRN304"),
    ("reduce", [F23], {"dimensions": (0,), "kind": "mean"}, "TRN304"),
    ("reduce", [F23], {"dimensions": (0,), "kind": "or"}, "TRN303"),
    ("reduce", [P23], {"dimensions": (0,), "kind": "add"}, "TRN303"),
    ("dot_general", [F23, "4x3xfloat32"], DOT, "TRN302"),
    ("dot_general", [F23, "3x4xint32"], DOT, "TRN303"),
    ("dot_general", [F23, "3x4xfloat32"], {**DOT, "rhs_contracting_dimensions": ()}, "TRN304"),
    ("dot_general", [F23, "3x4xfloat32"], {**DOT, "rhs_contracting_dimensions": (5,)}, "TRN304"),
    ("convolution", ["2x6x9x8xfloat32", "4x6x3x2xfloat32"], CONVOLUTION, "TRN302"),
    ("convolution", ["2x6x9x8xfloat32", "3x3x3x2xfloat32"], CONVOLUTION, "TRN302"),
    ("convolution", ["2x6x9x8xfloat32", "4x3x3xfloat32"], CONVOLUTION, "TRN302"),
    ("convolution", ["2x6x9x8xfloat32", "4x3x3x2xfloat32"], {**CONVOLUTION, "rhs_dilation": (0, 1)}, "TRN304"),
    ("convolution", ["2x6x9x8xfloat32", "4x3x3x2xfloat32"], {**CONVOLUTION, "padding_low": (0,)}, "TRN304"),
    ("convolution", ["2x6x9x8xfloat32", "4x3x3x2xfloat32"], {**CONVOLUTION, "batch_group_count": 2}, "TRN304"),
    ("gather", ["9x5xfloat32", F23], ROWS, "TRN303"),
    ("gather", ["9x5xfloat32", I23], {**ROWS, "slice_sizes": (1, 6)}, "TRN302"),
    ("gather", ["9x5xfloat32", I23], {**ROWS, "slice_sizes": (2, 5)}, "TRN302"),
    ("gather", ["9x5xfloat32", I23], {**ROWS, "offset_dims": (3,)}, "TRN304"),
    ("gather", ["9x5xfloat32", I23], {**ROWS, "index_vector_dim": 1}, "TRN302"),
    ("scatter", ["9x5xfloat32", I23, "2x3x6xfloat32"], ADD_ROWS, "TRN302"),
    ("scatter", ["9x5xfloat32", I23, "2x4x5xfloat32"], ADD_ROWS, "TRN302"),
    ("scatter", ["9x5xfloat32", I23, "2x3x5xbfloat16"], ADD_ROWS, "TRN303"),
    ("trn.take_along", ["2x9xfloat32", "3x5xint32"], {}, "TRN302"),
    ("trn.take_along", ["2x9xfloat32", "2x5xfloat32"], {}, "TRN303"),
    ("trn.sum_along", ["2x5xfloat32", "2x4xint32"], {"places": 9, "dtype": float32}, "TRN302"),
    ("trn.sum_along", ["2x5xint32", "2x5xint32"], {"places": 9, "dtype": float32}, "TRN303"),
    ("trn.sum_rows", ["4x3xfloat32", "3xint32"], {"rows": 9}, "TRN302"),
    ("trn.sum_rows", ["4x3xint32", "4xint32"], {"rows": 9}, "TRN303"),
    ("trn.put_rows", ["9x3xfloat32", "4xint32", "4x2xfloat32"], {}, "TRN302"),
    ("trn.put_rows", ["9x3xfloat32", "4xint32", "4x3xbfloat16"], {}, "TRN303"),
    ("trn.put_rows", ["9x3xfloat32", "4xfloat32", "4x3xfloat32"], {}, "TRN303"),
    ("trn.grouped_dot", ["6x4xfloat32", "3x4x5xfloat32", "2xint32"], GROUPED, "TRN302"),
    ("trn.grouped_dot", ["6x4xfloat32", "3x5x4xfloat32", "3xint32"], GROUPED, "TRN302"),
    ("trn.grouped_dot", ["6x4xfloat32", "3x4x5xfloat32", "3xfloat32"], GROUPED, "TRN303"),
    ("trn.grouped_dot", ["6x4xfloat32", "3x4x5xbfloat16", "3xint32"], GROUPED, "TRN303"),
    ("trn.grouped_dot", ["6x4xint32", "3x4x5xint32", "3xint32"], GROUPED, "TRN303"),
    ("trn.grouped_outer", ["6x4xfloat32", "5x5xfloat32", "3xint32"], GROUPED, "TRN302"),
    ("trn.attention", [QKV[0], "2x3x7x8xbfloat16", "2x3x7x8xbfloat16"], HEADS, "TRN302"),
    ("trn.attention", [*QKV, "2x4x5x6xfloat32"], HEADS, "TRN302"),
    ("trn.attention", [*QKV[:2], "2x2x6x8xbfloat16"], HEADS, "TRN302"),
    (
        "trn.attention_backward",
        [QKV[0], *QKV[:2], "2x2x7x3xbfloat16", QKV[0], "2x4x5xfloat32"],
        BACK,
        "TRN302",
    ),
    ("trn.attention", [*QKV, "2x4x5x7xfloat32"], SHIFTED, "TRN302"),
    ("trn.attention", QKV, {"causal": 1, "scale": 0.5}, "TRN304"),
    ("trn.avg_pool", ["2x9x6xfloat32"], {**AVERAGES, "counted": (0, -1)}, "TRN302"),
    ("trn.avg_pool", ["2x9x6xfloat32"], {**AVERAGES, "divisor": float("nan")}, "TRN302"),
    ("trn.avg_pool_backward", ["2x4x5xfloat32"], {**AVERAGES, "size": (9, 6)}, "TRN302"),
    ("trn.resize", ["2x9x7xfloat32"], {**RESIZED, "places": (4, 0)}, "TRN302"),
    ("trn.resize", ["2x9x7xfloat32"], {**RESIZED, "row_scale": float("inf")}, "TRN302"),
    ("trn.resize", ["7xfloat32"], RESIZED, "TRN302"),
    ("trn.resize_backward", ["2x4x5xfloat32"], {**RESIZED, "size": (9, 7)}, "TRN302"),
]


@pytest.mark.parametrize(("name", "operands", "attrs", "results"), FOLLOWS)
def test_result_types_follow(name, operands, attrs, results):
    assert infer(name, [typed(t) for t in operands], attrs) == tuple(typed(t) for t in results)


@pytest.mark.parametrize(("name", "operands", "attrs", "code"), REFUSED)
def test_refused_with_a_code_and_the_numbers(name, operands, attrs, code):
    with pytest.raises(GraphError) as caught:
        infer(name, [typed(t) for t in operands], attrs)
    assert caught.value.code == code
    assert name in caught.value.what
    assert caught.value.limit is not None or caught.value.remedy is not None


def test_every_op_has_an_example():
    elsewhere = {"custom_call", "loop"}  # see test_graph_custom_call, test_graph_loops
    assert {name for name, *_ in FOLLOWS} == set(OPS) - elsewhere
