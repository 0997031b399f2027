# SPDX-License-Identifier: Apache-2.0
"""Views, copies and sums of complex values: those of real ones, beside one more dimension at the end, the parts.

What a lowering of real values is told of dimensions counts from the front, and of sizes has that of the parts too.
"""

from __future__ import annotations

from typing import Any

from trnlab.frontends.torch.lowerings.complex_numbers.values import (
    ComplexValue,
    as_complex,
    constant,
    joined,
    lowers_complex,
)
from trnlab.frontends.torch.lowerings.registry import LOWERINGS, LoweringSite, dim_of, dims_of, lowers
from trnlab.frontends.torch.lowerings.shape import VIEWS
from trnlab.frontends.torch.lowerings.sources import ONES, ZEROS
from trnlab.graph.ir import TensorType

# -- between formats ------------------------------------------------------------------------------------------------


@lowers("view_as_complex.default", "view_as_complex_copy.default")
@lowers_complex("view_as_complex.default", "view_as_complex_copy.default")
def view_as_complex(site, x):
    """The pairs that the last dimension is."""
    return site.cast(x)


@lowers("view_as_real.default", "view_as_real_copy.default")
@lowers_complex("view_as_real.default", "view_as_real_copy.default")
def view_as_real(site, x):
    return x.pairs


@lowers_complex("_to_copy.default", "copy.default")
def to_copy(site, x, source=None, **where):
    """In another format, or from another tensor: real numbers become complex, complex ones their real part."""
    x = x if source is None else source
    if not site.node.meta["val"].dtype.is_complex:
        moved = x.parts(site.b)[0] if isinstance(x, ComplexValue) else x
    else:
        moved = as_complex(site, x).pairs
    return site.b.broadcast_to(site.cast(moved), site.shape)


# -- made of numbers ------------------------------------------------------------------------------------------------


def _filled(site: LoweringSite, number: Any) -> ComplexValue:
    return ComplexValue(site.b.broadcast_to(site.cast(constant(site.b, number).pairs), site.shape))


def _fills(*names: str, place: int | None = None, number: complex = 0) -> None:
    """place: of the number among the operator's arguments; without one it is `number`."""

    def fill(site: LoweringSite, *args: Any, **where: Any) -> Any:
        if not site.node.meta["val"].dtype.is_complex:  # zeros such as a complex tensor's shape, of a real format
            return LOWERINGS[site.node.target](site, *args, **where)
        return _filled(site, number if place is None else args[place])

    lowers_complex(*names)(fill)


_fills("scalar_tensor.default", place=0)
_fills("full.default", "full_like.default", "fill.Scalar", place=1)
_fills("new_full.default", place=2)
_fills(*ONES, number=1)
_fills(*ZEROS)


@lowers_complex("fill.Tensor")
def fill_tensor(site, x, value):
    return ComplexValue(site.b.broadcast_to(site.cast(as_complex(site, value).pairs), site.shape))


# -- views ----------------------------------------------------------------------------------------------------------

_SAME = (
    *VIEWS,
    "expand.default",
    "clone.default",
    "alias.default",
    "detach.default",
    "lift_fresh_copy.default",
    "lift_fresh.default",
)
# Operators that name dimensions of their tensor, by the places of these among the arguments.
_ALONG = {
    "transpose.int": (1, 2),
    "slice.Tensor": (1,),
    "select.int": (1,),
    "split_with_sizes.default": (2,),
    "split.Tensor": (2,),
    "unbind.int": (1,),
    "slice_scatter.default": (2,),
    "select_scatter.default": (2,),
    "slice_backward.default": (2,),
    "select_backward.default": (2,),
}
_SIZES = ("slice_backward.default", "select_backward.default")


def _pairs(held: Any) -> Any:
    if isinstance(held, list):
        return [_pairs(v) for v in held]
    return held.pairs if isinstance(held, ComplexValue) else held


def _as_it_is(site: LoweringSite, *args: Any, **where: Any) -> Any:
    """The lowering of real values on pairs."""
    return LOWERINGS[site.node.target](site, *_pairs(list(args)), **where)


lowers_complex(*_SAME, "index.Tensor", "_unsafe_index.Tensor")(_as_it_is)


def _from_front(dim: Any, rank: int) -> Any:
    return [dim_of(d, rank) for d in dim] if isinstance(dim, list) else dim_of(dim, rank)


