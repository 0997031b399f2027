# SPDX-License-Identifier: Apache-2.0
"""Resizing images, and averages over windows that cover them: by `trn.resize`, and by views and tables where that has
no room for a window (`graph.windows.resizing`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from trnlab.frontends.torch.lowerings.registry import LoweringSite, UnsupportedOperatorForm, lowers
from trnlab.graph.ir import Value
from trnlab.graph.windows.resizing import RULES, Taps, given_back, reach, repeats, resized
from trnlab.numerics.dtypes import bfloat16, float32

_LARGEST = 1024  # elements that one is a sum of, which a kernel has in a partition at once
Shape = tuple[int, ...]
Scales = Sequence[float | None]


def _taps(rule: str, size: Sequence[int], out: Sequence[int], scales: Scales) -> list[Taps]:
    return [RULES[rule](*each) for each in zip(size, out, scales)]


@dataclass(frozen=True)
class _Image:
    """What is resized at once: its dimensions before and after, the last two of which differ, and attributes."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    attrs: dict[str, Any]


def _images(rule: str, size: Shape, out: Shape, scales: Scales) -> list[_Image]:
    """One after the other. Volumes are resized slice by slice, and then with each slice as a row; a line is the row
    of an image."""

    def image(before: Shape, after: Shape, rows: float | None, columns: float | None) -> _Image:
        given = {"row_scale": rows or 0.0, "column_scale": columns or 0.0}
        return _Image(before, after, {"rule": rule, "places": after[-2:], **given})

    if len(size) == 1:
        return [image((1, *size), (1, *out), None, scales[0])]
    slices = image(size, (*size[:-2], *out[-2:]), scales[-2], scales[-1])
    if len(size) == 2:
        return [slices]
    each = prod(out[1:])
    return [slices, image((size[0], each), (out[0], each), scales[0], None)]


def _resize(site: LoweringSite, x: Value, rule: str, scales: Scales) -> Value:
    rank = len(scales)
    size, out, lead = x.shape[-rank:], site.shape[-rank:], x.shape[:-rank]
    taps = _taps(rule, size, out, scales)
    picks = all(tap.weights is None for each in taps for tap in each)
    if not picks and not x.dtype.is_float:
        raise UnsupportedOperatorForm(
            "a weighted mean of integers is rounded differently by each device", "resize x.float(), and round"
        )
    viewed = picks and all(repeats(each[0].places, n) for each, n in zip(taps, size))
    small = prod(max(reach(each, n)) for each, n in zip(taps, size)) <= _LARGEST
    if viewed or not small or x.dtype not in (bfloat16, float32):
        y = x if picks else site.wide(x)
        for d in reversed(range(rank)):
            y = resized(site.b, y, len(lead) + d, taps[d])
        return site.cast(y)
    y = site.wide(x) if rank > 2 else x
    for image in _images(rule, size, out, scales):
        y = site.b.op("trn.resize", site.b.reshape(y, (*lead, *image.before)), **image.attrs)
    return site.shaped(site.cast(y))


def _resize_backward(site: LoweringSite, grad: Value, size: Sequence[int], rule: str, scales: Scales) -> Value:
    rank = len(scales)
    size, out = tuple(size[-rank:]), grad.shape[-rank:]
    taps = _taps(rule, size, out, scales)
    small = prod(max(reach(each, n)) for each, n in zip(taps, size)) <= _LARGEST
    if not small or grad.dtype not in (bfloat16, float32):
        y = site.wide(grad)
        for d in reversed(range(rank)):
            y = given_back(site.b, y, len(site.shape) - rank + d, taps[d], size[d])
        return site.cast(y)
    y = site.wide(grad) if rank > 2 else grad
    for image in reversed(_images(rule, size, out, scales)):
        dout = site.b.reshape(y, (*grad.shape[:-rank], *image.after))
        y = site.b.op("trn.resize_backward", dout, **image.attrs, size=image.before[-2:])
    return site.shaped(site.cast(y))


# -- operators ------------------------------------------------------------------------------------------------------


def _register(name: str, rank: int, rule: str, cornered: bool) -> None:
    """An operator and its gradient; with `cornered` they say whether the corners of both grids meet."""

    def of(corners: Sequence[bool]) -> str:
        return f"{rule}_corners" if any(corners) else rule

    @lowers(f"{name}.default")
    def forward(site, x, output_size, *rest):
        corners, scales = (rest[:1], rest[1:]) if cornered else ((), rest)
        return _resize(site, x, of(corners), [*scales, *[None] * (rank - len(scales))])

    @lowers(f"{name}_backward.default")
    def backward(site, grad, output_size, input_size, *rest):
        corners, scales = (rest[:1], rest[1:]) if cornered else ((), rest)
        return _resize_backward(site, grad, input_size, of(corners), [*scales, *[None] * (rank - len(scales))])


for _rank in (1, 2, 3):
    _register(f"upsample_nearest{_rank}d", _rank, "nearest", False)
    _register(f"_upsample_nearest_exact{_rank}d", _rank, "nearest_middle", False)
for _name, _rank in (("upsample_linear1d", 1), ("upsample_bilinear2d", 2), ("upsample_trilinear3d", 3)):
    _register(_name, _rank, "linear", True)
_register("upsample_bicubic2d", 2, "cubic", True)
_register("_upsample_bilinear2d_aa", 2, "smooth_linear", True)
_register("_upsample_bicubic2d_aa", 2, "smooth_cubic", True)


@lowers("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_avg_pool(site, x, output_size):
    """Averages over windows that cover the input."""
    b, rank = site.b, len(output_size)
    lead, space, places = x.shape[:-rank], x.shape[-rank:], site.shape[-rank:]
    if any(n % m for n, m in zip(space, places)):
        return _resize(site, x, "average", [None] * rank)
    split = [v for n, m in zip(space, places) for v in (m, n // m)]
    apart = b.reshape(site.wide(x), (*lead, *split))
    total = b.reduce(apart, [len(lead) + 2 * d + 1 for d in range(rank)])
    return site.cast(b.divide(total, float(np.prod([n // m for n, m in zip(space, places)]))))


@lowers("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool_backward(site, grad, x):
    rank = 3 if "3d" in str(site.node.target) else 2
    return _resize_backward(site, grad, x.shape, "average", [None] * rank)
