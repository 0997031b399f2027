# SPDX-License-Identifier: Apache-2.0
"""Scatters, gathers that skip, transposing and MX matmuls, and quantization leave the bits of their definitions.

The operands are hostile: every bit pattern of small formats, rows named twice, by negative and by enormous numbers.
"""

from __future__ import annotations

import numpy as np
import pytest

from trnlab import chips
from trnlab.errors import RunError
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import dtype
from trnlab.program.builder import Builder
from trnlab.sim.functional import Machine, RunOptions

Array = np.ndarray
TABLE, TILE = 40, 24  # rows
FORMATS = ["float32", "bfloat16", "uint8", "float8_e5m2", "int32"]


def any_bits(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> Array:
    """Every pattern of bits of a format, quiet and signalling NaN among them."""
    kind = dtype(name).numpy
    return rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind)[..., 0]


def left(b: Builder, *arrays: Array, **options: bool) -> tuple[list[bytes], int]:
    """The bytes of all parameters after a run, and how many instructions had no kernel."""
    memory = [a.copy() for a in arrays]
    machine = Machine(b.chip, RunOptions(**options))
    machine.call(b.build(), memory)
    return [m.tobytes() for m in memory], machine.by_meaning


def rows_moved(side: str, oob_mode: str, name: str, index: Array, **options: bool) -> tuple[list[bytes], int]:
    """A gather or scatter of every second row of a table, of half of its columns."""
    rng = np.random.default_rng(3)
    b = Builder("rows", chips.get("trn2"))
    table, tile = b.param("table", (TABLE, 20), name), b.param("tile", (TILE, 10), name)
    wanted, held, number = b.param("index", (TILE, 1), "int32"), b.tile((TILE, 10), name), b.tile((TILE, 1), "int32")
    b.dma_copy(dst=number, src=wanted)
    b.dma_copy(dst=held, src=tile)
    part = table[:, 5:15]
    dst, src = (held, part) if side == "src" else (part, held)
    b.dma_copy(dst=dst, src=src, index=number, indirect=side, oob_mode=oob_mode, engine=Engine.GPSIMD)
    b.dma_copy(dst=tile, src=held)
    return left(b, any_bits(rng, (TABLE, 20), name), any_bits(rng, (TILE, 10), name), index, **options)


INSIDE = np.random.default_rng(1).integers(0, TABLE, (TILE, 1)).astype(np.int32)  # some of them twice
HOSTILE = np.where(np.arange(TILE)[:, None] % 5 == 2, [[TABLE]], INSIDE).astype(np.int32)
HOSTILE[:6, 0] = [-1, 2**31 - 1, -(2**31), TABLE - 1, TABLE, 0]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("side", "oob_mode", "index"),
    [
        ("src", "skip", HOSTILE),
        ("src", "skip", INSIDE),
        ("dst", "skip", HOSTILE),
        ("dst", "error", INSIDE),
    ],
)
def test_rows_are_moved_as_defined(name, side, oob_mode, index):
    got, by_meaning = rows_moved(side, oob_mode, name, index)
    expected, _ = rows_moved(side, oob_mode, name, index, by_definition=True)
    assert by_meaning == 0
    assert got == expected


@pytest.mark.parametrize("by_definition", [False, True])
def test_a_scatter_outside_of_its_table_writes_nothing(by_definition):
    b = Builder("outside", chips.get("trn2"))
    table, number = b.param("table", (4, 8), "float32"), b.tile((3, 1), "int32")
    b.dma_copy(dst=number, src=b.param("index", (3, 1), "int32"))
    held = b.tile((3, 8), "float32")
    b.memset(dst=held, value=1.0)
    b.dma_copy(dst=table, src=held, index=number, indirect="dst", engine=Engine.GPSIMD)
    memory = np.zeros((4, 8), np.float32)
    with pytest.raises(RunError, match="row that does not exist"):
        Machine(b.chip, RunOptions(by_definition=by_definition)).call(
            b.build(), [memory, np.array([[0], [4], [1]], np.int32)]
        )
    assert not memory.any()


