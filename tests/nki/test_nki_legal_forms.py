# SPDX-License-Identifier: Apache-2.0
"""Forms that the vendor's documents allow: each is a small kernel, against NumPy.

Sources are those of `trnlab.nki.refusals`: the reference of nki.isa and nki.language, the architecture guides, the
migration guide and the release notes in aws-neuron/aws-neuron-sdk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab.errors import ConstraintError
from trnlab.guards.snapshot import SnapshotReader
from trnlab.nki.imports import install_imports
from trnlab.nki.neuronxcc import isa as old_isa
from trnlab.nki.neuronxcc import language as old

Array = np.ndarray[Any, Any]
TRN = ("trn1", "trn2", "trn3")
X = np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32)
ABOVE = np.abs(X) + np.float32(0.5)
WHOLE = np.random.default_rng(1).integers(-(2**31), 2**31, (128, 64)).astype(np.int32)


def _run(monkeypatch: Any, chip: str, body: Callable[..., Any], *arrays: Array) -> Array:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", chip)
    return np.asarray(nki.simulate(nki.jit(body))(*arrays))


def _load(x: Any) -> Any:
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def _like(x: Any, dtype: Any = None) -> Any:
    return nl.ndarray(x.shape, dtype or x.dtype, buffer=nl.sbuf)


def _out(tile: Any) -> Any:
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@pytest.mark.parametrize("chip", TRN)
def test_reciprocal_takes_a_bias_from_the_second_generation_on(monkeypatch: Any, chip: str) -> None:
    """nki.api.shared, "Engine Selection": without bias on NeuronCore-v2 only."""

    def kernel(x: Any) -> Any:
        tile, bias = _load(x), nl.full((128, 1), 3.0, nl.float32)
        nisa.activation(dst=tile, op=nl.reciprocal, data=tile, bias=bias, scale=2.0)
        return _out(tile)

    if chip == "trn1":
        with pytest.raises(ConstraintError, match="reciprocal"):
            _run(monkeypatch, chip, kernel, ABOVE)
        return
    np.testing.assert_allclose(_run(monkeypatch, chip, kernel, ABOVE), 1 / (2 * ABOVE + 3), rtol=1e-5)


@pytest.mark.parametrize("chip", TRN)
def test_scalar_copies_tensors_on_every_generation(monkeypatch: Any, chip: str) -> None:
    """nki.isa.tensor_copy: on NeuronCore-v2 by way of float32, which is exact below 2**24."""

    def kernel(x: Any) -> Any:
        tile = _load(x)
        copied = _like(tile)
        nisa.tensor_copy(dst=copied, src=tile, engine=nisa.engine.scalar)
        return _out(copied)

    np.testing.assert_array_equal(_run(monkeypatch, chip, kernel, WHOLE >> 8), WHOLE >> 8)


def test_prelu_is_a_function_of_activate2_and_without_a_slope_of_activation(monkeypatch: Any) -> None:
    """nl.prelu in nki.language, and the table of activation functions in nki.api.shared."""

    def sloped(x: Any) -> Any:
        tile = _load(x)
        nisa.activate2(tile, nl.prelu, tile, 2.0, 1.0, nl.multiply, nl.add, relu_param=0.25)
        return _out(tile)

    def flat(x: Any) -> Any:
        tile = _load(x)
        nisa.activation(dst=tile, op=nl.prelu, data=tile)
        return _out(tile)

    y = 2 * X + 1
    np.testing.assert_allclose(_run(monkeypatch, "trn3", sloped, X), np.where(y > 0, y, y / 4), rtol=1e-6)
    np.testing.assert_array_equal(_run(monkeypatch, "trn2", flat, X), np.maximum(X, 0))


def test_a_stage_of_activate2_may_be_none(monkeypatch: Any) -> None:
    """nki.isa.activate2: `op1` requires `op0` to be set, so that neither has to be."""

    def kernel(x: Any) -> Any:
        tile = _load(x)
        nisa.activate2(tile, nl.copy, tile, 2.0, 0.0, nl.multiply, None)
        return _out(tile)

    np.testing.assert_array_equal(_run(monkeypatch, "trn3", kernel, X), 2 * X)


@pytest.mark.parametrize("chip", TRN)
@pytest.mark.parametrize("read_out", [False, True])
def test_activation_reduce_leaves_its_sums_in_the_accumulators(monkeypatch: Any, chip: str, read_out: bool) -> None:
    """nki.isa.activation_reduce: shares its registers with activation; reduce_res=None keeps the sums there."""

    def kernel(x: Any) -> Any:
        tile, first, total = _load(x), nl.ndarray((128, 1), nl.float32), nl.ndarray((128, 1), nl.float32)
        nisa.activation_reduce(tile, nl.copy, tile, nl.add, first if read_out else None)
        nisa.activation(tile, nl.copy, tile, reduce_op=nl.add, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reduce)
        return _out(total)

    found = _run(monkeypatch, chip, kernel, ABOVE)
    np.testing.assert_allclose(found, 2 * ABOVE.sum(1, keepdims=True), rtol=1e-5)


def test_unary_operators_take_no_operand(monkeypatch: Any) -> None:
    """nki.isa: operand0 "must be None or 0 when op0 is a unary operator"."""

    def reduced(x: Any) -> Any:
        tile, top = _load(x), nl.ndarray((128, 1), nl.float32)
        nisa.tensor_scalar_reduce(_like(tile), tile, nl.abs, None, nl.maximum, top)
        return _out(top)

    def combined(x: Any) -> Any:
        tile = _load(x)
        result = _like(tile)
        nisa.scalar_tensor_tensor(result, tile, nl.abs, None, nl.add, tile)
        return _out(result)

    np.testing.assert_array_equal(_run(monkeypatch, "trn2", reduced, X), np.abs(X).max(1, keepdims=True))
    np.testing.assert_array_equal(_run(monkeypatch, "trn2", combined, X), np.abs(X) + X)


SIGNS = [
    (s, d) for width in (8, 16, 32) for s in (f"int{width}", f"uint{width}") for d in (f"int{width}", f"uint{width}")
]


@pytest.mark.parametrize(("source", "target"), SIGNS)
def test_bits_have_no_sign(monkeypatch: Any, source: str, target: str) -> None:
    """nki.isa.tensor_scalar: integers, "treated as bit patterns without any data type casting"."""

    def kernel(x: Any, y: Any) -> Any:
        a, b, result = _load(x), _load(y), nl.ndarray(x.shape, target)
        nisa.tensor_tensor(result, a, b, nl.bitwise_xor)
        nisa.tensor_scalar(result, result, nl.bitwise_or, 5, op1=nl.right_shift, operand1=1)
        folded = nl.ndarray((x.shape[0], 1), source)
        nisa.tensor_reduce(folded, nl.bitwise_or, result, 1)
        nisa.tensor_tensor(result[:, 0:1], folded, folded, nl.bitwise_and)
        return _out(result)

    x, y = WHOLE.astype(source), (WHOLE * 7).astype(target)
    unsigned = "u" + target.removeprefix("u")
    wanted = ((x.view(unsigned) ^ y.view(unsigned)) | 5) >> 1
    wanted[:, 0] = np.bitwise_or.reduce(wanted, 1)
    np.testing.assert_array_equal(_run(monkeypatch, "trn2", kernel, x, y), wanted.view(target))


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("chip", TRN)
def test_tensor_engine_transposes_integers(monkeypatch: Any, chip: str, dtype: str) -> None:
    """nki.isa.nc_transpose: "any valid NKI data type", on every generation."""

    def kernel(x: Any) -> Any:
        turned = nl.ndarray((64, 128), x.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=_load(x), engine=nisa.engine.tensor)
        tile = nl.ndarray((64, 128), x.dtype)
        nisa.tensor_copy(dst=tile, src=turned)
        return _out(tile)

    x = np.arange(128 * 64).reshape(128, 64).astype(getattr(ml_dtypes, dtype, dtype))
    np.testing.assert_array_equal(_run(monkeypatch, chip, kernel, x), x.T)


@pytest.mark.parametrize("engine", ["tensor", "vector"])
def test_packed_words_are_transposed(monkeypatch: Any, engine: str) -> None:
    """nki.isa.nc_transpose: any valid data type, of which nki.api.shared lists the packed ones."""

    def kernel(x: Any) -> Any:
        words = _load(x).view(nl.float8_e5m2_x4)
        turned = nl.ndarray(words.shape[::-1], words.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=words, engine=getattr(nisa.engine, engine))
        tile = nl.ndarray(turned.shape, words.dtype)
        nisa.tensor_copy(dst=tile, src=turned)
        return _out(tile.view(nl.uint32))

    x = WHOLE[:32, :32].view(np.uint32).copy()
    np.testing.assert_array_equal(_run(monkeypatch, "trn3", kernel, x), x.T)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "float32"])
def test_the_column_of_select_reduce_has_any_format(monkeypatch: Any, dtype: str) -> None:
    """nki.isa.select_reduce: on_false must be float32 "if on_false is a scalar", else a vector."""

    def kernel(x: Any, keep: Any, other: Any) -> Any:
        tile = _load(x)
        nisa.select_reduce(tile, _load(keep), tile, _load(other))
        return _out(tile)

    keep = (X > 0).astype(np.uint8)
    other = (X[:, :1] * 8).astype(getattr(ml_dtypes, dtype, dtype))
    wanted = np.where(X > 0, X, other.astype(np.float32))
    np.testing.assert_array_equal(_run(monkeypatch, "trn2", kernel, X, keep, other), wanted)


def test_a_transpose_from_psum_runs_where_psum_can_be_read(monkeypatch: Any) -> None:
    """nki.isa.nc_transpose: VectorE reads and writes SBUF and PSUM, and the compiler chooses the engine."""

    def kernel(x: Any) -> Any:
        here, there = (nl.ndarray((32, 32), nl.float32, buffer=nl.psum) for _ in range(2))
        nisa.tensor_copy(here, _load(x)[0:32, 0:32])
        nisa.nc_transpose(dst=there, data=here)
        return _out(nl.copy(there))

    np.testing.assert_array_equal(_run(monkeypatch, "trn2", kernel, X), X[:32, :32].T)


def test_a_product_that_transposes_may_write_float32(monkeypatch: Any) -> None:
    """nki.isa.nc_matmul: "dst must be a float32 tile in NeuronCore-v2 and NeuronCore-v3", whatever the mode."""

    def kernel(x: Any, identity: Any) -> Any:
        turned = nl.ndarray((64, 128), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(turned, _load(x), _load(identity), is_transpose=True)
        return _out(nl.copy(turned))

    x, one = X.astype(ml_dtypes.bfloat16), np.eye(128).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(_run(monkeypatch, "trn2", kernel, x, one), x.astype(np.float32).T)


def test_dma_transposes_into_hbm(monkeypatch: Any) -> None:
    """nki/migration/index.rst, 0.3.0 to 0.4.0: its example writes a tensor in nl.shared_hbm."""

    def kernel(x: Any) -> Any:
        out = nl.ndarray((64, 128), x.dtype, buffer=nl.shared_hbm)
        nisa.dma_transpose(dst=out, src=x)
        return out

    np.testing.assert_array_equal(_run(monkeypatch, "trn2", kernel, X), X.T)


def test_dimensions_count_from_the_end(monkeypatch: Any) -> None:
    """Views of nki.language.NkiTensor; a negative number is one of its own, and never another shape."""

    def kernel(x: Any) -> Any:
        tile = _load(x)
        cube = tile.reshape((128, 4, 16))
        assert tile.expand_dim(-1).shape == nl.expand_dims(tile, -1).shape == (128, 64, 1)
        assert tile.expand_dim(-1).squeeze_dim(-1).shape == cube.flatten_dims(1, -1).shape == (128, 64)
        assert tile.reshape_dim(-1, (4, -1)).shape == (128, 4, 16)
        assert cube.permute((0, -1, 1)).shape == (128, 16, 4)
        assert tile.expand_dim(-1).broadcast(-1, 3).shape == (128, 64, 3)
        assert x.expand_dim(-3).shape == (1, 128, 64)
        return _out(nl.copy(cube.permute((0, -1, -2))))

    found = _run(monkeypatch, "trn2", kernel, X)
    np.testing.assert_array_equal(found, X.reshape(128, 4, 16).transpose(0, 2, 1))


def test_a_vector_of_offsets_picks_rows_only(monkeypatch: Any) -> None:
    """nki-aps.rst, "Vector Dynamic Access": currently only indirect_dim=0. Another one gave other elements."""

    def kernel(x: Any, index: Any) -> Any:
        tile = nl.ndarray((64, 1), nl.float32)
        nisa.dma_copy(tile, x.ap([[64, 64], [1, 1]], vector_offset=_load(index), indirect_dim=1))
        return _out(tile)

    with pytest.raises(ConstraintError, match="indirect_dim=0"):
        _run(monkeypatch, "trn2", kernel, X, np.zeros((64, 1), np.int32))


@pytest.mark.parametrize("form", ["tile ** number", "number ** tile", "tile ** column"])
def test_powers_of_numbers_and_columns(monkeypatch: Any, form: str) -> None:
    """nki.language.power: "a tile or a scalar value", on either side."""

    def kernel(x: Any) -> Any:
        tile = nl.load(x)
        if form == "tile ** column":
            result = nl.power(tile, tile[:, 0:1])
        else:
            result = nl.power(tile, 2.5) if form == "tile ** number" else nl.power(2.5, tile)
        return _out(result)

    wanted = {"tile ** number": ABOVE**2.5, "number ** tile": 2.5**ABOVE, "tile ** column": ABOVE ** ABOVE[:, :1]}
    np.testing.assert_allclose(_run(monkeypatch, "trn2", kernel, ABOVE), wanted[form], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int16", "uint8"])
def test_gather_flattened_takes_whole_numbers(monkeypatch: Any, dtype: str) -> None:
    """nki.language.gather_flattened: "integer indices", while the instruction reads uint32."""

    def kernel(x: Any, index: Any) -> Any:
        return _out(nl.gather_flattened(nl.load(x), nl.load(index), dtype=nl.bfloat16))

    index = np.random.default_rng(2).integers(0, 64, (128, 32)).astype(dtype)
    wanted = np.take_along_axis(X, index.astype(np.int64), 1).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(_run(monkeypatch, "trn2", kernel, X, index), wanted)


def test_the_older_dialect_raises_to_numbers() -> None:
    """nki.language.power of Neuron 2.26: a scalar value on either side, and x ** y."""

    @nki.neuronxcc.jit
    def kernel(x: Any) -> Any:
        out = old.ndarray(x.shape, dtype=x.dtype, buffer=old.shared_hbm)
        tile = old.load(x)
        old.store(out, old.power(tile, 2.0) + tile**0.5 + old_isa.tensor_scalar(tile, np.add, 0.0))
        return out

    found = nki.neuronxcc.simulate_kernel(kernel, ABOVE)
    np.testing.assert_allclose(found, ABOVE**2 + ABOVE**0.5 + ABOVE, rtol=1e-5)


def test_the_name_of_the_loop_in_the_reference_of_registers_is_there() -> None:
    """nki.isa.VirtualRegister names nki.experimental.while_loop."""
    install_imports()
    import nki.experimental

    assert nki.experimental.while_loop is nl.while_loop


class _AnswersToAnything:
    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(name=name)


FOREIGN = {"any": _AnswersToAnything(), "masked": np.ma.masked, "partly": np.ma.array([1.0, 2.0], mask=[0, 1])}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_a_kernel_can_reach_and_does_not_use_breaks_nothing(monkeypatch: Any, name: str) -> None:
    """Objects that answer to any attribute, as torch.ops does, and NumPy's constant of masked arrays."""
    settings = {"other": FOREIGN[name], "scale": 2.0}

    def kernel(x: Any) -> Any:
        tile = _load(x)
        nisa.tensor_scalar(tile, tile, nl.multiply, settings["scale"])
        return _out(tile)

    np.testing.assert_array_equal(_run(monkeypatch, "trn2", kernel, X), 2 * X)


