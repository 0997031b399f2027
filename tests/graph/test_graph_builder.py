# SPDX-License-Identifier: Apache-2.0
"""The builder: explicit broadcasting, numbers as operands, constants kept small, locations in errors."""

import numpy as np
import pytest
from graph_samples import every_op

from trnlab.errors import GraphError, Location
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ops import CALL, COLLECTIVE, OPS
from trnlab.numerics.dtypes import bfloat16, bool_, float32, int32, uint8


def names(b):
    return [op.name for op in b.graph.ops]


def test_broadcasts_are_ops():
    b = GraphBuilder("g")
    x, w = b.input("x", (8, 1, 4), float32), b.input("w", (3, 1), float32)
    assert b.add(x, w).shape == (8, 3, 4)
    assert names(b) == ["broadcast_in_dim", "broadcast_in_dim", "add"]
    assert b.graph.ops[1].attrs["broadcast_dimensions"] == (1, 2)


def test_equal_shapes_insert_nothing():
    b = GraphBuilder("g")
    x = b.input("x", (8,), float32)
    b.convert(b.reshape(b.broadcast_to(b.add(x, x), (8,)), (-1,)), float32)
    assert names(b) == ["add"]


def test_a_number_takes_the_other_operands_type_and_is_not_filled_in():
    b = GraphBuilder("g")
    x = b.input("x", (1 << 20, 1 << 20), bfloat16)
    b.subtract(1, x)
    constant = b.graph.ops[0].result
    assert constant.type == x.type
    assert constant.op.attrs["value"] == 1.0


def test_numbers_are_rounded_to_their_format():
    b = GraphBuilder("g")
    assert b.constant(0.1, bfloat16).op.attrs["value"] == 0.10009765625
    assert b.constant(1e300).op.attrs["value"] == np.inf


def test_uniform_arrays_become_numbers_and_signed_zeros_stay():
    b = GraphBuilder("g")
    assert b.constant(np.full((3, 4), 2.5)).op.attrs["value"] == 2.5
    assert np.signbit(b.constant(np.array([0.0, -0.0])).op.attrs["value"]).tolist() == [False, True]
    assert b.constant(np.array([True, False])).type.dtype is bool_


def test_constants_cannot_be_written_to():
    value = GraphBuilder("g").constant(np.arange(4)).op.attrs["value"]
    with pytest.raises(ValueError, match="read-only"):
        value[0] = 1


@pytest.mark.parametrize(("number", "dt"), [(256, uint8), (0.5, int32), (-1, uint8)])
def test_numbers_outside_of_their_format_are_refused(number, dt):
    with pytest.raises(GraphError, match="outside of its format"):
        GraphBuilder("g").constant(number, dt)


def test_errors_say_the_line_of_the_user():
    b = GraphBuilder("g")
    x, y = b.input("x", (2, 3), float32), b.input("y", (4,), float32)
    with pytest.raises(GraphError) as caught, b.at(Location("train.py", 7), "aten.add"):
        b.add(x, y)
    assert "train.py:7" in str(caught.value)
    assert b.loc is None
    b.loc = Location("train.py", 9)
    with pytest.raises(GraphError, match=r"train\.py:9"):
        b.op("add", x, y)


def test_ops_carry_location_and_origin():
    b = GraphBuilder("g")
    with b.at(Location("train.py", 7), "aten.add"):
        b.add(b.input("x", (2,), float32), 1)
    assert {(op.loc.line, op.origin) for op in b.graph.ops} == {(7, "aten.add")}


def test_products_sum_in_float32_unless_told():
    b = GraphBuilder("g")
    x = b.input("x", (5, 2, 3), bfloat16)
    y = b.input("y", (5, 3, 4), bfloat16)
    assert (b.matmul(x, y).type.dtype, b.matmul(x, y, bfloat16).type.dtype) == (float32, bfloat16)


def test_every_op_has_a_method():
    elsewhere = {
        name for name, d in OPS.items() if d.kind in (CALL, COLLECTIVE)
    }  # test_graph_custom_call, _collectives
    assert {op.name for op in every_op().ops} == set(OPS) - elsewhere
