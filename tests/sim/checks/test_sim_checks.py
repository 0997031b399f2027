# SPDX-License-Identifier: Apache-2.0
"""The checks of a routine against byte maps in NumPy, and what is no finding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trnlab import chips
from trnlab.isa.base import Engine, Memory
from trnlab.program import AP, Builder
from trnlab.program.spans import Spans
from trnlab.sim.checks import CheckFinding, Returned, Scene, check_routine

F32 = "float32"
TRN1, TRN2, TRN3 = (chips.get(name) for name in ("trn1", "trn2", "trn3"))


def found(b: Builder, **scene: Any) -> list[CheckFinding]:
    """The findings about what was built."""
    return list(check_routine(b.build(), b.chip, Scene(**scene)))


def codes(b: Builder, **scene: Any) -> list[str]:
    """Their codes."""
    return [finding.error.code for finding in found(b, **scene)]


def result(ap: AP) -> Returned:
    """All of an HBM tensor, as a result."""
    shape = ap.buffer.shape
    strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return Returned(ap.buffer.id, shape, strides, 0, ap.dtype.itemsize)


def some_pattern(rng: np.random.Generator, tile: AP, free: int) -> AP:
    """Random partitions from an allowed start on, and a random strided pattern of one or two dimensions."""
    start = int(rng.choice([0, 32, 64, 96]))
    rows = int(rng.integers(1, 33))
    steps = int(rng.integers(1, 4)), int(rng.integers(8, 12))
    inner = int(rng.integers(1, 8 // steps[0] + 1))
    outer = int(rng.integers(1, (free - 8) // steps[1] + 1))
    skip = int(rng.integers(0, free - steps[1] * (outer - 1) - steps[0] * (inner - 1)))
    return tile[start : start + rows].with_dims((steps[1], outer), (steps[0], inner), skip=skip)


def touched(ap: AP, free: int) -> np.ndarray:
    """Which elements of the tile a pattern touches."""
    map_ = np.zeros((128, free), bool)
    (s1, n1), (s0, n0) = ap.dims
    at = ap.offset // ap.dtype.itemsize + np.arange(n1)[:, None] * s1 + np.arange(n0) * s0
    map_[ap.start_partition : ap.start_partition + ap.partitions, at.ravel()] = True
    return map_


@pytest.mark.parametrize("seed", range(40))
def test_reads_of_nothing_are_exact_to_the_element(seed: int) -> None:
    """A read is a finding exactly where NumPy's map of what was written has a gap; the number of elements agrees."""
    rng = np.random.default_rng(seed)
    free = 64
    b = Builder("gaps", TRN2)
    tile, out = b.tile((128, free), F32), b.param("out", (6 * 128, free), F32)
    written = np.zeros((128, free), bool)
    expected: list[int] = []
    for n in range(6):
        pattern = some_pattern(rng, tile, free)
        if rng.random() < 0.7:
            b.memset(dst=pattern, value=1.0)
            written |= touched(pattern, free)
            continue
        rows, columns = pattern.partitions, pattern.free
        b.dma_copy(dst=out[n * 128 : n * 128 + rows, :columns], src=pattern)
        gaps = int((touched(pattern, free) & ~written).sum())
        expected += [gaps] if gaps else []
    seen = found(b, filled=frozenset({out.buffer.id}))
    assert [int(str(finding.error.got).split(" of ")[0]) for finding in seen] == expected


def test_other_formats_of_the_same_bytes() -> None:
    """Two bfloat16 cover the four bytes of a float32."""
    b = Builder("views", TRN2)
    out = b.param("out", (128, 8), F32)
    tile = b.tile((128, 8), F32)
    halves = AP(tile.buffer, b.tile((1, 1), "bfloat16").dtype, 0, 128, 0, 0, ((1, 15),))
    b.memset(dst=halves, value=0.0)
    b.dma_copy(dst=out, src=tile)
    (finding,) = found(b, filled=frozenset({out.buffer.id}))
    assert str(finding.error.got).startswith("64 of 1024 elements (256 bytes)")


