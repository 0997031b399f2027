# SPDX-License-Identifier: Apache-2.0
"""Forms that published kernels of the newer dialect use: their values against NumPy, when recorded with data and
without, and what the kernel is warned of."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab.checks import CheckWarning, checks
from trnlab.errors import ConstraintError
from trnlab.nki.lint import lint_function
from trnlab.nki.target import default_chip

SEED = 3


def matrix(*shape: int) -> np.ndarray:
    """Random float32."""
    return np.random.default_rng(SEED).standard_normal(shape).astype(np.float32)


def codes(kernel: Any, *args: Any) -> list[str]:
    """Of the warnings of a call, one for each line and text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel(*args)
    assert all(issubclass(w.category, CheckWarning) and w.filename == __file__ for w in caught), caught
    return [str(w.message)[:6] for w in caught]


# -- sums onto zeros ----------------------------------------------------------------------------------------------
@nki.jit
def products_onto_zeros(a, b, terms):
    """C = A @ B, and as many more of the same sum as `terms` says, all added to a tile of zeros."""
    rows, depth = a.shape
    out = nl.ndarray((rows, b.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    for m in nl.affine_range(rows // 128):
        total = nl.zeros((128, b.shape[1]), dtype=nl.float32, buffer=nl.psum)
        for k in nl.affine_range(depth // 128):
            at = nl.load_transpose2d(a[m * 128 : (m + 1) * 128, k * 128 : (k + 1) * 128])
            bt = nl.load(b[k * 128 : (k + 1) * 128, :])
            for _ in range(terms):
                nisa.nc_matmul(dst=total, stationary=at, moving=bt, accumulate=True)
        tile = nl.ndarray((128, b.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=total)
        nl.store(out[m * 128 : (m + 1) * 128, :], value=tile)
    return out


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("level", ["error", "warn", "off"])
def test_products_are_added_to_zeros(terms: int, level: str) -> None:
    a, b = matrix(256, 256), matrix(256, 64)
    with checks(accumulation=level):
        told = codes(products_onto_zeros, a, b, terms)
        assert set(told) == (set() if level == "off" else {"TRN433"})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.testing.assert_allclose(products_onto_zeros(a, b, terms), terms * (a @ b), rtol=1e-4, atol=1e-3)
            assert products_onto_zeros.timeline(a, b, terms).total > 0


def test_a_warning_is_shown_once() -> None:
    a, b = matrix(128, 128), matrix(128, 64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            products_onto_zeros(a, b, 3)
    assert len(caught) == 1


# -- tensor[key] = value --------------------------------------------------------------------------------------------
def assignments(x: Any, row: Any, out: Any, many: Any, made: Callable[..., Any], ops: Any) -> None:
    """The same statements on tensors of a kernel and on arrays."""
    t = made((128, 32))
    t[...] = x
    t[:, 0:1] = ops.multiply(t[:, 1:2], 2.0)
    t[:, 2:3] = 7
    t[5:6, :] = row
    t[0:64, 3:4] = t[64:128, 4:5]  # to other partitions
    t[:, 8:16] = t[:, 7:8]  # repeated
    t[:, 16:20] = ops.exp(t[:, 12:16])
    t[...] = t
    out[...] = t
    out[:, 20:21] = ops.exp(t[:, 0:1])
    out[7] = row[0]
    out[9:10, :] = t[9:10, :]
    many[0] = x
    many[1] = t
    many[2] = out
    many[3] = 0.5
    many[3, :, 4:6] = t[:, 4:6]


@nki.jit
def assigned(x, row):
    out = nl.ndarray((128, 32), dtype=x.dtype, buffer=nl.shared_hbm)
    many = nl.ndarray((4, 128, 32), dtype=x.dtype, buffer=nl.shared_hbm)
    assignments(x, row, out, many, lambda shape: nl.ndarray(shape, dtype=x.dtype), nl)
    return out, many


def test_tensors_are_assigned_to() -> None:
    x, row = matrix(128, 32), matrix(1, 32)
    out, many = np.zeros((128, 32), np.float32), np.zeros((4, 128, 32), np.float32)
    assignments(x, row, out, many, lambda shape: np.zeros(shape, np.float32), np)
    assert codes(assigned, x, row) == []
    for got, wanted in zip(assigned(x, row), (out, many)):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@nki.jit
def psum_and_formats(x):
    whole = nl.ndarray((128, 32), dtype=nl.int32, buffer=nl.shared_hbm)
    half = nl.ndarray((128, 32), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    sums = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.psum)
    sums[...] = x
    tile = nl.ndarray((128, 32), dtype=nl.int32)
    tile[:, 0:16] = nl.multiply(sums[:, 0:16], 8.0)
    tile[:, 16:32] = 3
    whole[...] = tile
    half[...] = sums
    return whole, half


def test_formats_are_the_targets() -> None:
    x = matrix(128, 32)
    assert lint_function(psum_and_formats.function, default_chip()) == []
    whole, half = psum_and_formats(x)
    np.testing.assert_array_equal(whole[:, :16], np.rint(x[:, :16] * 8))
    assert (whole[:, 16:] == 3).all()
    np.testing.assert_array_equal(half, x.astype(ml_dtypes.bfloat16))


@nki.jit
def columns(x, into_a_column):
    out = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.shared_hbm)
    tile, column = nl.load(x), nl.ndarray((128, 1), dtype=x.dtype)
    if into_a_column:
        column[...] = nl.multiply(tile[:, 0:1], 2.0)
    else:
        nisa.tensor_scalar(dst=column, data=tile[:, 0:1], op0=nl.multiply, operand0=2.0)
    nl.store(out, column)
    return out


def test_what_was_just_computed_is_not_copied() -> None:
    """The instruction writes to the target itself, so that the form costs what nisa with dst= does."""
    x = matrix(128, 8)
    told, named = (len(columns.trace(x, way).routine) for way in (True, False))
    assert told == named == 3
    assert columns.timeline(x, True).total == columns.timeline(x, False).total


@pytest.mark.parametrize(
    ("value", "code"), [(np.ones((128, 1)), "TRN411"), (None, "TRN411"), ([1.0], "TRN411"), ("wide", "TRN409")]
)
def test_what_cannot_be_assigned(value: Any, code: str) -> None:
    def kernel(x):
        tile = nl.load(x)
        tile[:, 0:1] = tile if isinstance(value, str) else value

    with pytest.raises(ConstraintError) as caught:
        nki.jit(kernel)(matrix(128, 8))
    where = caught.value.where
    assert (caught.value.code, where and where.file) == (code, __file__)


# -- tensors in HBM -------------------------------------------------------------------------------------------------
@nki.jit
def masked(a, bound, limit):
    """relu(bound * bound.T - limit) > 0 ? a : 0, with a limit that stays in HBM."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    pairs = nl.multiply(nl.load(bound), nl.load_transpose2d(bound))
    above = nl.relu(nl.subtract(pairs, limit))
    out[...] = nl.multiply(nl.load(a), nl.divide(above, nl.add(above, 1e-10)))
    return out


def test_an_operation_loads_what_lies_in_hbm() -> None:
    a, bound, limit = matrix(128, 128), np.abs(matrix(128, 1)), np.array([[0.3]], np.float32)
    wanted = np.where(bound * bound.T > 0.3, a, 0)
    assert codes(masked, a, bound, limit) == ["TRN417"]
    with checks(lint="off"):
        np.testing.assert_allclose(masked(a, bound, limit), wanted, rtol=1e-4, atol=1e-4)


UNARY = {
    "exp": np.exp,
    "negative": np.negative,
    "square": np.square,
    "sin": np.sin,
    "cos": np.cos,
    "copy": np.array,
    "floor": np.floor,
    "reciprocal": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
}


@nki.jit
def each_of_hbm(x, names):
    out = nl.ndarray((len(names), *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
    for i, name in enumerate(names):
        out[i] = getattr(nl, name)(x)
    return out


def test_every_operation_takes_hbm() -> None:
    x = np.abs(matrix(128, 16)) + 0.5
    with checks(lint="off"):
        got = each_of_hbm(x, tuple(UNARY))
    for one, (name, function) in zip(got, UNARY.items()):
        np.testing.assert_allclose(one, function(x), rtol=2e-3, atol=2e-3, err_msg=name)


@nki.jit
def copies_through_hbm(x):
    out = nl.ndarray((3, *x.shape), dtype=nl.float32, buffer=nl.shared_hbm)
    tile, sums = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, nl.float32, buffer=nl.psum)
    nisa.tensor_copy(dst=tile, src=x)
    nisa.tensor_copy(dst=sums, src=x)
    nisa.tensor_copy(dst=out[0], src=tile)
    nisa.tensor_copy(dst=out[1], src=sums)
    nisa.tensor_copy(dst=out[2], src=x)
    return out


@nki.jit
def transfers(x):
    out = nl.ndarray((1, *x.shape), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out[0], src=tile)
    return out


@nki.jit
def copies(x):
    out = nl.ndarray((1, *x.shape), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.tensor_copy(dst=tile, src=x)
    nisa.tensor_copy(dst=out[0], src=tile)
    return out


def test_a_copy_from_or_to_hbm_is_a_transfer() -> None:
    x = matrix(128, 64)
    assert codes(copies_through_hbm, x) == ["TRN417"] * 5
    with checks(lint="off"):
        np.testing.assert_array_equal(copies_through_hbm(x), np.stack([x] * 3))
        assert copies.timeline(x).total == transfers.timeline(x).total


def test_what_is_only_taken_is_an_error_where_one_asks() -> None:
    with checks(lint="error"), pytest.raises(ConstraintError) as caught:
        copies(matrix(128, 64))
    assert caught.value.code == "TRN417"


@nki.jit
def cast(x):
    out = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.shared_hbm)
    nl.store(out, nl.cast(nl.load(x), dtype=nl.bfloat16))
    return out


def test_cast() -> None:
    x = matrix(128, 16)
    assert codes(cast, x) == ["TRN417"]
    with checks(lint="off"):
        np.testing.assert_array_equal(cast(x), x.astype(ml_dtypes.bfloat16))
    assert [f.code for f in lint_function(cast.function, default_chip())] == ["TRN910"]


# -- small kernels of the kinds that use these forms ----------------------------------------------------------------
@nki.jit
def split_products(ar, ai, br, bi):
    """A complex product of four real ones in two sums, the minus on what moves."""
    shape = (ar.shape[0], br.shape[1])
    outs = [nl.ndarray(shape, dtype=ar.dtype, buffer=nl.shared_hbm) for _ in range(2)]
    sums = [nl.zeros(shape, dtype=nl.float32, buffer=nl.psum) for _ in range(2)]
    left = [nl.load_transpose2d(a) for a in (ar, ai)]
    right = [nl.load(b) for b in (br, bi)]
    for total, moving in zip(sums, ([right[0], nl.negative(right[1])], [right[1], right[0]])):
        for stationary, other in zip(left, moving):
            nisa.nc_matmul(dst=total, stationary=stationary, moving=other, accumulate=True)
    for out, total in zip(outs, sums):
        out[...] = total
    return tuple(outs)


def test_a_complex_product() -> None:
    a, b = matrix(64, 2 * 96).view(np.complex64), matrix(96, 2 * 32).view(np.complex64)
    parts = [np.ascontiguousarray(p) for p in (a.real, a.imag, b.real, b.imag)]
    with checks(accumulation="off"):
        real, imag = split_products(*parts)
    np.testing.assert_allclose(real + 1j * imag, a @ b, rtol=1e-4, atol=1e-3)


@nki.jit
def paired_normals(uniforms):
    """Box and Muller's transform, one column at a time."""
    pairs = nl.load(uniforms)
    radius = nl.sqrt(nl.multiply(nl.log(pairs[:, 0:1]), nl.full((128, 1), -2.0, dtype=nl.float32)))
    angle = nl.multiply(pairs[:, 1:2], nl.full((128, 1), 2 * math.pi, dtype=nl.float32))
    out = nl.ndarray((128, 2), dtype=nl.float32, buffer=nl.shared_hbm)
    out[:, 0:1] = nl.multiply(radius, nl.cos(angle))
    out[:, 1:2] = nl.multiply(radius, nl.sin(angle))
    return out


def test_normals_from_uniforms() -> None:
    u = np.random.default_rng(SEED).random((128, 2)).astype(np.float32) * 0.98 + 0.01
    radius, angle = np.sqrt(-2 * np.log(u[:, 0])), 2 * np.pi * u[:, 1]
    wanted = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    np.testing.assert_allclose(paired_normals(u), wanted, atol=2e-3)


@nki.jit
def byte_words(words):
    """words * 258 mod 2^32 by bytes with carries, which float32 holds exactly."""
    u = nl.copy(nl.load(words), dtype=nl.uint32)
    parts = [nl.bitwise_and(nl.right_shift(u, 8 * i, dtype=nl.uint32), 0xFF, dtype=nl.uint32) for i in range(4)]
    carry, out = nl.full((128, 1), 0, dtype=nl.uint32), nl.ndarray((128, 4), dtype=nl.int32, buffer=nl.shared_hbm)
    for i in range(4):
        total = nl.add(nl.multiply(parts[i], 2, dtype=nl.uint32), carry, dtype=nl.uint32)
        if i:
            total = nl.add(total, parts[i - 1], dtype=nl.uint32)
        out[:, i : i + 1] = nl.copy(nl.bitwise_and(total, 0xFF, dtype=nl.uint32), dtype=nl.int32)
        carry = nl.right_shift(total, 8, dtype=nl.uint32)
    return out


def test_words_of_bytes() -> None:
    words = np.random.default_rng(SEED).integers(0, 2**24, (128, 1), dtype=np.int64)
    wanted = (words * 258) % 2**32  # a copy to another integer format passes through float32, and 24 bits do
    got = byte_words(words.astype(np.int32)).astype(np.int64)
    np.testing.assert_array_equal((got << (8 * np.arange(4))).sum(1, keepdims=True), wanted)
