# SPDX-License-Identifier: Apache-2.0
"""Materialised transposes: every bit in its place, for all shapes and views."""

import numpy as np
import pytest

from trnlab.chips import catalog
from trnlab.kernels.transpose import transpose2d
from trnlab.kernels.view import full
from trnlab.numerics.dtypes import dtype
from trnlab.program.builder import Builder
from trnlab.sim.functional import Machine

SHAPES = [(1, 1), (1, 300), (300, 1), (128, 128), (129, 513), (700, 130), (1100, 1030)]


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_transpose_moves_every_element(shape, kind, target):
    rows, cols = shape
    b = Builder("turn", catalog.get(target), sbuf_limit=60_000)
    x, y = b.param("x", (rows, cols), kind), b.param("y", (cols, rows), kind)
    transpose2d(b, full(x), full(y))
    values = np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype(kind).numpy)
    got = np.zeros((cols, rows), values.dtype)
    Machine(b.chip).call(b.build(), [values, got])
    assert (got.view(np.uint8) == np.ascontiguousarray(values.T).view(np.uint8)).all()


def test_transpose_between_strided_views():
    """A slice of a matrix into a slice of a stack; what lies around it stays."""
    b = Builder("turn", catalog.get("trn1"))
    x, y = b.param("x", (200, 300), "float32"), b.param("y", (3, 150, 140), "float32")
    transpose2d(b, full(x)[20:150, 70:200], full(y)[1, 5:135, 2:132])
    values = np.random.default_rng(0).standard_normal((200, 300), np.float32)
    got = np.ones((3, 150, 140), np.float32)
    Machine(b.chip).call(b.build(), [values, got])
    expected = np.ones_like(got)
    expected[1, 5:135, 2:132] = values[20:150, 70:200].T
    np.testing.assert_array_equal(got, expected)
