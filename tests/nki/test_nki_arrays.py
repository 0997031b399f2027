# SPDX-License-Identifier: Apache-2.0
"""Arrays at the border of a kernel: the same kind and device out, every bit kept, strided and read-only ones too."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab.errors import UsageError


@nki.jit
def copy(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out


@nki.jit
def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.load(x), 2.0))
    return out


@nki.jit
def double_into(x, out):
    nl.store(out, nl.multiply(nl.load(x), 2.0))


def every_bit(kind):
    """All patterns of an 8-bit format, or of a 16-bit one, as [128, n]."""
    width = np.dtype(kind).itemsize
    return np.arange(1 << 8 * width, dtype=f"u{width}").reshape(128, -1).view(kind)


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, np.float16])
def test_every_bit_pattern_survives_numpy(kind):
    x = every_bit(kind)
    result = copy(x)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result.view(np.uint8), x.view(np.uint8))


@pytest.mark.torch
@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "float16", "int8", "bool"])
def test_every_bit_pattern_survives_torch(name, device):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, name)
    carrier = torch.int16 if kind.itemsize == 2 else torch.uint8
    bits = torch.arange(1 << 8 * kind.itemsize, dtype=torch.int32).to(carrier).reshape(128, -1)
    x = (bits & 1).bool() if name == "bool" else bits.view(kind)
    result = copy(x.to(device))
    assert (result.dtype, result.device.type) == (kind, device)
    assert torch.equal(result.cpu().view(carrier), x.view(carrier))


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
def test_strided_arrays_are_read_as_they_are(kind):
    x = np.arange(64 * 128, dtype=np.float32).astype(kind).reshape(64, 128)
    np.testing.assert_array_equal(double(x.T), x.T * kind(2))
    np.testing.assert_array_equal(double(x[::2, 5::3]), x[::2, 5::3] * kind(2))


def test_what_a_kernel_writes_reaches_strided_and_wider_arguments():
    x = np.ones((64, 32), np.float32)
    whole = np.zeros((64, 64), np.float32)
    double_into(x, whole[:, ::2])
    np.testing.assert_array_equal(whole, np.tile([2.0, 0.0], (64, 32)))
    wide = np.zeros((64, 32), np.float64)
    double_into(x, wide)
    assert (wide == 2).all()


@pytest.mark.torch
@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_what_a_kernel_writes_reaches_tensors(device):
    torch = pytest.importorskip("torch")
    x, whole = torch.ones(64, 32).to(device), torch.zeros(32, 64).to(device)
    double_into(x, whole.T)
    assert (whole.cpu() == 2).all()


def test_a_read_only_argument_that_is_written_is_refused():
    frozen = np.zeros((64, 32), np.float32)
    frozen.flags.writeable = False
    double(frozen)
    with pytest.raises(UsageError, match="TRN130"):
        double_into(np.ones((64, 32), np.float32), frozen)


def test_results_are_like_the_frameworks_array_where_kinds_mix():
    torch = pytest.importorskip("torch")

    @nki.jit
    def add(x, y):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.add(nl.load(x), nl.load(y)))
        return out

    assert isinstance(add(np.ones((8, 8), np.float32), torch.ones(8, 8)), torch.Tensor)


# -- JAX ----------------------------------------------------------------------------------------------------------


def test_jax_arrays_in_and_out_bit_by_bit():
    jax = pytest.importorskip("jax")
    for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float32):
        x = jax.numpy.asarray(every_bit(kind) if kind is not np.float32 else np.eye(128, dtype=np.float32))
        result = copy(x)
        assert isinstance(result, jax.Array)
        assert (result.dtype, result.device) == (x.dtype, x.device)
        np.testing.assert_array_equal(np.asarray(result).view(np.uint8), np.asarray(x).view(np.uint8))


def test_a_kernel_that_writes_leaves_arrays_of_jax_as_they_were():
    jax = pytest.importorskip("jax")
    out = jax.numpy.zeros((64, 32))
    double_into(jax.numpy.ones((64, 32)), out)
    assert (np.asarray(out) == 0).all()


def test_a_kernel_inside_of_jit_grad_and_vmap():
    jax = pytest.importorskip("jax")

    @jax.custom_vjp
    def doubled(x):
        return double(x)

    doubled.defvjp(lambda x: (double(x), None), lambda _, dy: (double(dy),))
    x = jax.numpy.arange(64.0 * 32).reshape(64, 32)
    np.testing.assert_allclose(jax.jit(lambda x: double(x) + 1)(x), 2 * x + 1)
    gradient = jax.jit(jax.grad(lambda x: (doubled(x) ** 2).sum()))(x)
    np.testing.assert_allclose(gradient, 8 * x)
    many = jax.numpy.stack([x, x + 1])
    np.testing.assert_allclose(jax.vmap(double)(many), 2 * many)


def test_a_kernel_that_writes_its_arguments_is_refused_inside_of_jit():
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones((64, 32))
    with pytest.raises(UsageError, match="TRN131") as refused:
        jax.jit(lambda x, out: double_into(x, out))(x, x)
    assert "out" in str(refused.value)