def _along(name: str, places: tuple[int, ...]) -> None:

    def lowering(site: LoweringSite, *args: Any, **where: Any) -> Any:
        schema = site.node.target._schema.arguments  # type: ignore[union-attr]
        given = [where.get(a.name, a.default_value) for a in schema[len(args) :] if not a.kwarg_only]
        given = [*args, *given]
        rank = len(given[1]) if name in _SIZES else len(given[0].shape)
        for place in places:
            given[place] = _from_front(given[place], rank)
        if name in _SIZES:
            given[1] = [*given[1], 2]
        given = [
            as_complex(site, v) if i == 1 and name.endswith("_scatter.default") else v for i, v in enumerate(given)
        ]
        return _as_it_is(site, *given)

    lowers_complex(name)(lowering)


def _by_parts(site: LoweringSite, *args: Any, **where: Any) -> ComplexValue:
    """The lowering of real values on real parts and on imaginary ones."""
    lies = TensorType(site.shape[:-1], site.dtype)
    own = LoweringSite(site.b, site.node, [lies], site.random, site.watch)
    made = []
    for i in (0, 1):
        given = [v.parts(site.b)[i] if isinstance(v, ComplexValue) else v for v in args]
        made.append(LOWERINGS[site.node.target](own, *given, **where))
    return joined(site.b, *made)


lowers_complex(
    "as_strided.default",
    "as_strided_copy.default",
    "as_strided_scatter.default",
    "cumsum.default",
    "diagonal.default",
    "diagonal_backward.default",
    "diagonal_copy.default",
    "diagonal_scatter.default",
    "flip.default",
    "gather.default",
    "index_add.default",
    "index_put.default",
    "_unsafe_index_put.default",
    "index_select.default",
    "put.default",
    "scatter.src",
    "scatter_add.default",
    "take.default",
    "tril.default",
    "triu.default",
    "unfold.default",
    "unfold_copy.default",
)(_by_parts)


for _name, _places in _ALONG.items():
    _along(_name, _places)


@lowers_complex("permute.default")
def permute(site, x, dims):
    rank = len(x.shape)
    return ComplexValue(site.b.transpose(x.pairs, [*_from_front(dims, rank), rank]))


@lowers_complex("t.default")
def t(site, x):
    return ComplexValue(site.b.transpose(x.pairs, [1, 0, 2])) if len(x.shape) == 2 else x


@lowers_complex("cat.default")
def cat(site, xs, dim=0):
    """The empty ones that PyTorch leaves out have the dimension of the parts here."""
    kept = [as_complex(site, x) for x in xs if x.shape != (0,)]
    if not kept:
        return _filled(site, 0)
    return LOWERINGS[site.node.target](site, _pairs(kept), dim_of(dim, len(kept[0].shape)))


@lowers_complex("stack.default")
def stack(site, xs, dim=0):
    given = [as_complex(site, x) for x in xs]
    return LOWERINGS[site.node.target](site, _pairs(given), dim_of(dim, len(given[0].shape) + 1))


@lowers_complex("repeat.default")
def repeat(site, x, repeats):
    return _as_it_is(site, x, [*repeats, 1])


@lowers_complex("roll.default")
def roll(site, x, shifts, dims=()):
    if list(dims):
        return _as_it_is(site, x, shifts, _from_front(list(dims), len(x.shape)))
    flat = ComplexValue(site.b.reshape(x.pairs, (-1, 2)))
    return _as_it_is(site, flat, shifts, [0])


@lowers_complex("constant_pad_nd.default")
def constant_pad(site, x, pad, value=0):
    """Each part is padded with its own."""
    number, whole, at = complex(value), LOWERINGS[site.node.target], [0, 0, *pad]
    if number.real == number.imag:
        return whole(site, x.pairs, at, number.real)
    real, imaginary = (whole(site, part, pad, v) for part, v in zip(x.parts(site.b), (number.real, number.imag)))
    return joined(site.b, real, imaginary)


# -- sums -----------------------------------------------------------------------------------------------------------


def _reduced(site: LoweringSite, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    x = as_complex(site, x)
    if not site.node.meta["val"].dtype.is_complex:
        x = x.parts(site.b)[0]
        return LOWERINGS[site.node.target](site, x, dim, keepdim)
    dims = list(dims_of(dim, len(x.shape)))
    if not dims:
        return ComplexValue(site.cast(x.pairs))
    return LOWERINGS[site.node.target](site, x.pairs, dims, keepdim)


lowers_complex("mean.dim", "sum.dim_IntList")(_reduced)


@lowers_complex("mean.default", "sum.default")
def reduced_whole(site, x, dtype=None):
    return _reduced(site, x)
