# SPDX-License-Identifier: Apache-2.0
"""Values that are the same over runs of columns, as a channel's scale is over its pixels: one element of each run is
loaded."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from compiled import build, error, execute_in_both_orders, random
from torch.nn import functional

from trnlab import chips
from trnlab.compiler import compile
from trnlab.compiler.emission.runs import MOST_BYTES, aligned
from trnlab.sim.timing import time_program

SHAPES = [  # images, channels, height, width, groups
    (2, 12, 8, 8, 4),
    (3, 10, 7, 7, 5),  # runs that no power of two divides
    (4, 6, 3, 5, 6),  # groups of one channel
    (2, 12, 9, 11, 1),  # one group
    (1, 8, 40, 40, 2),  # few rows are cut into parts
    (1, 6, 33, 31, 2),  # and none, where a run would be cut, too
    (2, 24, 32, 32, 2),  # rows that are swept in pieces, within a run
    (2, 96, 7, 9, 2),  # and in pieces of several runs
    (70, 4, 6, 6, 2),  # more rows than partitions, the last block not full
    (3, 6, 1, 1, 2),  # runs of one column are none
]


def group_norm(b, x, scale, shift, groups, activation=True):
    """x [N, C, H, W] by the mean and variance of its groups of channels; its SiLU."""
    images, channels, *size = x.shape
    form = x.dtype
    grouped = (images, groups, channels // groups, int(np.prod(size)))
    wide = b.reshape(b.convert(x, "float32"), grouped)
    count = float(grouped[2] * grouped[3])
    apart = b.subtract(wide, b.divide(b.reduce(wide, (2, 3), keepdims=True), count))
    variance = b.divide(b.reduce(b.multiply(apart, apart), (2, 3), keepdims=True), count)
    y = b.reshape(b.multiply(apart, b.rsqrt(b.add(variance, 1e-5))), x.shape)
    of_channel = [b.broadcast_in_dim(b.convert(v, "float32"), x.shape, (1,)) for v in (scale, shift)]
    y = b.convert(b.add(b.multiply(y, of_channel[0]), of_channel[1]), form)
    return b.silu(y) if activation else y


def given(shape, dtype=np.float32):
    images, channels, height, width, groups = shape
    x = random(images, channels, height, width) * 2 + 0.5
    scale, shift = random(channels, seed=1), random(channels, seed=2)
    return [np.asarray(v.astype(dtype)) for v in (x, scale, shift)], groups


def by_torch(x, scale, shift, groups):
    x, scale, shift = (torch.from_numpy(v.astype(np.float32)) for v in (x, scale, shift))
    return functional.silu(functional.group_norm(x, groups, scale, shift)).numpy()


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("shape", SHAPES)
def test_group_norm(shape, chip):
    inputs, groups = given(shape)
    graph = build(lambda b, *v: group_norm(b, *v, groups), *inputs)
    (got,) = execute_in_both_orders(graph, inputs, chip=chip)
    assert error(got, by_torch(*inputs, groups)) < 1e-5


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("shape", SHAPES)
def test_group_norm_in_bfloat16(shape, chip):
    """The result is rounded before its activation and behind it, each by half a step of eight bits."""
    inputs, groups = given(shape, ml_dtypes.bfloat16)
    graph = build(lambda b, *v: group_norm(b, *v, groups), *inputs)
    (got,) = execute_in_both_orders(graph, inputs, chip=chip)
    assert error(got, by_torch(*inputs, groups)) < 2.0**-7


@pytest.mark.parametrize("shape", SHAPES)
def test_numbers_of_images_and_channels(shape):
    """What is added to channels first, [C, N, H, W] of [N, C], and multiplied by, with sums of groups of channels."""
    images, channels, height, width, groups = shape
    x, time, factor = random(channels, images, height, width), random(images, channels), random(images, channels)

    def function(b, x, time, factor):
        moved = b.broadcast_in_dim(b.transpose(time, (1, 0)), x.shape, (0, 1))
        grouped = (groups, channels // groups * images * height * width)
        y = b.multiply(b.add(x, moved), b.broadcast_in_dim(b.transpose(factor, (1, 0)), x.shape, (0, 1)))
        return y, b.reduce(b.reshape(y, grouped), (1,))

    graph = build(function, x, time, factor)
    y = (x + time.T[:, :, None, None]) * factor.T[:, :, None, None]
    got, total = execute_in_both_orders(graph, [x, time, factor])
    assert error(got, y) < 1e-6
    assert error(total, y.reshape(groups, -1).sum(1, dtype=np.float64)) < 1e-5


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_operation_reads_them(shape, dtype):
    """Those that take numbers of rows along, those that do not, and two such values together."""
    (x, scale, shift), groups = given(shape, dtype)

    def function(b, x, scale, shift):
        s, t = (b.broadcast_in_dim(v, x.shape, (1,)) for v in (scale, shift))
        grouped = (x.shape[0], groups, x.type.size // (x.shape[0] * groups))
        largest = b.reduce(b.reshape(b.convert(x, "float32"), grouped), (2,), "maximum", keepdims=True)
        of_group = b.reshape(b.broadcast_in_dim(largest, grouped, (0, 1, 2)), x.shape)
        less = b.convert(b.subtract(b.convert(x, "float32"), of_group), x.dtype)
        chosen = b.select(b.compare(x, "GT", s), less, t)
        both = b.multiply(b.multiply(s, t), x)
        return (
            chosen,
            b.maximum(t, b.subtract(s, x)),
            both,
            b.divide(less, b.add(b.multiply(s, s), 1.0)),
            b.exponential(s),
        )

    graph = build(function, x, scale, shift)
    results = execute_in_both_orders(graph, [x, scale, shift])
    x, s, t = (v.astype(np.float32) for v in (x, scale[:, None, None], shift[:, None, None]))
    grouped = x.reshape(x.shape[0], groups, -1)
    less = (grouped - grouped.max(2, keepdims=True)).reshape(x.shape)
    wanted = np.where(x > s, less, t), np.maximum(t, s - x), s * t * x, less / (s * s + 1), np.exp(s) + 0 * x
    for got, want in zip(results, wanted):
        assert error(got.astype(np.float32), want) < {np.float32: 1e-5, np.float16: 2.0**-9}.get(dtype, 2.0**-6)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int8, np.bool_])
@pytest.mark.parametrize("shape", SHAPES)
def test_whole_numbers_and_bits(shape, dtype):
    """Of 32 bits they wrap around, on GpSimdE; masks choose whole channels."""
    images, channels, height, width, _ = shape
    size = images, channels, height, width
    high = {np.bool_: 2, np.int32: 1 << 31}.get(dtype, 11)
    x, of_channel, of_image = (
        np.random.default_rng(i).integers(0, high, part).astype(dtype)
        for i, part in enumerate([size, (channels,), (images, channels)])
    )

    def function(b, x, of_channel, of_image):
        c, i = b.broadcast_in_dim(of_channel, size, (1,)), b.broadcast_in_dim(of_image, size, (0, 1))
        if dtype is np.bool_:
            return b.op("and", x, c), b.select(c, i, x)
        return b.multiply(b.add(x, c), i), b.maximum(x, i), b.select(b.compare(x, "EQ", c), i, x)

    inputs = [x, of_channel, of_image]
    results = execute_in_both_orders(build(function, *inputs), inputs)
    c, i = of_channel[:, None, None], of_image[..., None, None]
    wanted = (
        [x & c, np.where(c, i, x)] if dtype is np.bool_ else [(x + c) * i, np.maximum(x, i), np.where(x == c, i, x)]
    )
    for got, want in zip(results, wanted, strict=True):
        assert np.array_equal(got.astype(np.int64), np.broadcast_to(want, size).astype(np.int64))


def bytes_read(graph):
    chip = chips.get("trn1")
    timed = time_program(compile(graph, chip, {"precision": "fp32"}), chip)
    return sum(timed.ops[i].hbm_read for i in timed.op)


@pytest.mark.parametrize("shape", [(4, 64, 16, 16, 32), (4, 96, 7, 7, 32), (1, 8, 40, 40, 2)])
def test_no_more_is_loaded_than_there_is(shape):
    """Of a channel's scale and shift an element for each image; the image once, as there is room to keep it."""
    inputs, groups = given(shape)
    graph = build(lambda b, *v: group_norm(b, *v, groups), *inputs)
    x, scale, _ = inputs
    assert bytes_read(graph) <= x.nbytes + 2 * shape[0] * scale.nbytes + 4096


def test_what_would_fill_sbuf_is_read_as_before():
    """Runs that are so many that an element of each of them is too much."""
    rows, count = 130, MOST_BYTES // 8 + 1
    x, scale = random(rows, count, 2), random(rows, count)
    graph = build(lambda b, x, s: b.multiply(x, b.broadcast_in_dim(s, x.shape, (0, 1))), x, scale)
    (got,) = execute_in_both_orders(graph, [x, scale])
    assert error(got, x * scale[:, :, None]) == 0


def test_sweeps_hold_whole_runs():
    assert aligned(1024, [49]) == 980
    assert aligned(1024, [4096]) == 1024
    assert aligned(1024, [1500]) == 750
    assert aligned(1024, [4099]) == 1024  # which nothing divides