def test_what_does_not_reach_a_result_is_no_finding() -> None:
    """A whole tile is squared, and only the written part of it is stored; by elements, not only by partitions."""
    b = Builder("masked", TRN2)
    x, out = b.param("x", (128, 500), F32), b.param("out", (128, 500), F32)
    tile, square = b.tile((128, 512), F32), b.tile((128, 512), F32)
    b.dma_copy(dst=tile[:, 0:500], src=x)
    b.tensor_tensor(dst=square, data1=tile, data2=tile, op="multiply")
    b.dma_copy(dst=out, src=square[:, 0:500])
    assert codes(b, filled=frozenset({0}), results=(result(out),)) == []
    b.dma_copy(dst=out[:, 0:12], src=square[:, 490:502])
    assert codes(b, filled=frozenset({0}), results=(result(out),)) == ["TRN430"]


def test_with_masks_a_stored_gap_is_a_gap_of_the_result() -> None:
    """A mask left out a part of a tile that is then stored whole; never written at all stays an error."""
    for columns, expected in ((32, "unwritten-output"), (0, "uninitialised-read")):
        b = Builder("masked", TRN2)
        tile, out = b.tile((128, 64), F32), b.param("out", (128, 64), F32)
        if columns:
            b.memset(dst=tile[:, 0:columns], value=1.0)
        b.dma_copy(dst=out, src=tile)
        assert [f.check for f in found(b, results=(result(out),), masks=True)] == [expected]
        assert [f.check for f in found(b, results=(result(out),))] == ["uninitialised-read"]


def test_rows_spread_by_reductions_columns_by_scalars() -> None:
    """A reduction of a row with gaps spoils that row only; a [P, 1] operand spoils its rows."""
    b = Builder("rows", TRN2)
    out = b.param("out", (128, 1), F32)
    tile, total = b.tile((128, 64), F32), b.tile((128, 1), F32)
    b.memset(dst=tile[0:96], value=1.0)
    b.tensor_reduce(dst=total, data=tile, op="add", axes=1)
    b.dma_copy(dst=out[0:96], src=total[0:96])
    assert codes(b, results=()) == []
    scaled = b.tile((128, 64), F32)
    rest = b.tile((128, 64), F32)
    b.memset(dst=rest, value=1.0)
    b.tensor_scalar(dst=scaled, data=rest, operand0=total, op0="multiply")
    wide = b.param("wide", (128, 64), F32)
    b.dma_copy(dst=wide[0:96], src=scaled[0:96])
    assert codes(b, results=(result(wide),))[:1] == ["TRN431"]
    b.dma_copy(dst=wide[96:], src=scaled[96:])
    assert codes(b, results=(result(wide),)) == ["TRN430"]


def test_columns_of_matmuls_and_transposes() -> None:
    """A column with gaps spoils a column of the product, or a row of the transpose; nothing else."""
    b = Builder("columns", TRN2)
    x, w = b.tile((128, 512), F32), b.tile((128, 64), F32)
    product, turned = b.param("product", (64, 512), F32), b.param("turned", (96, 128), F32)
    b.memset(dst=x[:, 0:500], value=1.0)
    b.memset(dst=w[:, 0:32], value=1.0)
    acc, tile = b.psum((64, 512)), b.tile((64, 512), F32)
    b.nc_matmul(dst=acc, stationary=w, moving=x)
    b.tensor_copy(dst=tile, src=acc)
    b.dma_copy(dst=product[0:32, 0:500], src=tile[0:32, 0:500])
    flipped, spare = b.psum((64, 128)), b.tile((64, 128), F32)
    b.nc_transpose(dst=flipped, data=w)
    b.tensor_copy(dst=spare, src=flipped)
    b.dma_copy(dst=turned[0:32], src=spare[0:32])
    seen = frozenset({product.buffer.id, turned.buffer.id})
    assert codes(b, filled=seen) == []
    b.dma_copy(dst=turned[32:33], src=spare[32:33])
    b.dma_copy(dst=product[0:1, 500:512], src=tile[0:1, 500:512])
    assert codes(b, filled=seen) == ["TRN430", "TRN430"]


