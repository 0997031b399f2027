# SPDX-License-Identifier: Apache-2.0
"""Meanings of scans, statistics, gathers, searches and transfers against loops written independently here.

Bounds count float32 roundings as test_meaning does; what only moves or compares is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from isa_cases import compute
from test_meaning import close, sample

FORMATS = ["float32", "bfloat16", "int8"]
ROWS = [(1, 1), (128, 7), (5, 300), (32, 3, 5)]
Array = np.ndarray[Any, Any]


def wide(x: Array) -> Array:
    return x.astype(np.float64).reshape(x.shape[0], -1)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", ROWS)
def test_scan(name: str, shape: tuple[int, ...]) -> None:
    """x = a x + b with |a| below one, so that errors do not grow: two roundings a step, n steps at most."""
    a, b = sample(shape, "float32", 1) / np.float32(8), sample(shape, name, 2)
    a, start = np.clip(a, -0.5, 0.5), sample((shape[0], 1), "float32", 3)
    got = compute(
        "tensor_tensor_scan", {"dst": (shape, "float32")}, {"data0": a, "data1": (b, name), "initial": start}
    )
    x, want = start[:, 0].astype(np.float64), np.empty(wide(a).shape)
    for i in range(want.shape[1]):
        want[:, i] = x = wide(a)[:, i] * x + wide(b)[:, i]
    close(got["dst"].reshape(want.shape), want, "float32", roundings=4, scale=np.abs(want).max() + 1)


@pytest.mark.parametrize("op", ["add", "max", "multiply"])
@pytest.mark.parametrize("shape", ROWS)
def test_running_reductions(op: str, shape: tuple[int, ...]) -> None:
    """NumPy's own accumulations, of values shifted by one number per row; the last value is the accumulator."""
    x, shift = sample(shape, "bfloat16", 1), sample((shape[0], 1), "float32", 2)
    dst = {"dst": (shape, "float32"), "accumulators": ((shape[0], 1), "float32")}
    src = {"src": (x, "bfloat16"), "imm0": shift}
    attrs = {"op0": "max" if op == "multiply" else "subtract", "op1": op}
    got = compute("tensor_scalar_cumulative", dst, src, **attrs)
    column = shift.astype(np.float64)
    values = np.maximum(wide(x), column) if op == "multiply" else wide(x) - column
    if op == "multiply":  # few factors, lest they overflow
        values, got["dst"] = values[:, :20], got["dst"].reshape(shape[0], -1)[:, :20]
    ufunc = {"add": np.add, "max": np.maximum, "multiply": np.multiply}[op]
    want, n = ufunc.accumulate(values, axis=1), values.shape[1]
    magnitude = np.abs(values).cumsum(axis=1) if op == "add" else np.abs(want)
    close(got["dst"].reshape(want.shape), want, "float32", roundings=n + 1, scale=magnitude + np.abs(column).max())
    if op != "multiply":
        np.testing.assert_array_equal(got["accumulators"][:, 0], got["dst"].reshape(want.shape)[:, -1])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("n", [1, 2, 33, 512])
