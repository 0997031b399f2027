# SPDX-License-Identifier: Apache-2.0
"""What collectives are for is read from what they carry."""

import pytest

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.purposes import name_purposes
from trnlab.numerics.dtypes import dtype, float32

ALL = ((0, 1, 2, 3),)


def purposes(make, said=""):
    """Of a step with a parameter w [16, 16] that it overwrites, an activation x [8, 16] and a part of it."""
    b = GraphBuilder("step")
    w, x = b.input("w", (16, 16), float32), b.input("x", (8, 16), float32)
    result = make(b, w, x)
    b.output(result, alias_of=w if result.shape == (16, 16) else None)
    graph = b.build()
    found = [op for op in graph.ops if "purpose" in op.attrs]
    for op in found:
        op.attrs["purpose"] = said
    name_purposes(graph)
    return [op.attrs["purpose"] for op in found]


def gradient(b, x):
    return b.matmul(b.transpose(x, (1, 0)), x)


def ddp(b, w, x):
    summed = b.all_reduce([gradient(b, x)], ALL)[0]
    return b.subtract(w, b.multiply(b.divide(summed, 4.0), 0.1))


def ddp_with_clipping(b, w, x):
    summed = b.all_reduce([gradient(b, x)], ALL)[0]
    norm = b.sqrt(b.all_reduce([b.reduce(b.multiply(summed, summed), (0, 1))], ALL)[0])
    return b.subtract(w, b.divide(summed, b.broadcast_to(norm, (16, 16))))


def in_one_bucket(b, w, x):
    both = b.concatenate([b.reshape(gradient(b, x), (256,)), b.reshape(gradient(b, x), (256,))], 0)
    scattered = b.reduce_scatter([both], ALL)[0]
    again = b.all_gather([scattered], ALL)[0]
    return b.subtract(w, b.reshape(b.slice_dim(again, 0, 0, 256), (16, 16)))


def gathered_weights(b, w, x):
    whole = b.all_gather([b.convert(b.reshape(w, (256,)), dtype("bfloat16"))], ALL)[0]
    y = b.matmul(x, b.convert(b.reshape(b.slice_dim(whole, 0, 0, 256), (16, 16)), float32))
    return b.subtract(w, b.reduce(b.broadcast_to(b.reduce(y, (0, 1)), (16, 16, 1)), (2,)))


def updated_shard(b, w, x):
    part = b.subtract(b.slice_dim(w, 0, 0, 4), b.slice_dim(x, 0, 0, 4))
    return b.all_gather([part], ALL)[0]


def row_parallel(b, w, x):
    y = b.all_reduce([b.matmul(x, w)], ALL)[0]
    return b.subtract(w, gradient(b, b.tanh(y)))


def sequence_parallel(b, w, x):
    y = b.matmul(b.all_gather([b.tanh(x)], ALL)[0], w)
    return b.subtract(w, gradient(b, b.reduce_scatter([y], ALL)[0]))


def experts(b, w, x):
    return b.subtract(w, gradient(b, b.all_to_all(b.matmul(x, w), ALL)))


def stages(b, w, x):
    return b.subtract(w, gradient(b, b.collective_permute(b.tanh(x), [(0, 1)])))


@pytest.mark.parametrize(
    ("make", "said", "expected"),
    [
        (ddp, "", ["gradient"]),
        (ddp, "tensor", ["gradient"]),
        (ddp_with_clipping, "", ["gradient", "other"]),
        (in_one_bucket, "", ["gradient", "gradient"]),
        (gathered_weights, "", ["parameter"]),
        (updated_shard, "", ["parameter"]),
        (row_parallel, "", ["tensor"]),
        (row_parallel, "sequence", ["sequence"]),
        (sequence_parallel, "tensor", ["sequence", "sequence"]),
        (experts, "", ["expert"]),
        (experts, "sequence", ["sequence"]),
        (stages, "", ["pipeline"]),
    ],
)
def test_a_purpose_follows_from_where_data_come_from_and_go(make, said, expected):
    assert purposes(make, said) == expected


@pytest.mark.parametrize(("said", "expected"), [("", "parameter"), ("tensor", "sequence")])
def test_a_batch_gathered_by_ranks_of_a_product_is_no_parameter(said, expected):
    assert purposes(lambda b, w, x: b.matmul(b.all_gather([x], ALL)[0], b.tanh(w)), said) == [expected]