def test_gathers_scatters_and_what_a_skip_leaves() -> None:
    """Rows chosen at run time may be written or not: neither is a finding, an empty table is."""
    b = Builder("rows", TRN2)
    table, index = b.param("table", (256, 64), F32), b.tile((128, 1), "int32")
    tile, out = b.tile((128, 64), F32), b.param("out", (256, 64), F32)
    b.memset(dst=index, value=0)
    b.dma_copy(dst=tile, src=table, index=index, engine=Engine.GPSIMD)
    b.dma_copy(dst=out, src=tile, index=index, indirect="dst", engine=Engine.GPSIMD)
    assert codes(b, filled=frozenset({0}), results=(result(out),)) == []
    assert codes(b, results=(result(out),)) == ["TRN430"]


def test_a_missing_index_is_an_error_at_once() -> None:
    """Undefined addresses matter wherever the data go."""
    b = Builder("index", TRN2)
    table, index = b.param("table", (256, 64), F32), b.tile((128, 1), "int32")
    b.dma_copy(dst=b.tile((128, 64), F32), src=table, index=index, engine=Engine.GPSIMD)
    assert codes(b, filled=frozenset({0})) == ["TRN430"]


def matmuls(chip: Any, *steps: str, value: float = 1.0) -> Builder:
    """A PSUM tile that is started, continued, filled, zeroed, copied to and read, as the letters say."""
    b = Builder("sums", chip)
    w, x, out = b.tile((128, 128), F32), b.tile((128, 512), F32), b.tile((128, 512), F32)
    b.memset(dst=w, value=1.0)
    b.memset(dst=x, value=1.0)
    acc = b.psum((128, 512))
    for step in steps:
        half = slice(0, 256) if step.endswith("half") else slice(0, 512)
        kind = step.split()[0]
        if kind in ("start", "continue"):
            b.nc_matmul(dst=acc[:, half], stationary=w, moving=x[:, half], accumulate=kind == "continue")
        elif kind in ("memset", "zero"):
            b.memset(dst=acc[:, half], value=value if kind == "memset" else 0.0)
        elif kind == "copy":
            b.tensor_copy(dst=acc[:, half], src=x[:, half])
        else:
            b.tensor_copy(dst=out[:, half], src=acc[:, half])
    return b


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (("start", "continue", "read", "start", "continue", "read"), []),
        (("start half", "continue half", "read half", "start", "read"), []),
        (("start", "start", "continue", "read"), []),  # lost whole: nothing mixes
        (("start", "read", "start half", "continue", "read"), []),  # read before it was started anew
        (("start", "start half", "continue", "read"), ["TRN433"]),
        (("continue", "read"), ["TRN430"]),
        (("start half", "continue", "read"), ["TRN430"]),
    ],
)
def test_sums(steps: tuple[str, ...], expected: list[str]) -> None:
    assert codes(matmuls(TRN2, *steps)) == expected


def test_sums_onto_what_no_matmul_made() -> None:
    """Only where the kernel itself says accumulate, and only on chips that do not define it."""
    for chip, told, expected in (
        (TRN1, (3,), ["TRN433"]),
        (TRN2, (3,), ["TRN433"]),
        (TRN2, (), []),
        (TRN3, (3,), []),
    ):
        for value in (0.0, 1.0):
            assert codes(matmuls(chip, "memset", "continue", "read", value=value), accumulating=told) == expected


@pytest.mark.parametrize(
    ("steps", "harmless"),
    [
        (("zero", "continue", "read"), [True]),
        (("memset", "continue", "read"), [False]),
        (("memset", "zero", "continue", "read"), [True]),
        (("zero", "memset half", "continue", "read"), [False]),  # what is not zero decides, wherever it lies
        (("memset", "zero half", "continue", "read"), [False]),
        (("zero", "copy half", "continue", "read"), [False]),
    ],
)
def test_onto_zeros_any_sum_is_right(steps: tuple[str, ...], harmless: list[bool]) -> None:
    b = matmuls(TRN2, *steps)
    told = (2 + steps.index("continue"),)  # two instructions come before the first step
    assert [f.harmless for f in found(b, accumulating=told)] == harmless


def placed(*tiles: tuple[int, int]) -> tuple[Builder, list[AP], frozenset[int]]:
    """Tiles of 64 columns at (partition, byte)."""
    b = Builder("placed", TRN2)
    made = [b.unplaced((64, 64), F32, Memory.SBUF, name=f"t{i}", first_partition=p) for i, (p, _) in enumerate(tiles)]
    b.settle({ap.buffer.id: byte for ap, (_, byte) in zip(made, tiles)})
    return (
        b,
        [AP(b._buffers[ap.buffer.id], ap.dtype, 0, 64, 0, 0, ap.dims) for ap in made],
        frozenset(range(len(tiles))),
    )


