# SPDX-License-Identifier: Apache-2.0
"""What kernels of public libraries do and a kernel of ours did not: small kernels against NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab.errors import ConstraintError, UsageError
from trnlab.nki import neuron_dtypes

Array = np.ndarray[Any, Any]


def _normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _loaded(x: Any) -> Any:
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def test_the_scalar_column_of_scalar_tensor_tensor_has_any_format() -> None:
    """nki.isa says that all input tiles of the instruction can have any format, the column included."""

    @nki.jit
    def kernel(x: Any, column: Any, y: Any) -> Any:
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        tile = _loaded(x)
        nisa.scalar_tensor_tensor(
            dst=tile, data=tile, op0=nl.multiply, operand0=_loaded(column), op1=nl.add, operand1=_loaded(y)
        )
        nisa.dma_copy(dst=out, src=tile)
        return out

    x, y = _normal(128, 64), _normal(128, 64, seed=1)
    for kind in (ml_dtypes.bfloat16, np.float16):
        column = _normal(128, 1, seed=2).astype(kind)
        np.testing.assert_array_equal(kernel(x, column, y), x * column.astype(np.float32) + y)


@dataclass
class Settings(nl.NKIObject):
    """A class as kernels write it: a value without annotation, a field without value."""

    rows: int
    scale = 2.0


class Plain(nl.NKIObject):
    """The same without the decorator."""

    rows: int
    scale = 2.0

    def __post_init__(self) -> None:
        self.twice = None if self.rows is None else 2 * self.rows


def test_classes_of_kernels_are_data_classes_with_or_without_decorator() -> None:
    """Fields are arguments in order and by name, and None where neither the call nor the class says."""
    for kind in (Settings, Plain):
        assert (kind(3).rows, kind(3).scale) == (3, 2.0)
        assert (kind(rows=4, scale=1.0).rows, kind(scale=1.0).scale) == (4, 1.0)
        assert kind().rows is None
    assert Plain(5).twice == 10
    with pytest.raises(TypeError):
        Plain(1, 2, 3)


@pytest.mark.parametrize("name", ["float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"])
def test_packed_formats_cross_the_border_of_the_chip(name: str) -> None:
    """Packed arrays go in and come out with their format, bit by bit; casts pack and spread four values."""

    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=_loaded(x))
        return out

    packed = neuron_dtypes.static_cast(_normal(32, 64), getattr(neuron_dtypes, name))
    assert packed.shape == (32, 16)
    assert str(packed.dtype) == str(packed[::2, 1:].copy().dtype) == name
    assert str(np.dtype([("a", "u1")])) == "[('a', 'u1')]"  # other records are as NumPy writes them
    assert packed.dtype == np.zeros(1, getattr(nl, name)).dtype
    result = kernel(packed)
    assert result.dtype == packed.dtype
    assert result.tobytes() == packed.tobytes()
    spread = neuron_dtypes.static_cast(result, np.float32)
    np.testing.assert_array_equal(neuron_dtypes.static_cast(spread, name).tobytes(), packed.tobytes())
    with pytest.raises(TypeError):
        packed.astype(np.float32)


def test_a_register_is_loaded_from_any_partition() -> None:
    """A sequencer reads memory by address: the rule of an engine's first partitions is not its own."""

    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((1, 4), nl.int32, buffer=nl.shared_hbm)
        tile = _loaded(x)
        for column in range(4):
            register = nisa.register_alloc()
            nisa.register_load(register, tile[column + 1 : column + 2, column : column + 1])
            nisa.register_store(out[0:1, column : column + 1], register)
        return out

    x = np.arange(32, dtype=np.int32).reshape(8, 4)
    np.testing.assert_array_equal(kernel(x)[0], [x[c + 1, c] for c in range(4)])


def test_a_tensor_is_true_as_an_argument_that_is_there() -> None:
    """Kernels write `if bias:` for `if bias is not None:`; the compiler takes it so, and so does this."""

    @nki.jit
    def kernel(x: Any, bias: Any = None) -> Any:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = _loaded(x)
        if bias:
            nisa.tensor_tensor(dst=tile, data1=tile, data2=_loaded(bias), op=nl.add)
        nisa.dma_copy(dst=out, src=tile)
        return out

    x = _normal(128, 16)
    np.testing.assert_array_equal(kernel(x), x)
    np.testing.assert_array_equal(kernel(x, x), x + x)


def test_memset_of_integers_takes_a_whole_number_in_a_float() -> None:
    """Kernels of an earlier release write 0.0 for integer tiles; 0.5 stays a mistake."""

    @nki.jit
    def kernel(value: float) -> Any:
        out = nl.ndarray((128, 8), nl.uint8, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 8), nl.uint8, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=value)
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert (kernel(3.0) == 3).all()
    with pytest.raises(ConstraintError, match="TRN411"):
        kernel(0.5)