ORDER = np.random.default_rng(2).permutation(48)
SELECTING = {
    "identity": np.eye(48),
    "permutation": np.eye(48)[:, ORDER],
    "some rows again": np.eye(48)[:, ORDER // 2],
    "negative zeros": np.where(np.eye(48) > 0, 1, -0.0),
}
ANYTHING = {
    "a two": 2 * np.eye(48),
    "minus one": np.where(np.arange(48) == 47, -1, 1) * np.eye(48),
    "two ones": np.eye(48) + np.eye(48)[:, ORDER],
    "nothing": np.zeros((48, 48)),
}


def transposed(
    chip: str, name: str, result: str, moving: Array, wide: int, **options: bool
) -> tuple[list[bytes], int]:
    """A matmul in transpose mode of any bits."""
    b = Builder("transpose", chips.get(chip))
    x, picks, out = (
        b.param("x", (48, wide), name),
        b.param("moving", (48, 48), name),
        b.param("out", (wide, 48), result),
    )
    held, selecting, sums = b.tile((48, wide), name), b.tile((48, 48), name), b.psum((wide, 48), result)
    for tile, tensor in ((held, x), (selecting, picks)):
        b.dma_copy(dst=tile, src=tensor)
    b.nc_matmul(dst=sums, stationary=held, moving=selecting, is_transpose=True)
    back = b.tile((wide, 48), result)
    b.tensor_copy(dst=back, src=sums)
    b.dma_copy(dst=out, src=back)
    kind = dtype(name).numpy
    data = any_bits(np.random.default_rng(4), (48, wide), name)
    return left(b, data, moving.astype(kind), np.zeros((wide, 48), dtype(result).numpy), **options)


@pytest.mark.parametrize(
    ("chip", "name", "result"),
    [
        ("trn2", "float32", "float32"),
        ("trn2", "bfloat16", "bfloat16"),
        ("trn2", "float8_e4m3", "float8_e4m3"),
        ("trn1", "bfloat16", "float32"),
        ("trn1", "float32", "float32"),
    ],
)
@pytest.mark.parametrize("moving", [*SELECTING, *ANYTHING])
@pytest.mark.parametrize("wide", [30, 32])  # 32: whole tiles of 16 x 16
def test_a_transposing_matmul_moves_bits_where_ones_select_them(chip, name, result, moving, wide):
    """Whatever else moves past them, the definition computes."""
    matrix = (SELECTING | ANYTHING)[moving]
    got, by_meaning = transposed(chip, name, result, matrix, wide)
    assert by_meaning == (moving in ANYTHING)
    assert got == transposed(chip, name, result, matrix, wide, by_definition=True)[0]


@pytest.mark.parametrize("name", ["float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"])
@pytest.mark.parametrize("scales", ["uint8", "float8_e8m0fnu"])
@pytest.mark.parametrize("spread", [3, 128])
def test_an_mx_matmul_sums_as_defined(name, scales, spread):
    """All words, among them NaN and infinities, with scales from alike to so far apart that sums round."""
    rng = np.random.default_rng(5)

    def run(**options: bool) -> list[bytes]:
        return left(mx_product(name, scales), *arrays, **options)[0]

    codes = [rng.integers(127 - spread, 127 + spread + 1, (64, n)).astype(np.uint8) for n in (32, 70)]
    wide = [c.view(dtype(scales).numpy) for c in codes]
    arrays = [any_bits(rng, (64, 32), name), any_bits(rng, (64, 70), name), *wide, np.zeros((32, 70), np.float32)]
    assert run() == run(by_definition=True)
    for words in arrays[:2]:
        words[:] &= np.array(0x3737373737373737 & (1 << 8 * words.itemsize) - 1).astype(words.dtype)  # finite ones
    assert run() == run(by_definition=True)
    assert np.isfinite(np.frombuffer(run()[-1], np.float32)).all() or spread > 100


def mx_product(name: str, scales: str) -> Builder:
    """Two products of the same operands, summed in PSUM."""
    b = Builder("mx", chips.get("trn3"))
    held = {}
    for operand, columns in (("stationary", 32), ("moving", 70)):
        held[operand] = b.tile((64, columns), name), b.param(operand, (64, columns), name)
    for operand, columns in (("stationary", 32), ("moving", 70)):
        tensor = b.param(f"{operand}_scale", (64, columns), scales)
        held[f"{operand}_scale"] = b.tile((64, columns), scales), tensor
    for tile, tensor in held.values():
        b.dma_copy(dst=tile, src=tensor)
    out, sums, back = b.param("out", (32, 70), "float32"), b.psum((32, 70)), b.tile((32, 70), "float32")
    operands = {operand: tile for operand, (tile, _) in held.items()}
    b.nc_matmul_mx(dst=sums, **operands)
    b.nc_matmul_mx(dst=sums, accumulate=True, **operands)
    b.tensor_copy(dst=back, src=sums)
    b.dma_copy(dst=out, src=back)
    return b


@pytest.mark.parametrize("source", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["float8_e4m3fn_x4", "float8_e5m2_x4"])
@pytest.mark.parametrize("scales", ["uint8", "float8_e8m0fnu"])
@pytest.mark.parametrize("headroom", [0, 1])
def test_quantization_to_mx_rounds_as_defined(source, name, scales, headroom):
    """Groups of any bits, most of them with a NaN; and groups of finite numbers, of one size and of all sizes."""
    rng = np.random.default_rng(7)
    b = Builder("quantized", chips.get("trn3"))
    x, packed = b.tile((64, 256), source), b.tile((64, 64), name)
    scale = b.tile((64, 64), scales)
    b.dma_copy(dst=x, src=b.param("x", (64, 256), source))
    b.memset(dst=scale, value=0)
    b.quantize_mx(dst=packed, src=x, dst_scale=scale, headroom=headroom)
    b.dma_copy(dst=b.param("packed", (64, 64), name), src=packed)
    b.dma_copy(dst=b.param("scale", (64, 64), scales), src=scale)
    results = [np.zeros((64, 64), dtype(kind).numpy) for kind in (name, scales)]
    words = rng.integers(0, 2**16, (64, 256), np.uint16)
    exponent = np.uint16(0x7F80 if source == "bfloat16" else 0x7C00)
    large = (words & exponent) == exponent
    alike = (words & np.uint16(0x83FF)) | np.uint16(0x3800)
    tiny = words & ~exponent  # zeros and subnormal numbers
    for bits in (words, np.where(large, words & np.uint16(0xBFFF), words), alike, tiny, tiny & np.uint16(0x8000)):
        data = bits.astype(np.uint16).view(dtype(source).numpy)
        assert left(b, data, *results)[0] == left(b, data, *results, by_definition=True)[0]
