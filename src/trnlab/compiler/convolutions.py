# SPDX-License-Identifier: Apache-2.0
"""Convolutions as matrix products.

Each dimension of space becomes two, the places of the window and the elements of the window, and the product sums
over channels and elements. Where windows do not overlap, and where they have one element, the two are a view of
memory, and a convolution is a matmul and nothing else; elsewhere shifted copies lie side by side, in HBM. What is
spread (gradients by the input, transposed convolutions) is taken apart by residues, so that no product with the zeros
between is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

from trnlab.compiler.sweeps import Sweep, residue_sweep, stacked, windows_of
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Op, Value
from trnlab.kernels.blocks import BANK, P
from trnlab.kernels.convolutions.few_channels import fits_partitions
from trnlab.kernels.convolutions.gradient_depthwise import DepthwiseGradient
from trnlab.kernels.convolutions.gradient_plan import pays
from trnlab.kernels.packs import Packs
from trnlab.kernels.windows import Slide, Taps
from trnlab.numerics.dtypes import float32

Attrs = dict[str, Any]
FEWEST_CHANNELS = 8  # contracted by the kernel, of the 128 that the PE array takes at once
FEWEST_IMAGES = 4  # of a depthwise convolution's gradient that is made of products of columns
FEWEST_OF_BYTES = 16  # where elements have a byte each


# Per partition, of a gradient by the weight: kernels/convolutions/gradient.
SUMS_BYTES, IMAGE_BYTES = 60 << 10, 80 << 10
# Of weights alone, and with the input that they meet: kernels/convolutions/forward.
WEIGHTS_BYTES, FORWARD_BYTES = 80 << 10, 150 << 10


def has_kernel(op: Op) -> bool:
    """Whether the library's kernels compute the convolution, and well.

    They contract channels, or pixels for the gradient of a weight, so there must be some; and with one element, or
    without overlap, there is nothing to save.
    """
    x, weight = op.operands
    attrs, places = op.attrs, op.result.shape[2:]
    spread, strides = attrs["lhs_dilation"], attrs["window_strides"]
    groups = attrs["feature_group_count"] * attrs["batch_group_count"]
    if (
        len(places) > 2
        or (groups > 1 and not _groups_are_kernels(op))
        or x.dtype is not weight.dtype
        or (min(prod(weight.shape[2:]), prod(places)) == 1 and not skips(op))
        or few_in_patches(op)
    ):
        return False
    if has_few_channels(op):
        return True
    fewest = FEWEST_CHANNELS if x.dtype.itemsize > 1 else FEWEST_OF_BYTES
    if is_weight_gradient(op):
        return x.shape[0] >= fewest
    apart = all(s == 1 or n == 1 for s, n in zip(strides, spread))
    return x.shape[1] >= fewest and apart


def has_few_channels(op: Op) -> bool:
    """Whether elements of the window are contracted along with channels, which are too few by themselves, see
    `kernels.convolutions.few_channels`."""
    x, weight = op.operands
    attrs, places = op.attrs, op.result.shape[2:]
    plain = attrs["feature_group_count"] * attrs["batch_group_count"] == 1 and not attrs["window_reversal"]
    return (
        plain
        and len(places) == 2
        and x.dtype is weight.dtype
        and x.dtype.itemsize > 1
        and all(s == 1 for s in attrs["lhs_dilation"])
        and x.shape[1] < FEWEST_CHANNELS
        and min(prod(weight.shape[2:]), prod(places)) > 1
        and not is_weight_gradient(op)
        and places[-1] <= BANK
        and not few_in_patches(op)
        and fits_partitions(x.shape[1], *slides_of(op))
    )


def slides_of(op: Op) -> tuple[Slide, ...]:
    """How the window of a convolution slides, along each dimension of space."""
    x, weight, places = op.operands[0].shape[2:], op.operands[1].shape[2:], op.result.shape[2:]
    stride, low, spread, dilation = (
        op.attrs[k] for k in ("window_strides", "padding_low", "lhs_dilation", "rhs_dilation")
    )
    reverse = op.attrs["window_reversal"]
    return tuple(
        Slide(x[d], weight[d], places[d], stride[d], low[d], spread[d], dilation[d], reverse) for d in range(len(x))
    )


def _groups_are_kernels(op: Op) -> bool:
    """Whether the groups are those that the kernels know: of features forward and by the input, of images (which are
    the input's channels) by the weight."""
    return bool(op.attrs["feature_group_count" if is_weight_gradient(op) else "batch_group_count"] == 1)


def has_epilogue(op: Op) -> bool:
    """Whether the kernel hands on its results in runs of neighbours."""
    groups, long = op.attrs["feature_group_count"], op.result.shape[-1] > BANK
    if is_weight_gradient(op) or long or any(s > 1 for s in op.attrs["lhs_dilation"]):
        return False
    packs = Packs(groups, op.operands[0].shape[1] // groups, op.result.shape[1] // groups)
    # the rows of a tile are 128 channels, or all
    return groups == 1 or (packs.together > 0 and (packs.count == 1 or packs.m == P))


def skips(op: Op) -> bool:
    """Whether pixels between those that meet are left out, of the input or of the result: in memory these lie apart,
    on chip an access pattern steps over them."""
    return any(n > 1 for k in ("window_strides", "lhs_dilation", "rhs_dilation") for n in op.attrs[k])


def is_weight_gradient(op: Op) -> bool:
    """Whether the window is an image, of which each element of a weight is a place. Groups say so: they are of images
    there, of features elsewhere. Without, it is what has the larger window."""
    attrs, places = op.attrs, op.result.shape[2:]
    if attrs["window_reversal"] or any(s > 1 for s in attrs["lhs_dilation"]) or attrs["feature_group_count"] > 1:
        return False
    return attrs["batch_group_count"] > 1 or prod(op.operands[1].shape[2:]) > prod(places)


def rows_fill_partitions(op: Op) -> bool:
    """Whether there are too few channels to contract, but enough with a row of the window for each."""
    x, weight = op.operands
    attrs, places = op.attrs, op.result.shape[2:]
    few, rows = (x.shape[0], places[0]) if is_weight_gradient(op) else (x.shape[1], weight.shape[2])
    plain = attrs["feature_group_count"] * attrs["batch_group_count"] == 1 and not attrs["window_reversal"]
    return (
        plain
        and len(places) == 2
        and x.dtype is weight.dtype
        and all(s == 1 for s in attrs["lhs_dilation"])
        and few < FEWEST_CHANNELS <= few * rows <= P
        and min(prod(weight.shape[2:]), prod(places)) > 1
        and (not is_weight_gradient(op) or weight.shape[-1] <= P)
        and places[-1] <= BANK
        and not few_in_patches(op)
    )


def few_in_patches(op: Op) -> bool:
    """Whether no element of the input is in several windows, as in patches of an image, which are a view then, and
    there are too few channels to contract. Of the gradient by a weight places are what windows are forward."""
    x, weight = op.operands
    attrs, places = op.attrs, op.result.shape[2:]
    sweeps = list(zip(weight.shape[2:], places, attrs["window_strides"], attrs["rhs_dilation"]))
    forward = all(stride >= window * dilation for window, _, stride, dilation in sweeps)
    backward = all(dilation >= count * stride for _, count, stride, dilation in sweeps)
    return (forward and x.shape[1] < FEWEST_CHANNELS) or (backward and x.shape[0] < FEWEST_CHANNELS)


def _rows_as_channels(op: Op, b: GraphBuilder) -> Value:
    """The same with channels for each row of the window, which has one row then: shifted rows lie beside each other.

    There are few of them, so the copies are small. Forward and gradient copy the same. In a gradient each row of an
    image is an image.
    """
    x, weight = op.operands
    gradient = is_weight_gradient(op)
    rows = first_sweep(op)
    base = stacked(b, x if gradient else b.transpose(x, (1, 0, 2, 3)), rows)
    attrs = dict(op.attrs)
    for name, plain in (("window_strides", 1), ("rhs_dilation", 1), ("padding_low", 0), ("padding_high", 0)):
        attrs[name] = (plain, op.attrs[name][1])
    if not gradient:
        weight = b.reshape(weight, (weight.shape[0], base.shape[0], 1, weight.shape[3]))
        return b.append("convolution", (b.transpose(base, (1, 0, 2, 3)), weight), attrs).result
    by_row = [b.reshape(v, (v.shape[0], v.shape[1] * rows.places, 1, v.shape[3])) for v in (base, weight)]
    made = b.append("convolution", by_row, attrs).result  # rows have nothing to do with each other now
    apart = b.reshape(made, (x.shape[0], rows.window, made.shape[1], made.shape[3]))
    return b.transpose(apart, (0, 2, 1, 3))


def first_sweep(op: Op) -> Sweep:
    """How the window slides along the first dimension of space; of a gradient by the weight that of the forward pass,
    whose elements are places here."""
    stride, dilation, low = (op.attrs[k][0] for k in ("window_strides", "rhs_dilation", "padding_low"))
    window, places = op.operands[1].shape[2], op.result.shape[2]
    return (
        Sweep(places, window, dilation, stride, low)
        if is_weight_gradient(op)
        else (Sweep(window, places, stride, dilation, low))
    )


def as_products(op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
    """The op in terms of dot_general, where there is no kernel for it; for a rewrite."""
    if has_kernel(op):
        if not is_weight_gradient(op):
            most = _contracted_at_once(op)
            return None if most >= op.operands[0].shape[1] else (_by_channels(op, b, most),)
        whole = _in_lanes(op) or _in_columns(op) or _fits_whole(op)
        return None if whole else (_by_bands(op, b),)
    if rows_fill_partitions(op):
        return (_rows_as_channels(op, b),)
    x, weight = op.operands
    attrs = op.attrs
    space = range(len(x.shape) - 2)
    if attrs["window_reversal"]:
        weight = _reversed(b, weight)
    if any(attrs["lhs_dilation"][d] > 1 and attrs["window_strides"][d] > 1 for d in space):
        x, attrs = _filled(b, x, attrs)
    if any(d > 1 for d in attrs["lhs_dilation"]):
        return (_by_residues(b, x, weight, attrs, op.result.shape[2:]),)
    sweeps = [
        Sweep(window, places, *(attrs[k][d] for k in ("window_strides", "rhs_dilation", "padding_low")))
        for d, window, places in zip(space, weight.shape[2:], op.result.shape[2:])
    ]
    return (_product(b, x, weight, sweeps, attrs),)


def _reversed(b: GraphBuilder, weight: Value) -> Value:
    for d in range(2, len(weight.shape)):
        size = weight.shape[d]
        if size > 1:
            weight = b.concatenate([b.slice_dim(weight, d, i, i + 1) for i in reversed(range(size))], d)
    return weight


def _filled(b: GraphBuilder, x: Value, attrs: Attrs) -> tuple[Value, Attrs]:
    """With the zeros between neighbours in memory."""
    none = [0] * len(x.shape)
    x = b.pad(x, none, none, [0, 0, *(d - 1 for d in attrs["lhs_dilation"])])
    return x, {**attrs, "lhs_dilation": (1,) * (len(x.shape) - 2)}


# -- forward and gradients by the input, in parts that fit on chip ---------------------------------------------------


def _contracted_at_once(op: Op) -> int:
    """Input channels that the kernel has room for, 128 at least: a window whose elements lie far apart meets many
    rows of the input."""
    channels = op.operands[0].shape[1]
    if has_few_channels(op) or op.attrs["feature_group_count"] > 1:
        return channels
    blocks = range(-(-channels // P), 1, -1)
    return min(channels, next((n for n in blocks if _forward_bytes(op, n) <= FORWARD_BYTES), 1) * P)


def _forward_bytes(op: Op, blocks: int) -> int:
    """Bytes of a partition for weights and for the input of two rows of places, of so many blocks of 128 channels."""
    (x, weight), (*down, along) = op.operands, slides_of(op)
    reach = min(down[0].size, (down[0].window - 1) * down[0].dilation + 1) if down else 1
    elements = prod(weight.shape[2:]) * x.dtype.itemsize
    held = min(weight.shape[0], max(P, WEIGHTS_BYTES // (blocks * elements) // P * P))
    inputs = 2 * blocks * reach * along.size * x.dtype.itemsize
    return (held * blocks + 2 * P) * elements + inputs


def _by_channels(op: Op, b: GraphBuilder, most: int) -> Value:
    """The sum over input channels, so many at a time, in fp32."""
    (x, weight), given = op.operands, {**op.attrs, "dtype": float32}
    parts = []
    for at in range(0, x.shape[1], most):
        some = [b.slice_dim(v, 1, at, min(at + most, x.shape[1])) for v in (x, weight)]
        parts.append(b.append("convolution", some, given).result)
    return b.convert(reduce(b.add, parts), op.attrs["dtype"])


# -- gradients by the weight, in parts that fit on chip --------------------------------------------------------------


def taps_of(op: Op) -> tuple[Taps, ...]:
    """The places of a gradient by the weight are its taps, and its window the pixels of the result's gradient."""
    attrs = op.attrs
    given = zip(op.result.shape[2:], attrs["rhs_dilation"], attrs["window_strides"], attrs["padding_low"])
    return tuple(Taps(*each) for each in given)


def taps_of_image(op: Op) -> tuple[Taps, Taps]:
    """Those along rows and columns; a line is an image of one row."""
    *down, along = taps_of(op)
    return down[0] if down else Taps(1, 1, 1, 0), along


def _in_lanes(op: Op) -> bool:
    """Whether the kernel has one pixel of each of many images at a time: it cuts what has no room by itself."""
    x, dy, packed = _at_once(op)
    return not packed and pays(x, dy, taps_of_image(op))


def _in_columns(op: Op) -> bool:
    """Whether the kernel has room for whole images of a depthwise convolution, whose columns it multiplies. Of fewer
    images bands by packs are as quick."""
    (x, dy), groups = [_with_rows(v.shape) for v in op.operands], op.attrs["batch_group_count"]
    if not x[0] == groups > 1 or x[1] < FEWEST_IMAGES:
        return False
    sizes = op.operands[0].dtype.itemsize, op.result.dtype.itemsize
    return DepthwiseGradient(x, dy, taps_of_image(op), *sizes).fits(IMAGE_BYTES)


def _at_once(op: Op) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """The shapes, with rows, of what the kernel has at once: one group where groups come one by one; and whether it
    packs groups."""
    (c, *x), (o, *dy), groups = *(_with_rows(v.shape) for v in op.operands), op.attrs["batch_group_count"]
    packed = groups > 1 and Packs(groups, c // groups, o // groups).together > 1
    return (c, *x) if packed else (c // groups, *x), (o, *dy) if packed else (o // groups, *dy), packed


def _with_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a line as that of an image with one row."""
    return shape if len(shape) == 4 else (*shape[:2], 1, shape[2])


def _channels(op: Op) -> int:
    """Input channels that the kernel takes at a time, at most."""
    (channels, *_), _, packed = _at_once(op)
    most = max(P, SUMS_BYTES // (8 * prod(op.result.shape[2:])) // P * P)
    return channels if packed else min(channels, most)


def _fits_whole(op: Op) -> bool:
    """Whether there is room for an image, of as many channels as are taken at a time."""
    return _band(op, _channels(op)) == op.operands[1].shape[2:]


def _by_bands(op: Op, b: GraphBuilder) -> Value:
    """The sum over bands of rows, or over parts of a row, where a whole image has no room; for some input channels
    after the other, as the kernel has them."""
    (x, dy), most = op.operands, op.operands[0].shape[0] if op.attrs["batch_group_count"] > 1 else _channels(op)
    pieces = [b.slice_dim(x, 0, at, min(at + most, x.shape[0])) for at in range(0, x.shape[0], most)]
    if len(pieces) == 1:
        return _swapped(b, _banded(op, b, x, dy))
    return _swapped(b, b.concatenate([_banded(op, b, piece, dy) for piece in pieces], 1))


def _swapped(b: GraphBuilder, x: Value) -> Value:
    return b.transpose(x, (1, 0, *range(2, len(x.shape))))


def _band(op: Op, channels: int) -> tuple[int, ...]:
    """Pixels of dy at a time, in each dimension of space: as many rows as have room, or as much of one as has."""
    rows, cols = _with_rows(op.operands[1].shape)[2:]
    sizes = [(n, cols) for n in range(rows, 0, -1)] + [(1, -(-cols // n)) for n in range(2, cols + 1)]
    chosen = next((s for s in sizes if _band_bytes(op, channels, *s) <= IMAGE_BYTES), (1, 1))
    return chosen[2 - len(op.result.shape[2:]) :]


def _band_bytes(op: Op, channels: int, rows: int, cols: int) -> int:
    """Bytes of a partition for an image, its gradient and their transposes, roughly: so many rows, columns of dy."""
    x, dy, packed = _at_once(op)  # packs come one after the other
    depth, blocks = (1, 1) if packed else (-(-channels // P), -(-dy[0] // P))
    across = BANK if packed else max(BANK, channels)
    down, along = taps_of_image(op)
    high, width = down.reach(rows), along.reach(cols)
    loaded = x[-1] if cols == dy[-1] else width
    chunks = -(-rows // max(1, P // cols)) * -(-cols // P)
    raw = 2 * depth * high * (loaded + width) + 2 * blocks * rows * cols
    return op.operands[0].dtype.itemsize * (raw + 2 * chunks * (blocks * P + across))


def _banded(op: Op, b: GraphBuilder, x: Value, dy: Value) -> Value:
    """The gradient of some input channels, [O, C, ...] as it is wanted: dy in bands, summed in fp32."""
    sizes, space = _band(op, min(x.shape[0], _channels(op))), dy.shape[2:]
    if sizes == space:
        return _swapped(b, b.append("convolution", (x, dy), op.attrs).result)
    parts = []
    for starts in product(*(range(0, n, size) for n, size in zip(space, sizes))):
        ends = [min(at + size, n) for at, size, n in zip(starts, sizes, space)]
        parts.append(_of_band(op, b, x, dy, list(zip(starts, ends))))
    met = [part for part in parts if part is not None]
    assert met, "some pixel of the gradient meets the input"
    return b.convert(reduce(b.add, met), op.attrs["dtype"])


def _of_band(op: Op, b: GraphBuilder, x: Value, dy: Value, band: Sequence[tuple[int, int]]) -> Value | None:
    """What pixels of dy add, from the first on to before the last in each dimension; None where they meet nothing."""
    low, high = [], []
    for d, ((start, stop), taps) in enumerate(zip(band, taps_of(op)), 2):
        first, last = start * taps.stride - taps.low, (stop - 1) * taps.stride - taps.low
        last += (taps.count - 1) * taps.dilation + 1
        inside = max(first, 0), min(last, x.shape[d])
        if inside[0] >= inside[1]:
            return None
        x, dy = b.slice_dim(x, d, *inside), b.slice_dim(dy, d, start, stop)
        low.append(inside[0] - first)
        high.append(last - inside[1])
    given = {**op.attrs, "dtype": float32, "padding_low": tuple(low), "padding_high": tuple(high)}
    return _swapped(b, b.append("convolution", (x, dy), given).result)


# -- what is spread -------------------------------------------------------------------------------------------------


def _by_residues(b: GraphBuilder, x: Value, weight: Value, attrs: Attrs, places: Sequence[int]) -> Value:
    """A convolution for each residue of the places by the spread, and the results in turn.

    Place m * spread + r meets only those elements of the window for which r + i * dilation - low is a multiple of the
    spread: every `step`-th from some first one.
    """
    spread = attrs["lhs_dilation"]
    counts = [-(-n // s) for n, s in zip(places, spread)]
    parts = []
    for residues in product(*map(range, spread)):
        sweeps, chosen = [], weight
        for d, residue in enumerate(residues):
            sweep, first, step = residue_sweep(weight.shape[2 + d], residue, counts[d], d, attrs)
            sweeps.append(sweep)
            chosen = b.slice_dim(chosen, 2 + d, first, weight.shape[2 + d], step) if sweep.window else chosen
        parts.append(_product(b, x, chosen, sweeps, attrs) if all(s.window for s in sweeps) else None)
    shape = next((p.shape for p in parts if p is not None), (x.shape[0], weight.shape[0], *counts))
    whole = [b.constant(0.0, attrs["dtype"], shape) if p is None else p for p in parts]
    return b.interleave(whole, spread, places)


# -- windows as dimensions ------------------------------------------------------------------------------------------


def _product(b: GraphBuilder, x: Value, weight: Value, sweeps: Sequence[Sweep], attrs: Attrs) -> Value:
    """Sum over channels and elements of the windows, in groups; [N, O, places]."""
    rank, groups, batches = len(sweeps), attrs["feature_group_count"], attrs["batch_group_count"]
    windows = windows_of(b, x, sweeps)
    places, elements = [s.places for s in sweeps], [s.window for s in sweeps]
    images, channels = x.shape[0] // batches, x.shape[1] // groups
    together = groups * batches
    if together == 1:  # [O, images, places]
        summed = (1, *range(2, 2 + rank)), (1, *range(2 + rank, 2 + 2 * rank))
        dot = b.dot_general(weight, windows, summed, ((), ()), attrs["dtype"], attrs["precision"])
        return b.transpose(dot, (1, 0, *range(2, 2 + rank)))
    windows = b.reshape(windows, (batches, images, groups, channels, *places, *elements))
    weight = b.reshape(weight, (together, weight.shape[0] // together, channels, *elements))
    # [groups, images, channels, places, elements]: of the groups of batches and of features one is 1
    windows = b.reshape(
        b.transpose(windows, (0, 2, 1, *range(3, 4 + 2 * rank))), (together, images, channels, *places, *elements)
    )
    summed = (2, *range(3, 3 + rank)), (2, *range(3 + rank, 3 + 2 * rank))
    dot = b.dot_general(weight, windows, summed, ((0,), (0,)), attrs["dtype"], attrs["precision"])
    # [groups, O, images, places]
    result = b.transpose(dot, (2, 0, 1, *range(3, 3 + rank)))
    return b.reshape(result, (images, -1, *places))