def test_what_cores_exchange_may_have_gaps_that_nobody_uses() -> None:
    """Kernels send whole tiles whose last partitions hold nothing; the sum of the rest is defined."""

    @nki.jit
    def kernel(x: Any) -> Any:
        core, rows = nl.program_id(0), x.shape[0]
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        mine = nl.ndarray((128, x.shape[1]), nl.float32, buffer=nl.sbuf)
        other = nl.ndarray((128, x.shape[1]), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=mine[0:rows], src=x)
        nisa.sendrecv(dst=other, src=mine, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        nisa.tensor_tensor(dst=mine, data1=mine, data2=other, op=nl.add)
        if core == 0:
            nisa.dma_copy(dst=out, src=mine[0:rows])
        return out

    x = _normal(32, 64)
    np.testing.assert_array_equal(kernel[2](x), x + x)


def test_undefined_values_that_are_written_over_do_not_matter() -> None:
    """A kernel stores whole blocks whose last columns hold nothing, and then the next block over them."""

    def kernel(x: Any, last: bool) -> Any:
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        for first in (0, 96):
            tile = nl.ndarray((128, 160), nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile[:, 0:96], src=x[:, first : first + 96])
            width = 160 if first == 0 or last else 96
            nisa.dma_copy(dst=out[:, first : first + width], src=tile[:, 0:width])
        return out

    x = _normal(128, 256)
    with nki.checks(unwritten_output="off"):
        np.testing.assert_array_equal(nki.jit(kernel)(x, False)[:, :192], x[:, :192])
        with pytest.raises(ConstraintError, match=r"TRN430.*\n(.*\n)*.*8192 of 20480 elements"):
            nki.jit(kernel)(x, True)


def test_scratch_that_another_core_may_read_is_no_result() -> None:
    """On two cores HBM is shared: what is undefined in a part of it that nobody returns is no finding."""

    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        scratch = nl.ndarray((2, 128, 64), nl.float32, buffer=nl.shared_hbm)
        core = nl.program_id(0)
        tile = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[0:32], src=x[0:32])
        nisa.dma_copy(dst=scratch[core], src=tile)
        if core == 0:
            nisa.dma_copy(dst=out, src=scratch[0, 0:32])
        return out

    x = _normal(32, 64)
    np.testing.assert_array_equal(kernel[2](x), x)


def test_scales_of_mx_are_those_of_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """From NKI 0.5.0 on a block's scale is twice that of the standard's sample algorithm, which it was before."""

    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")

    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((32, 16), nl.uint8, buffer=nl.shared_hbm)
        packed = nl.ndarray((32, 16), nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        scale = nl.ndarray((32, 16), nl.uint8, buffer=nl.sbuf)
        nisa.memset(scale, value=0)
        nisa.quantize_mx(dst=packed, src=_loaded(x), dst_scale=scale)
        nisa.dma_copy(dst=out, src=scale)
        return out

    x = np.full((32, 64), 1.5, ml_dtypes.bfloat16)
    assert kernel(x)[0, 0] == 127 - 7
    monkeypatch.setenv("TRNLAB_NKI_RELEASE", "0.4")
    assert kernel(x)[0, 0] == 127 - 8
    monkeypatch.setenv("TRNLAB_NKI_RELEASE", "0.5.1")
    assert kernel(x)[0, 0] == 127 - 7
    monkeypatch.setenv("TRNLAB_NKI_RELEASE", "old")
    with pytest.raises(UsageError, match="TRN490"):
        kernel(x)


def test_what_a_group_of_mx_does_not_hold_does_not_spoil_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that nothing wrote are quantized with the rest; rows of a product without them are defined."""
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")

    def kernel(x: Any, rows: int) -> Any:
        out = nl.ndarray((32, 32), nl.float32, buffer=nl.shared_hbm)
        data = nl.ndarray((32, 128), nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=data[:, 0:64], src=x)
        words, scales = (nl.ndarray((32, 32), f, buffer=nl.sbuf) for f in (nl.float8_e4m3fn_x4, nl.uint8))
        nisa.quantize_mx(dst=words, src=data, dst_scale=scales)
        product = nl.ndarray((32, 16), nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(product, words, words[:, 0:16], scales, scales[:, 0:16])
        copied = nl.ndarray((32, 16), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=copied, src=product)
        nisa.dma_copy(dst=out[0:rows, 0:16], src=copied[0:rows])
        return out

    x = _normal(32, 64).astype(ml_dtypes.bfloat16)
    with nki.checks(unwritten_output="off"):
        assert np.isfinite(nki.jit(kernel)(x, 16)[:16, :16]).all()
        with pytest.raises(ConstraintError, match="TRN430"):
            nki.jit(kernel)(x, 17)
