# SPDX-License-Identifier: Apache-2.0
"""Views of memory show what NumPy shows, whatever their strides, also of dimensions of one element and of none."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trnlab.program.strided import ONE_ELEMENT, Strided, collapsed, inferred, row_major, split

SIZES = st.lists(st.sampled_from((1, 1, 2, 3, 4, 6)), max_size=4).map(tuple)


@st.composite
def views(draw, empty: bool = False) -> Strided[str]:
    """Dense arrays whose dimensions were permuted, repeated, reversed or taken in steps."""
    shape = draw(SIZES)
    if empty:
        at = draw(st.integers(0, len(shape)))
        shape = (*shape[:at], 0, *shape[at:])
    factors = draw(st.tuples(*[st.sampled_from((1, 1, 1, 0, 2, -1))] * len(shape)))
    view = Strided("memory", 500, shape, tuple(a * b for a, b in zip(row_major(shape), factors)))
    return view.permute(*draw(st.permutations(range(len(shape)))))


def places(offset, shape, strides) -> np.ndarray:
    """Where in memory each element of a view lies."""
    found = np.full(shape, offset)
    for axis, (count, stride) in enumerate(zip(shape, strides)):
        found += (np.arange(count) * stride).reshape(-1, *[1] * (len(shape) - axis - 1))
    return found


def seen(view) -> np.ndarray:
    return places(view.offset, view.shape, view.strides)


@given(SIZES)
def test_dense_strides_are_numpys(shape):
    assert tuple(s // 4 for s in np.empty(shape, np.int32).strides) == row_major(shape)
    assert (seen(Strided("memory", 0, shape, row_major(shape))).ravel() == np.arange(prod(shape))).all()


@given(views())
def test_fewest_dimensions_show_the_same_elements(view):
    dims = view.collapsed()
    strides, shape = [d[0] for d in dims], [d[1] for d in dims]
    np.testing.assert_array_equal(places(view.offset, shape, strides).ravel(), seen(view).ravel())
    assert 1 not in shape
    assert all(outer != stride * count for (outer, _), (stride, count) in pairwise(dims))
    assert collapsed(dims) == dims


def test_one_element_has_no_dimensions_and_none_has_some():
    assert collapsed(((7, 1), (0, 1))) == collapsed(ONE_ELEMENT) == ()
    assert prod(count for _, count in collapsed(((3, 0), (1, 3)))) == 0


@settings(max_examples=300)
@given(views(), st.data())
def test_a_reshape_shows_the_same_elements_or_has_no_strides(view, data):
    wanted = data.draw(factors_of(view.size))
    made, want = view.reshape(wanted), seen(view).reshape(wanted)
    steps = [int(np.diff(want, axis=d).flat[0]) if n > 1 else 0 for d, n in enumerate(wanted)]
    assert (made is not None) == np.array_equal(want, places(view.offset, wanted, steps))
    if made is not None:
        np.testing.assert_array_equal(seen(made), want)


@given(views())
def test_a_dense_view_in_another_shape_has_dense_strides(view):
    """Also where a dimension has one element, whose stride nobody steps over: views are compared by their strides."""
    dense = Strided("memory", 0, view.shape, row_major(view.shape))
    for wanted in ((view.size,), (1, *view.shape), (*view.shape, 1)):
        assert dense.reshape(wanted) == Strided("memory", 0, wanted, row_major(wanted))


@given(views(empty=True))
def test_no_elements_have_every_shape(view):
    made = view.reshape((2, 0, 3))
    assert made is not None
    assert (made.shape, made.size) == ((2, 0, 3), 0)


@st.composite
def factors_of(draw, size: int) -> tuple[int, ...]:
    """A shape of so many elements."""
    shape = []
    while size > 1:
        factor = draw(st.sampled_from([n for n in range(2, size + 1) if size % n == 0]))
        shape.append(factor)
        size //= factor
    for at in draw(st.lists(st.integers(0, len(shape)), max_size=2)):
        shape.insert(at, 1)
    return tuple(shape)


@given(views(), st.data())
def test_indices_slices_repeats_and_splits_are_numpys(view, data):
    keys = []
    for count in view.shape:
        low = data.draw(st.integers(0, count - 1))
        high, step = data.draw(st.integers(low, count)), data.draw(st.integers(1, 3))
        keys.append(data.draw(st.sampled_from((low, slice(low, high, step), slice(None)))))
    np.testing.assert_array_equal(seen(view[tuple(keys)]), seen(view)[tuple(keys)])
    repeated = view.expand(len(view.shape), 3)
    np.testing.assert_array_equal(seen(repeated), np.repeat(seen(view)[..., None], 3, -1))
    for axis, count in enumerate(view.shape):
        if count % 2 == 0:
            shape = (*view.shape[:axis], 2, count // 2, *view.shape[axis + 1 :])
            np.testing.assert_array_equal(seen(view.split(axis, 2, count // 2)), seen(view).reshape(shape))


def test_dimensions_are_split_and_shapes_completed():
    assert split(5, (2, 3, 4)) == ((60, 2), (20, 3), (5, 4))
    assert inferred((2, -1), 6) == (2, 3)
    assert inferred((2, 3), 6) == (2, 3)
