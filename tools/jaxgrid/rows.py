# SPDX-License-Identifier: Apache-2.0
"""Reductions, sums that go on, sorting, and what moves elements."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tools.jaxgrid.case import BOOL, FLOATS, SHAPE, UNIT, WHOLE, Case, numbers, of, of_one

_ALL = (*FLOATS, *WHOLE)
_ALONG = [
    "sum",
    "max",
    "min",
    "mean",
    "argmax",
    "argmin",
    "cumsum",
    "sort",
    "argsort",
    "std",
    "any",
    "all",
    "prod",
    "cumprod",
]
_SMALL = ("prod", "cumprod", "nanprod", "any", "all")  # of numbers whose product stays small
_WHOLE_ARRAY = [
    "var",
    "median",
    "ptp",
    "nansum",
    "nanmean",
    "nanmax",
    "nanstd",
    "count_nonzero",
    "flip",
    "diff",
    "ediff1d",
    "gradient",
    "average",
    "nanmedian",
    "cov",
    "corrcoef",
    "nancumsum",
    "nanargmax",
    "nanprod",
]
_OTHERS = {
    "lax.cummax": lambda x: lax.cummax(x, 1),
    "jax.nn.logsumexp of rows": lambda x: jax.nn.logsumexp(x, 1),
    "jnp.quantile": lambda x: jnp.quantile(x, jnp.array([0.3, 0.8]), axis=1),
    "jnp.percentile": lambda x: jnp.percentile(x, 30, axis=0),
    "jnp.histogram": lambda x: jnp.histogram(x, 5),
    "jnp.unique": lambda x: jnp.unique(x, size=10),
    "jnp.trapezoid": lambda x: jnp.trapezoid(x, axis=1),
}
_MOVES = {
    "jnp.reshape": lambda x: jnp.reshape(x, (7, 5)),
    "jnp.transpose": jnp.transpose,
    "jnp.concatenate": lambda x: jnp.concatenate([x, x[:2]]),
    "jnp.stack": lambda x: jnp.stack([x, x], 1),
    "jnp.pad": lambda x: jnp.pad(x, ((1, 2), (0, 3))),
    "jnp.pad, edge": lambda x: jnp.pad(x, 2, mode="edge"),
    "jnp.pad, reflect": lambda x: jnp.pad(x, 2, mode="reflect"),
    "jnp.pad, wrap": lambda x: jnp.pad(x, 2, mode="wrap"),
    "jnp.roll": lambda x: jnp.roll(x, 2, 1),
    "jnp.roll, flat": lambda x: jnp.roll(x, 3),
    "jnp.tile": lambda x: jnp.tile(x, (2, 3)),
    "jnp.repeat": lambda x: jnp.repeat(x, 3, 1),
    "jnp.tril": jnp.tril,
    "jnp.triu": lambda x: jnp.triu(x, 1),
    "jnp.diag": lambda x: jnp.diag(x[:5, :5]),
    "jnp.diagonal": lambda x: jnp.diagonal(x, 1),
    "jnp.diag of a row": lambda x: jnp.diag(x[0]),
    "jnp.trace": jnp.trace,
    "jnp.take": lambda x: jnp.take(x, jnp.array([3, 1, 0]), 1),
    "jnp.take, outside": lambda x: jnp.take(x, jnp.array([30, 1, -2]), 0),
    "jnp.take, clip": lambda x: jnp.take(x, jnp.array([30, 1, -2]), 0, mode="clip"),
    "jnp.take, wrap": lambda x: jnp.take(x, jnp.array([30, 1, -2]), 0, mode="wrap"),
    "jnp.take_along_axis": lambda x: jnp.take_along_axis(x, jnp.array([[3], [1], [0], [2], [6]]), 1),
    "x[rows, columns]": lambda x: x[jnp.array([0, 2, 4]), jnp.array([1, 3, 6])],
    "x[:, ::2]": lambda x: x[:, ::2],
    "x[-2:, ::-1]": lambda x: x[-2:, ::-1],
    "jnp.rot90": jnp.rot90,
    "jnp.moveaxis": lambda x: jnp.moveaxis(x[None], 0, 2),
    "jnp.split": lambda x: jnp.split(x, [2, 3], 1),
    "jnp.broadcast_to": lambda x: jnp.broadcast_to(x[None], (3, 5, 7)),
    "jnp.squeeze": lambda x: jnp.squeeze(x[None]),
    "jnp.nonzero": lambda x: jnp.nonzero(x, size=9),
    "jnp.insert": lambda x: jnp.insert(x, 2, x[0], 0),
    "jnp.delete": lambda x: jnp.delete(x, 1, 0),
    "jnp.choose": lambda x: jnp.choose(jnp.array([0, 1, 1, 0, 0, 1, 0]), [x[0], x[1]]),
    "jnp.select": lambda x: jnp.select([x > x[0], x < x[1]], [x, x], 0),
    "jnp.ravel, order F": lambda x: jnp.ravel(x, order="F"),
    "lax.top_k": lambda x: lax.top_k(x, 3),
    "nn.one_hot": lambda x: jax.nn.one_hot(x.astype("int32") % 6, 6),
    "lax.rev": lambda x: lax.rev(x, (0, 1)),
    "jnp.lexsort": lambda x: jnp.lexsort((x[0], x[1])),
    "lax.sort, two keys": lambda x: lax.sort((x[0], x[1]), num_keys=2),
    **{f"x.astype({to!r})": lambda x, to=to: x.astype(to) for to in ("float32", "int32", "bfloat16", "int8", "bool")},
    "abs(x).astype('uint8')": lambda x: abs(x).astype("uint8"),
}
_NOT_OF_BOOLS = {
    "jnp.where": lambda x: jnp.where(x > 0, x, x.dtype.type(3)),
    "lax.pad, between": lambda x: lax.pad(x, x.dtype.type(1), ((1, -1, 2), (0, 1, 1))),
    "lax.bitcast_convert_type": lambda x: lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}"),
}


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _reductions()
    yield from of_one(_MOVES, (*_ALL, *BOOL))
    yield from of_one(_NOT_OF_BOOLS, _ALL)
    yield from _moved_by_data()
    yield from _scatters()


def _reductions() -> Iterator[Case]:
    bools = ("sum", "any", "all", "max", "min", "argmax", "sort", "cumsum", "mean")
    for name, function in of(jnp, *_ALONG, prefix="jnp").items():
        short = name.partition(".")[2]
        for axis in (None, 0, 1):
            along = {f"{name}, axis {axis}": lambda x, f=function, axis=axis: f(x, axis=axis)}
            dtypes = (*_ALL, *BOOL) if short in bools else _ALL
            yield from of_one(along, dtypes, UNIT if short in _SMALL else "any")
    for name, function in of(jnp, *_WHOLE_ARRAY, prefix="jnp").items():
        short = name.partition(".")[2]
        dtypes = (*_ALL, *BOOL) if short in ("flip", "count_nonzero") else _ALL
        yield from of_one({name: function}, dtypes, UNIT if short in _SMALL else "any")
    yield from of_one(_OTHERS, _ALL)
    yield from of_one({"jnp.bincount": lambda x: jnp.bincount(x, length=12)}, ("int32",), "positive", (20,))


def _moved_by_data() -> Iterator[Case]:
    at = np.array([2, 9], np.int32)
    moves = {
        "lax.dynamic_slice": lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), (2, 3)),
        "lax.dynamic_update_slice": lambda x, i: lax.dynamic_update_slice(x, x[:2, :3], (i[0], i[1])),
    }
    ids = np.array([0, 1, 1, 3, 5, 0, 3, 1], np.int32)
    for name, function in moves.items():
        for dtype in (*_ALL, *BOOL):
            yield Case(name, dtype, function, (numbers(SHAPE, dtype), at))
    for name, function in of(
        jax.ops, "segment_sum", "segment_max", "segment_min", "segment_prod", prefix="ops"
    ).items():
        for dtype in _ALL:
            x = numbers((8, 3), dtype, UNIT if name == "ops.segment_prod" else "any")
            yield Case(name, dtype, lambda x, i, f=function: f(x, i, 6), (x, ids))


def _scatters() -> Iterator[Case]:
    """Rows (an index is twice there, one is negative, one outside), points and columns."""
    rows, points = np.array([3, 1, 3, 0, 9, -1], np.int32), np.array([3, 1, 3, 0, 2, 1], np.int32)
    of_floats, of_any = ("divide", "power"), ("set", "min", "max")
    for kind in ("set", "add", "multiply", "divide", "min", "max", "power"):
        for dtype in FLOATS if kind in of_floats else (*_ALL, *BOOL) if kind in of_any else _ALL:
            x, u = numbers(SHAPE, dtype, "positive"), numbers((6, 7), dtype, "positive", seed=1)
            first = 2 if kind == "set" else 6  # which of two is set is open
            yield Case(f"x.at[rows].{kind}", dtype, _row_writer(kind, first), (x, u, rows))
            yield Case(f"x.at[:, columns].{kind}", dtype, _column_writer(kind), (x, u, points))
            if kind != "set":
                yield Case(f"x.at[rows, columns].{kind}", dtype, _point_writer(kind), (x, u, points))
    for dtype in _ALL:
        doubled = {
            "x.at[rows].apply": lambda x, i: x.at[i].apply(lambda v: v + v),
            "x.at[:, columns].apply": lambda x, i: x.at[:, i[:3]].apply(lambda v: v + v),
        }
        for name, function in doubled.items():
            yield Case(name, dtype, function, (numbers(SHAPE, dtype, "positive"), rows[[1, 3, 0]]))


def _row_writer(kind, first):
    return lambda x, u, i: getattr(x.at[i[:first]], kind)(u[:first])


def _column_writer(kind):
    return lambda x, u, i: getattr(x.at[:, i[1:4]], kind)(u[:5, :3])


def _point_writer(kind):
    return lambda x, u, i: getattr(x.at[i[:4], i[1:5]], kind)(u[0, :4])
