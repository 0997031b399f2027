# SPDX-License-Identifier: Apache-2.0
"""Result types of attention and of pools, whose operands have shapes of their own; see `infer`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trnlab.graph.ir import TensorType
from trnlab.graph.needs import need as _need
from trnlab.graph.needs import same_dtype as _same_dtype
from trnlab.numerics.dtypes import float32

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]


def rotate_half(types: Types, attrs: Attrs) -> TensorType:
    """The same as the operand, whose rows have two halves."""
    (x,) = types
    width = (attrs["width"] or x.shape[-1]) if x.rank else 1
    _need(width % 2 == 0, "rows must have two halves", "an even last dimension, or width", (*x.shape, width))
    _need(0 <= width <= x.shape[-1], "more columns than there are", x.shape[-1], width)
    return x


def _attention_shapes(
    q: TensorType, k: TensorType, v: TensorType, bias: Types, turned: bool, shifted: bool
) -> tuple[int, int, int, int]:
    for label, operand in (("q", q), ("k", k), ("v", v)):
        _need(operand.rank == 4, f"{label} must be [batch, heads, length, size]", 4, operand.shape)
    (b, h, t, d), s = q.shape, k.shape[2]
    _same_dtype((q, k, v))
    _need(k.shape[:3] == v.shape[:3], "k and v differ in batch, heads or length", k.shape, v.shape)
    _need(k.shape[0] == b and k.shape[3] == d, "q and k differ in batch or head size", (b, "Hkv", "S", d), k.shape)
    _need(k.shape[1] > 0 and h % k.shape[1] == 0, "heads must be a multiple of key heads", h, k.shape[1])
    for extra in bias:
        sizes = (b, h, s, t) if turned else (b, h, t, s)
        fits = _is_repeated(extra, sizes, shifted) and extra.shape[2 if turned else 3] == s
        _need(fits, "bias must be [B or 1, H or 1, T or 1, S]", (b, h, t, s), extra.shape)
    return b, h, t, s


def _is_repeated(extra: TensorType, sizes: Sequence[int], divides: bool) -> bool:
    """Whether a type of four dimensions has those sizes, or ones; the first may divide its size."""
    if extra.rank != 4 or not all(x in (1, n) for x, n in zip(extra.shape[1:], sizes[1:])):
        return False
    first = extra.shape[0]
    return first in (1, sizes[0]) or (divides and first > 0 and sizes[0] % first == 0)


def _attention(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    q, k, v = types[:3]
    b, h, t, _ = _attention_shapes(q, k, v, types[3:], attrs["shifted"], attrs["shifted"])
    return TensorType((b, h, t, v.shape[3]), q.dtype), TensorType((b, h, t), float32)


def _attention_backward(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    dout, q, k, v, out, lse = types[:6]
    b, h, t, s = _attention_shapes(q, k, v, types[6:7], False, attrs["shifted"])
    for heard in types[7:]:
        fits = _is_repeated(heard, (b, h, t, 1), True)
        _need(fits, "heard must be [B or 1, H or 1, T or 1, 1]", (b, h, t, 1), heard.shape)
    given = (b, h, t, v.shape[3])
    _need(dout.shape == given and out.shape == given, "dout and out must be [B, H, T, E]", given, dout.shape)
    _need(lse == TensorType((b, h, t), float32), "wrong lse", TensorType((b, h, t), float32), lse)
    if not attrs["dbias"]:
        return q, k, v
    return q, k, v, TensorType((b if attrs["dbias"] == "each" else 1, h, t, s), float32)


def _windows(x: TensorType, attrs: Attrs) -> TensorType:
    """The type of one element for each window; every window must see an element."""
    _need(x.rank >= 2, "windows lie over two dimensions", 2, x.rank)
    for axis, size in enumerate(x.shape[-2:]):
        window, step, low, places = (attrs[k][axis] for k in ("window", "window_strides", "padding_low", "places"))
        seen = window >= 1 and step >= 1 and 0 <= low < window and places >= 1 and (places - 1) * step - low < size
        _need(seen, f"a window sees nothing along dimension {axis}", f"{size} elements", (window, step, low, places))
    return TensorType((*x.shape[:-2], *attrs["places"]), x.dtype)


def _max_pool(types: Types, attrs: Attrs) -> TensorType:
    return _windows(types[0], attrs)


def _max_pool_backward(types: Types, attrs: Attrs) -> TensorType:
    dout, x = types
    if attrs["ordered"]:
        names = "window_strides", "window", "padding_low"
        for size, n, step, window, low in zip(x.shape[-2:], attrs["places"], *(attrs[name] for name in names)):
            within = low == 0 and (n - 1) * step + window <= size
            _need(
                within,
                "windows whose elements are looked at in order lie within the operand",
                size,
                (n, step, window),
            )
    _need(dout.shape == _windows(x, attrs).shape, "dout has another shape", _windows(x, attrs).shape, dout.shape)
    return TensorType(x.shape, dout.dtype)


def _take_along(types: Types, attrs: Attrs) -> TensorType:
    x, ids = types
    _need(ids.dtype.kind in "iu", "indices must be integers", "an integer format", ids.dtype.name, "TRN303")
    _need(x.rank == ids.rank >= 1 and x.shape[:-1] == ids.shape[:-1], "indices of each row", x.shape[:-1], ids.shape)
    return TensorType(ids.shape, x.dtype)


def _sum_along(types: Types, attrs: Attrs) -> TensorType:
    x, ids = types
    _need(ids.dtype.kind in "iu", "indices must be integers", "an integer format", ids.dtype.name, "TRN303")
    _need(x.dtype.is_float, "sums are of floats", "a float format", x.dtype.name, "TRN303")
    _need(x.shape == ids.shape and x.rank >= 1, "an index for each element", x.shape, ids.shape)
    return TensorType((*x.shape[:-1], attrs["places"]), attrs["dtype"])


def _average(x: TensorType, attrs: Attrs) -> TensorType:
    """As `_windows`."""
    counted, divisor = attrs["counted"], attrs["divisor"]
    known = len(counted) == 2 and min(counted) >= 0
    _need(known, "elements count so far beyond two dimensions", "two numbers from 0 on", counted)
    _need(math.isfinite(divisor), "sums are divided by a finite number", "a number, or 0 to count", divisor)
    return _windows(x, attrs)


def _avg_pool(types: Types, attrs: Attrs) -> TensorType:
    return _average(types[0], attrs)


def _avg_pool_backward(types: Types, attrs: Attrs) -> TensorType:
    (dout,) = types
    _need(len(attrs["size"]) == 2 and dout.rank >= 2, "windows lie over two dimensions", 2, attrs["size"])
    x = TensorType((*dout.shape[:-2], *attrs["size"]), dout.dtype)
    _need(dout.shape == _average(x, attrs).shape, "dout has another shape", _average(x, attrs).shape, dout.shape)
    return x


def _resizable(x: TensorType, attrs: Attrs) -> None:
    scales = attrs["row_scale"], attrs["column_scale"]
    _need(all(map(math.isfinite, scales)) and min(scales) >= 0, "a scale is a finite number", "from 0 on", scales)
    sizes = attrs["places"], attrs.get("size", (1, 1))
    whole = x.rank >= 2 and all(len(size) == 2 and min(size) >= 1 for size in (*sizes, x.shape[-2:]))
    _need(whole, "two dimensions are resized", "an element at least", (x.shape, *sizes))


def _resize(types: Types, attrs: Attrs) -> TensorType:
    (x,) = types
    _resizable(x, attrs)
    return TensorType((*x.shape[:-2], *attrs["places"]), x.dtype)


def _resize_backward(types: Types, attrs: Attrs) -> TensorType:
    (dout,) = types
    _resizable(dout, attrs)
    _need(dout.shape[-2:] == attrs["places"], "dout has another shape", attrs["places"], dout.shape)
    return TensorType((*dout.shape[:-2], *attrs["size"]), dout.dtype)


def _sum_rows(types: Types, attrs: Attrs) -> TensorType:
    update, ids = types
    _need(ids.dtype.kind in "iu", "indices must be integers", "an integer format", ids.dtype.name, "TRN303")
    _need(update.dtype.is_float, "sums are of floats", "a float format", update.dtype.name, "TRN303")
    _need(update.rank == 2 and ids.shape == update.shape[:1], "an index for each row", update.shape[:1], ids.shape)
    return TensorType(update.shape, float32)


def _put_rows(types: Types, attrs: Attrs) -> TensorType:
    table, ids, update = types
    _need(ids.dtype.kind in "iu", "indices must be integers", "an integer format", ids.dtype.name, "TRN303")
    _need(table.rank == 2, "a table has rows", 2, table.rank)
    _need(update.dtype is table.dtype, "formats differ", table.dtype.name, update.dtype.name, "TRN303")
    wanted = (ids.size, table.shape[1])
    _need(ids.rank == 1 and update.shape == wanted, "an index for each row", wanted, update.shape)
    return table


def _grouped(types: Types) -> tuple[TensorType, TensorType, int]:
    """The two matrices, or batches of them, and how many groups there are."""
    x, y, ends = types[:3]
    _need(ends.rank == 1 and ends.dtype.kind in "iu", "ends must be integers [G]", "integers [G]", ends, "TRN303")
    _need(x.dtype.is_float and y.dtype.is_float, "products are of floats", "a float format", x.dtype.name, "TRN303")
    _same_dtype((x, y))
    return x, y, ends.shape[0]


def _grouped_dot(types: Types, attrs: Attrs) -> TensorType:
    x, w, groups = _grouped(types)
    fits = x.rank == 2 and w.rank == 3 and w.shape[:2] == (groups, x.shape[1])
    _need(fits, "a matrix for each group", f"[M, K] and [{groups}, K, N]", (x.shape, w.shape))
    return TensorType((x.shape[0], w.shape[2]), attrs["dtype"])


def _grouped_outer(types: Types, attrs: Attrs) -> TensorType:
    x, y, groups = _grouped(types)
    fits = x.rank == y.rank == 2 and x.shape[0] == y.shape[0]
    _need(fits, "as many rows of both", "[M, K] and [M, N]", (x.shape, y.shape))
    return TensorType((groups, x.shape[1], y.shape[1]), attrs["dtype"])


RULES: dict[str, Callable[[Types, Attrs], TensorType | tuple[TensorType, ...]]] = {
    "trn.max_pool": _max_pool,
    "trn.max_pool_backward": _max_pool_backward,
    "trn.take_along": _take_along,
    "trn.sum_along": _sum_along,
    "trn.avg_pool": _avg_pool,
    "trn.avg_pool_backward": _avg_pool_backward,
    "trn.resize": _resize,
    "trn.resize_backward": _resize_backward,
    "trn.sum_rows": _sum_rows,
    "trn.put_rows": _put_rows,
    "trn.grouped_dot": _grouped_dot,
    "trn.grouped_outer": _grouped_outer,
    "trn.attention": _attention,
    "trn.attention_backward": _attention_backward,
}