def test_masked_arrays_are_told_apart_by_their_masks() -> None:
    one, other = (np.ma.array([1.0, 2.0], mask=mask) for mask in ([0, 1], [1, 0]))
    assert SnapshotReader().read(one) == SnapshotReader().read(one.copy()) != SnapshotReader().read(other)


@dataclass(frozen=True)
class _Weights(nl.NKIObject):
    """A class as the language guide has it, decorated, with tensors among its fields."""

    scale: float
    table: Any
    rest: Any = None


class _Plain(nl.NKIObject):
    """The same without the decorator."""

    table: Any
    rest: Any


@pytest.mark.parametrize("kind", ["frozen", "plain", "nested"])
def test_classes_of_kernels_carry_tensors(monkeypatch: Any, kind: str) -> None:
    """nki-language-guide.rst, Class Support: an instance as an argument is taken over with its fields."""

    def kernel(x: Any, weights: Any) -> Any:
        tile, inner = _load(x), weights.rest[0] if kind == "nested" else weights
        assert isinstance(inner, _Plain if kind == "plain" else _Weights)
        nisa.tensor_tensor(tile, tile, _load(inner.table), nl.add)
        return _out(tile)

    given = {
        "frozen": _Weights(2.0, ABOVE),
        "plain": _Plain(ABOVE, "text"),
        "nested": _Weights(1.0, X, rest=[_Weights(2.0, ABOVE)]),
    }[kind]
    for _ in range(2):  # recorded, then found again
        np.testing.assert_array_equal(_run(monkeypatch, "trn2", kernel, X, given), X + ABOVE)  # type: ignore[arg-type]
    assert vars(given)["table"] is (X if kind == "nested" else ABOVE)