def test_batch_statistics(name: str, n: int) -> None:
    """bn_stats of pieces, combined by bn_aggr, are the mean and variance of the whole row."""
    pieces = [sample((16, n), name, i) for i in range(3)]
    stats = [compute("bn_stats", {"dst": ((16, 6), "float32")}, {"data": (x, name)})["dst"] for x in pieces]
    for x, s in zip(pieces, stats):
        np.testing.assert_array_equal(s[:, 0], (n + 1) // 2)
        np.testing.assert_array_equal(s[:, 3], n // 2)
        close(s[:, 1], wide(x)[:, ::2].mean(axis=1), "float32", roundings=n + 2, scale=np.abs(wide(x)).max())
    got = compute("bn_aggr", {"dst": ((16, 2), "float32")}, {"data": np.concatenate(stats, axis=1)})["dst"]
    whole = np.concatenate([wide(x) for x in pieces], axis=1)
    close(got[:, 0], whole.mean(axis=1), "float32", roundings=n + 8, scale=np.abs(whole).max())
    close(got[:, 1], whole.var(axis=1), "float32", roundings=2 * n + 16, scale=2 * np.square(whole).max())


@pytest.mark.parametrize("shape", [(64, 2, 16), (128, 2, 128), (1, 2, 1)])
def test_double_rows_contract_both_halves(shape: tuple[int, int, int]) -> None:
    """Row k of half r is row r K + k of a contraction of 2 K, summed in float32."""
    k, _, m = shape
    x, y = sample(shape, "float8_e4m3", 1), sample((k, 2, 33), "float8_e5m2", 2)
    src = {"stationary": (x, "float8_e4m3"), "moving": (y, "float8_e5m2")}
    got = compute("nc_matmul", {"dst": ((m, 33), "float32")}, src, perf_mode="double_row")["dst"]
    a, b = (v.astype(np.float64).transpose(1, 0, 2).reshape(2 * k, -1) for v in (x, y))
    close(got, a.T @ b, "float32", roundings=2 * k + 1, scale=np.abs(a.T) @ np.abs(b))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int32", "float8_e4m3fn_x4"])
@pytest.mark.parametrize(("run", "valid"), [(1, None), (4, 5), (32, 32)])
def test_local_gather(name: str, run: int, valid: int | None) -> None:
    """Index number i of a group is on its partition i % 16, column i // 16."""
    rng = np.random.default_rng([run, 1])
    src = sample((32, 100), "uint32" if name.endswith("x4") else name)
    index = rng.integers(0, 101 - run, (32, 2)).astype(np.uint16)
    count = 32 if valid is None else valid
    attrs = {"num_elem_per_idx": run, "num_valid_indices": valid}
    got = compute(
        "local_gather", {"dst": ((32, count * run), name)}, {"src_buffer": (src, name), "index": index}, **attrs
    )
    for p in range(32):
        for i in range(count):
            first = int(index[p // 16 * 16 + i % 16, i // 16])
            want = src[p, first : first + run]
            assert got["dst"][p, i * run : (i + 1) * run].tobytes() == want.tobytes()


def test_searches_agree_with_sorting() -> None:
    """The eight largest, where they are, and what is left when they are replaced; many ties on purpose."""
    data = np.random.default_rng(0).integers(0, 30, (64, 50)).astype(np.float32)
    largest = compute("max8", {"dst": ((64, 8), "float32")}, {"src": data})["dst"]
    np.testing.assert_array_equal(largest, -np.sort(-data, axis=1)[:, :8])
    src = {"data": data, "vals": largest}
    found = compute("nc_find_index8", {"dst": ((64, 8), "uint32")}, src)["dst"]
    np.testing.assert_array_equal(np.take_along_axis(data, found.astype(np.int64), axis=1), largest)
    dst = {"dst": (data.shape, "float32"), "dst_idx": ((64, 8), "uint16")}
    got = compute("nc_match_replace8", dst, src, imm=-1.0)
    for p in range(64):
        assert len(set(found[p])) == 8
        assert set(got["dst_idx"][p]) == set(found[p])
        assert sorted(np.flatnonzero(got["dst"][p] == -1)) == sorted(found[p])
        for i in range(7):
            if largest[p, i] == largest[p, i + 1]:
                assert found[p, i] < found[p, i + 1], "ascending here"
                assert got["dst_idx"][p, i] > got["dst_idx"][p, i + 1], "descending there"


@pytest.mark.parametrize("dims", [(16, 9), (16, 3, 8), (4, 2, 3, 5)])
def test_transposing_transfers(dims: tuple[int, ...]) -> None:
    """NumPy's transpose, and the same after picking rows."""
    axes = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[len(dims)]
    x = sample(dims, "bfloat16")
    want = x.transpose(axes)
    got = compute("dma_transpose", {"dst": (want.shape, "bfloat16")}, {"src": (x, "bfloat16")}, axes=axes)["dst"]
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    index = np.random.default_rng(0).integers(0, dims[0], (16, 2)).astype(np.uint32)
    picked = x[index.T.reshape(-1)].transpose(axes)
    src = {"src": (x, "bfloat16"), "index": index}
    got = compute("dma_transpose", {"dst": (picked.shape, "bfloat16")}, src, axes=axes)["dst"]
    np.testing.assert_array_equal(got.astype(np.float32), picked.astype(np.float32))


@pytest.mark.parametrize("lanes", [1, 32, 40, 128])
def test_shuffles_stay_in_their_quadrant(lanes: int) -> None:
    """Row by row; the mask is the same for every 32 partitions."""
    mask = tuple(int(m) for m in np.random.default_rng(lanes).integers(0, 32, 32))
    mask = (*mask[:5], 255, *mask[6:])
    src, held = sample((128, 6), "int16"), sample((lanes, 6), "int16", 1)
    got = compute("nc_stream_shuffle", {"dst": (held, "int16")}, {"src": src}, shuffle_mask=mask)["dst"]
    for p in range(lanes):
        row = mask[p % 32]
        np.testing.assert_array_equal(got[p], held[p] if row == 255 else src[p // 32 * 32 + row])