def test_tiles_that_share_bytes() -> None:
    """Overwritten while in use, and found; finished with first, on other partitions, or meant as one: not."""
    for second, in_use, expected in (
        ((0, 128), True, ["TRN432"]),
        ((0, 128), False, []),
        ((64, 128), True, []),
        ((0, 256), True, []),
    ):
        b, (one, two), explicit = placed((0, 0), second)
        spare = b.tile((128, 64), F32)
        b.memset(dst=one, value=1.0)
        if not in_use:
            b.tensor_copy(dst=spare[0:64], src=one)
        b.memset(dst=two, value=2.0)
        if in_use:
            b.tensor_copy(dst=spare[0:64], src=one)
        assert codes(b, explicit=explicit) == expected
    b, (one, two), explicit = placed((0, 0), (0, 0))
    b.memset(dst=one, value=1.0)
    b.tensor_copy(dst=b.tile((64, 64), F32), src=two)
    assert codes(b, explicit=explicit) == []


def loop(b: Builder, spans: Spans, count: int, body: Any, kind: str = "loop") -> None:
    """Run body(i) as iterations that are declared independent."""
    number = spans.loop(kind, len(b._buffers))
    for i in range(count):
        span = spans.begin(number, i, len(b))
        body(i)
        spans.end(span, len(b))


def test_iterations() -> None:
    """Carried, rewritten, separate, made inside, and nested loops of which the inner one may carry."""
    b, spans = Builder("loops", TRN2), Spans()
    total, parts = b.tile((128, 8), F32), b.tile((128, 4), F32)
    b.memset(dst=total, value=0.0)
    loop(b, spans, 4, lambda i: b.memset(dst=parts[:, i : i + 1], value=1.0))
    assert codes(b, spans=spans) == []
    loop(b, spans, 4, lambda i: b.tensor_copy(dst=b.tile((128, 8), F32), src=total))
    assert codes(b, spans=spans) == []
    loop(b, spans, 1, lambda i: [b.tensor_scalar(dst=total, data=total, op0="add", operand0=1.0) for _ in range(3)])
    assert codes(b, spans=spans) == []
    loop(b, spans, 2, lambda i: b.tensor_scalar(dst=total, data=total, op0="add", operand0=1.0))
    assert codes(b, spans=spans) == ["TRN434", "TRN434"]  # it reads, and writes, what another wrote
    free = tuple(range(len(b)))
    assert codes(b, spans=spans, free=free) == []


@pytest.mark.parametrize(("programs", "expected"), [("rr", 0), ("ww", 0), ("wv", 1), ("wr", 1), ("rw", 1)])
def test_programs_of_a_grid(programs: str, expected: int) -> None:
    """Written twice, written and read, read and written; no finding is what all read, or all write alike."""
    b, spans = Builder("grid", TRN2), Spans()
    shared, tile = b.param("shared", (128, 8), F32), b.tile((128, 8), F32)
    b.memset(dst=tile, value=0.0)

    def body(i: int) -> None:
        if programs[i] == "v":
            b.memset(dst=tile, value=1.0)
        if programs[i] in "vw":
            b.dma_copy(dst=shared, src=tile)
        else:
            b.dma_copy(dst=b.tile((128, 8), F32), src=shared)

    loop(b, spans, 2, body, "grid")
    assert codes(b, filled=frozenset({0}), spans=spans) == ["TRN435"] * expected


def test_results() -> None:
    """The number of elements that are missing in a view of a tensor."""
    b = Builder("results", TRN2)
    out, tile = b.param("out", (4, 100), F32), b.tile((4, 100), F32)
    b.memset(dst=tile, value=0.0)
    b.dma_copy(dst=out[0:3, 10:], src=tile[0:3, 10:])
    (finding,) = found(b, results=(result(out),))
    assert (finding.check, finding.error.got) == ("unwritten-output", "130 elements never written")
    column = Returned(out.buffer.id, (4, 1), (100, 1), 50, 4)
    (finding,) = found(b, results=(column,))
    assert finding.error.got == "1 elements never written"
