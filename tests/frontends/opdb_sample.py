# SPDX-License-Identifier: Apache-2.0
"""Which operators of PyTorch's database CI runs, in which dtypes: at least one of every family of lowerings."""

_FLOATS = ("float32", "bfloat16")
_ALL = ("float32", "int64", "uint8")
_INTS = ("int64", "int32", "uint8", "bool")

OPERATORS = {
    **dict.fromkeys(("add", "sub", "mul", "where", "maximum", "clamp", "abs"), _ALL),
    **dict.fromkeys(("bitwise_and", "logical_not", "eq", "any", "sum", "cumsum"), _INTS),
    **dict.fromkeys(("argmax", "max_reduction_with_dim"), _ALL),
    **dict.fromkeys(("exp", "log1p", "sqrt", "tanh", "softmax", "log_softmax", "nn_functional_gelu"), _FLOATS),
    **dict.fromkeys(
        ("nn_functional_layer_norm", "nn_functional_cross_entropy", "nn_functional_mse_loss"), ("float32",)
    ),
    **dict.fromkeys(("matmul", "addmm", "bmm", "mean", "var", "amax", "linalg_vector_norm"), ("float32",)),
    **dict.fromkeys(("cat", "transpose", "reshape", "nn_functional_pad_constant", "flip", "tril", "repeat"), _ALL),
    **dict.fromkeys(
        ("gather", "scatter", "scatter_add", "index_select", "index_put", "index_add"), ("float32", "int64")
    ),
    **dict.fromkeys(("masked_select", "masked_scatter", "nonzero", "__getitem__"), ("float32", "int64")),
    **dict.fromkeys(("take", "as_strided", "unfold", "index_copy", "nn_functional_embedding"), ("float32",)),
    **dict.fromkeys(("diagonal", "diagonal_scatter", "cummax", "median", "searchsorted"), ("float32", "int64")),
    **dict.fromkeys(("cdist", "nn_functional_bilinear", "nn_functional_grid_sample", "norm"), ("float32",)),
    **dict.fromkeys(("real", "imag", "conj", "view_as_real", "angle", "reciprocal", "mm", "stack"), ("complex64",)),
    **dict.fromkeys(("complex", "polar", "view_as_complex"), ("float32",)),
    **dict.fromkeys(("add", "mul", "abs", "where", "exp"), ("float32", "int64", "uint8", "complex64")),
    **dict.fromkeys(("full_like", "arange", "new_full", "sort", "nn_functional_conv2d"), ("float32",)),
}
